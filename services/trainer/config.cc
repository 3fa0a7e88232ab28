#include "services/trainer/config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/rpc/convert.h"
#include "services/trainer/plan_input.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::trainer {
namespace {

OptimizerSettings OptimizerOf(const job::v1::JobSpec& spec) {
  const job::v1::Optimizer& from = spec.trainer().optimizer();
  OptimizerSettings to;
  to.name = from.name();
  to.lr = from.lr();
  if (from.betas_size() == 2) {
    to.beta1 = from.betas(0);
    to.beta2 = from.betas(1);
  }
  to.eps = from.eps();
  to.weight_decay = from.weight_decay();
  to.max_grad_norm = from.max_grad_norm();
  to.schedule = from.schedule();

  // The job file counts steps, the optimizer counts updates.
  const int64_t updates_per_step = std::max<int64_t>(1, spec.trainer().batching().minibatches());
  to.warmup = from.warmup() * updates_per_step;
  to.total = spec.limits().max_steps() * updates_per_step;
  return to;
}

absl::StatusOr<Settings> SettingsOf(const job::v1::JobSpec& spec) {
  Settings settings;
  settings.kind = spec.kind() == "sft" ? Settings::Kind::kSft : Settings::Kind::kRl;
  settings.algorithm = AlgorithmSpecOf(spec);
  settings.optimizer = OptimizerOf(spec);
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(settings.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  settings.minibatches = spec.trainer().batching().minibatches();
  settings.micro_batch_tokens = spec.trainer().batching().micro_batch_tokens();
  settings.recompute = RecomputeOf(spec);
  // How a batch is cut into slices depends on time, and changes sums by rounding.
  settings.stream = spec.trainer().batching().stream() && !spec.run().deterministic();
  settings.max_staleness = spec.queue().max_staleness();
  settings.skip_limit = spec.limits().skipped_steps();
  settings.reference = spec.model().has_reference();
  if (settings.kind == Settings::Kind::kRl) {
    settings.group_size = spec.rollout().group().size();
    settings.temperature = spec.rollout().sampling().temperature();
    settings.max_response = spec.rollout().max_response();
  }
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  return settings;
}

}  // namespace

absl::StatusOr<JobConfig> ConfigOf(const registry::v1::Assignment& assignment) {
  const job::v1::JobSpec& spec = assignment.spec();
  SLUICE_RETURN_IF_ERROR(CheckOnDaemon(spec, /*writes=*/true));
  if (assignment.world() > 1 || assignment.queues_size() != 1) {
    return absl::UnimplementedError(
        absl::StrCat("the controller assigns ", assignment.world(), " trainer ranks and ",
                     assignment.queues_size(),
                     " queues; this build of sluice-trainer works as one rank with one queue"));
  }

  JobConfig config;
  config.id = assignment.job();
  config.name = spec.name();
  config.incarnation = assignment.incarnation();
  config.queue = assignment.queues(0);
  SLUICE_ASSIGN_OR_RETURN(config.settings, SettingsOf(spec));
  SLUICE_ASSIGN_OR_RETURN(config.plan, PlanInputOf(spec));
  config.seed = spec.run().seed();

  config.model_dir = spec.model().path();
  if (spec.model().has_init()) {
    config.model_dir = spec.model().init().config();
    config.init_seed = spec.model().init().seed();
  }
  if (config.model_dir.empty())
    return absl::InvalidArgumentError(
        "the job file gives neither model.path nor model.init; set one of them");
  config.chat_template = spec.model().has_chat_template() ? spec.model().chat_template() : "none";
  for (const job::v1::DataSource& source : spec.data().train()) {
    JobConfig::Source& to = config.sources.emplace_back();
    to.name = source.name();
    to.format = source.format();
    to.columns = ColumnsOf(source);
  }
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
  if (assignment.has_from_version()) config.from_version = assignment.from_version();
  // A new branch must not train the old branch's batches again.
  config.requeue = spec.queue().keep().restore() == "requeue" || config.from_version.has_value();

  config.publish_every_steps = spec.weights().every_steps() == 0 ? 1 : spec.weights().every_steps();
  config.retain_versions = static_cast<int>(spec.weights().retain_versions());
  if (spec.limits().has_max_steps()) config.max_steps = spec.limits().max_steps();

  config.eval_every_steps = spec.eval().every_steps();
  for (const job::v1::DataSource& dataset : spec.eval().datasets())
    config.eval_datasets.push_back(dataset.name());
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
