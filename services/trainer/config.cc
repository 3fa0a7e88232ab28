#include "services/trainer/config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/shards.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/rpc/convert.h"
#include "common/weights/weight_folder.h"
#include "services/trainer/job_settings.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::trainer {
namespace {

template <typename Sources>
std::vector<JobConfig::Source> SourcesOf(const Sources& from) {
  std::vector<JobConfig::Source> sources;
  for (const job::v1::DataSource& source : from)
    sources.push_back({source.name(), source.format(), ColumnsOf(source), PathOf(source)});
  return sources;
}

CanaryRules CanaryOf(const job::v1::Canary& canary) {
  CanaryRules rules{.tokens = canary.tokens(),
                    .wait = rpc::FromProto(canary.wait()),
                    .max_gap = canary.max_gap(),
                    .max_reward_drop = std::nullopt};
  if (canary.has_max_reward_drop()) rules.max_reward_drop = canary.max_reward_drop();
  return rules;
}

}  // namespace

absl::StatusOr<JobConfig> ConfigOf(const registry::v1::Assignment& assignment) {
  const job::v1::JobSpec& spec = assignment.spec();
  SLUICE_RETURN_IF_ERROR(CheckOnDaemon(spec, /*writes=*/true));
  if (assignment.queues_size() != 1) {
    return absl::UnimplementedError(
        absl::StrCat("the controller assigns ", assignment.queues_size(),
                     " queues; this build of sluice-trainer works with one queue"));
  }

  JobConfig config;
  config.id = assignment.job();
  config.name = spec.name();
  config.incarnation = assignment.incarnation();
  config.queue = assignment.queues(0);
  SLUICE_ASSIGN_OR_RETURN(config.settings, SettingsOf(spec));
  SLUICE_ASSIGN_OR_RETURN(config.plan, PlanInputOf(spec));
  config.seed = spec.run().seed();
  config.ranks = {.rank = static_cast<int>(assignment.rank()),
                  .world = std::max(1, static_cast<int>(assignment.world())),
                  .rendezvous = assignment.rendezvous()};
  // A job that an older build stored has no such value.
  const absl::Duration timeout = rpc::FromProto(spec.trainer().parallel().collective_timeout());
  config.ranks.timeout = timeout > absl::ZeroDuration() ? timeout : absl::Seconds(120);
  config.broadcast = spec.weights().broadcast();
  config.plan.rank = config.ranks.rank;
  config.plan.ranks = config.ranks.world;

  config.model_dir = spec.model().path();
  if (spec.model().has_init()) {
    config.model_dir = spec.model().init().config();
    config.init_seed = spec.model().init().seed();
  }
  if (config.model_dir.empty())
    return absl::InvalidArgumentError(
        "the job file gives neither model.path nor model.init; set one of them");
  config.teacher_dir = spec.model().teacher().path();
  if (HasCritic(config.settings)) config.critic_dir = spec.trainer().critic().path();
  config.chat_template = spec.model().has_chat_template() ? spec.model().chat_template() : "none";
  config.sources = SourcesOf(spec.data().train());
  config.max_context = spec.model().max_context();

  // Each job has a folder of its own, so that it never goes on from another job's checkpoints. The
  // job's name is in it only for people.
  config.checkpoint_dir =
      absl::StrCat(spec.checkpoint().dir(), "/", spec.name(), "-", config.id.substr(0, 8));
  config.checkpoint_every_steps = spec.checkpoint().every_steps();
  if (spec.checkpoint().has_every())
    config.checkpoint_every = rpc::FromProto(spec.checkpoint().every());
  config.keep_last = static_cast<int>(spec.checkpoint().keep_last());
  config.keep_every_steps = spec.checkpoint().keep_every_steps();
  // A job that an older build stored has no such value.
  config.max_shard_bytes = spec.checkpoint().max_shard_size() == 0
                               ? kMaxShardBytes
                               : static_cast<int64_t>(spec.checkpoint().max_shard_size());
  if (assignment.has_from_version()) config.from_version = assignment.from_version();
  config.skip_bad_rows = spec.data().order().on_bad_row() == "skip";
  // A new branch must not train the old branch's batches again.
  config.requeue = spec.queue().keep().restore() == "requeue" || config.from_version.has_value();

  config.publish_every_steps = spec.weights().every_steps() == 0 ? 1 : spec.weights().every_steps();
  config.retain_versions = static_cast<int>(spec.weights().retain_versions());
  config.encoding =
      spec.weights().encoding() == "full" ? WeightEncoding::kFull : WeightEncoding::kAuto;
  if (spec.weights().has_dir())
    config.weights_dir = WeightFolderOf(spec.weights().dir(), spec.name(), config.id);
  if (spec.weights().has_canary()) config.canary = CanaryOf(spec.weights().canary());
  if (spec.limits().has_max_steps()) config.max_steps = spec.limits().max_steps();

  config.eval_every_steps = spec.eval().every_steps();
  config.eval_sources = SourcesOf(spec.eval().datasets());
  config.rollouts = RolloutsOf(assignment);
  return config;
}

std::vector<std::string> RolloutsOf(const registry::v1::Assignment& assignment) {
  // The list has the addresses of the trainers first, and then those of the rollouts.
  const auto& addresses = assignment.weights();
  const int trainers = std::min(static_cast<int>(assignment.world()), addresses.size());
  return {addresses.begin() + trainers, addresses.end()};
}

}  // namespace sluice::trainer
