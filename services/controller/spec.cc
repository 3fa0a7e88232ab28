#include "services/controller/spec.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"
#include "services/controller/core/names.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::controller {
namespace {

using job::v1::JobSpec;

constexpr size_t kMaxProblems = 20;  // Errors or differences that a message lists.

// Bytes that the queue reserves for a token of the job. A model counts as one without experts if
// this host does not see its directory: the daemons that load the model report what is wrong with
// it.
uint32_t TokenBytes(const JobSpec& spec) {
  const absl::StatusOr<ModelDir> model =
      ReadModelDir(spec.model().has_init() ? spec.model().init().config() : spec.model().path());
  return QueueTokenBytes(spec, model.ok() ? &model->config : nullptr);
}

// Whether the job trains on the answers of its rows, and samples none.
bool Supervised(const JobSpec& spec) { return spec.kind() != "rl"; }

// Whether answers are scored. A job that learns from a teacher alone may have no rewards.
bool Rewarded(const JobSpec& spec) { return !Supervised(spec) && !spec.reward().rewards().empty(); }

// The most tokens that a trajectory can have, with its prompt.
uint32_t MemberTokens(const JobSpec& spec) {
  const uint64_t wanted =
      uint64_t{spec.data().order().max_prompt()} + spec.rollout().max_response();
  const uint32_t context = spec.model().max_context();
  if (Supervised(spec) || wanted == 0) return context;
  return context == 0 ? static_cast<uint32_t>(wanted)
                      : static_cast<uint32_t>(std::min<uint64_t>(wanted, context));
}

void AddSources(const JobSpec& spec, queue::v1::QueueSpec* queue) {
  for (const job::v1::DataSource& train : spec.data().train()) {
    queue::v1::Source& source = *queue->add_sources();
    source.set_name(train.name());
    source.set_path(PathOf(train));
    source.set_weight(train.weight());
    const std::map<std::string, std::string> columns = ColumnsOf(train);
    source.mutable_fields()->insert(columns.begin(), columns.end());
  }
}

// The spec's whole reward block becomes one task.
void AddRewardTask(const JobSpec& spec, queue::v1::QueueSpec* queue) {
  queue::v1::TaskSpec& task = *queue->add_tasks();
  task.set_name("reward");
  task.add_needs("messages");
  for (const char* field :
       {"reward_status", "task_reward", "reward_parts", "reward_gen", "reward_info"})
    task.add_produces(field);
  if (GivesTokenRewards(spec.reward())) {
    task.add_needs("answer_ends");
    task.add_produces("rew_tok");
  }
  task.set_granularity(ScoresGroups(spec.reward()) ? common::v1::GRANULARITY_GROUP
                                                   : common::v1::GRANULARITY_TRAJECTORY);
  task.set_pool(TaskPoolOf(spec.reward()));
  uint32_t tries = 1;
  const job::v1::Reward counted = WithoutShadows(spec.reward());
  for (const job::v1::RewardEntry& entry : counted.rewards())
    tries = std::max(tries, entry.tries());
  *task.mutable_deadline() = rpc::ToProto(LongestTry(spec.reward()));
  task.set_tries(tries);
}

Count CountOf(const job::v1::ReplicaRange& range) {
  Count count;
  count.min = static_cast<int>(range.min());
  count.max = std::max(count.min, static_cast<int>(range.max()));
  return count;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckSpec(const JobSpec& spec, const Policy& policy) {
  // A file that does not exist on this host may exist on the host of the daemon that reads it.
  SpecCheck check = CheckJobSpec(spec, {.files_must_exist = false});
  for (SpecProblem& excess : CheckCaps(policy, spec)) check.errors.push_back(std::move(excess));
  if (check.errors.empty()) {
    std::vector<std::string> warnings;
    for (const SpecProblem& warning : check.warnings) warnings.push_back(warning.text);
    return warnings;
  }

  const size_t shown = std::min(check.errors.size(), kMaxProblems),
               left = check.errors.size() - shown;
  std::string message = absl::StrJoin(
      check.errors.begin(), check.errors.begin() + static_cast<long>(shown), "\n",
      [](std::string* out, const SpecProblem& error) { out->append(error.ToString()); });

  if (left > 0) absl::StrAppend(&message, "\nand ", left, " more");
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "SPEC",
                    .catalogue = "SLUICE-CTL-0007",
                    .hint = "see `sluice config validate FILE`"},
                   message);
}

namespace {

// Whether the submitter's own roots allow the paths of the spec.
absl::Status CheckRootsOf(const Policy::Quota& quota, const std::string& submitter,
                          const JobSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<const Roots> roots,
                          Roots::Rules(quota.read_roots, quota.write_roots));
  absl::Status outside;
  VisitPaths(spec, [&](const std::string& key, const std::string& path, bool written) {
    if ((written ? quota.write_roots : quota.read_roots).empty()) return;
    const absl::Status found =
        roots->Check(path, written ? Roots::Access::kWrite : Roots::Access::kRead);
    if (found.ok() || !outside.ok()) return;
    outside = ErrorWith(absl::StatusCode::kPermissionDenied,
                        {.reason = "OUTSIDE_ROOTS",
                         .catalogue = "SLUICE-CTL-0033",
                         .hint = "move the files there, or ask the operator for another folder in "
                                 "read_roots or write_roots of the policy"},
                        absl::StrCat(key, ": ", found.message(), " for submitter ", submitter));
  });
  return outside;
}

// Whether the submitter's jobs may ask the judges and the plug-in servers of the spec.
absl::Status CheckScorersOf(const Policy::Quota& quota, const std::string& submitter,
                            const JobSpec& spec) {
  const auto check = [&](const std::vector<std::string>& allowed,
                         const std::set<std::string>& asked, absl::string_view what,
                         absl::string_view arg) -> absl::Status {
    if (allowed.empty()) return absl::OkStatus();
    for (const std::string& name : asked) {
      if (absl::c_linear_search(allowed, name)) continue;
      return ErrorWith(
          absl::StatusCode::kPermissionDenied,
          {.reason = "SCORER",
           .catalogue = "SLUICE-CTL-0034",
           .hint = absl::StrCat("name one of these in args.", arg, ", or ask the operator")},
          absl::StrCat("reward.rewards asks the ", what, " \"", name,
                       "\", but the operator's policy lets submitter ", submitter, " ask ",
                       absl::StrJoin(allowed, ", ")));
    }
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(check(quota.judges, JudgesOf(spec.reward()), "judge", "judge"));
  return check(quota.plugin_servers, PluginServersOf(spec.reward()), "plug-in server", "grpc");
}

}  // namespace

absl::Status CheckQuota(const Policy::Quota& quota, const std::string& submitter,
                        const JobSpec& spec, int other_rollouts) {
  const Needs needs = NeedsOf(spec);
  const std::vector<std::string>& pools = quota.pools;
  if (!pools.empty() && std::find(pools.begin(), pools.end(), needs.pool) == pools.end()) {
    return ErrorWith(absl::StatusCode::kPermissionDenied,
                     {.reason = "POOL",
                      .catalogue = "SLUICE-CTL-0025",
                      .hint = "set resources.pool to one of these, or ask the operator"},
                     absl::StrCat("resources.pool is ", needs.pool,
                                  ", but the operator's policy lets submitter ", submitter, " use ",
                                  absl::StrJoin(pools, ", ")));
  }
  SLUICE_RETURN_IF_ERROR(CheckRootsOf(quota, submitter, spec));
  SLUICE_RETURN_IF_ERROR(CheckScorersOf(quota, submitter, spec));

  const auto check = [&](const char* key, int min, std::optional<uint32_t> most,
                         int others) -> absl::Status {
    if (!most || min + others <= static_cast<int>(*most)) return absl::OkStatus();
    return ErrorWith(
        absl::StatusCode::kResourceExhausted,
        {.reason = "QUOTA",
         .catalogue = "SLUICE-CTL-0024",
         .hint = "ask for less, or ask the operator for a larger quota"},
        absl::StrCat(key, " is ", min, ", but the operator's quota of submitter ", submitter,
                     " is ", *most,
                     others == 0 ? "" : absl::StrCat(", and other jobs have ", others)));
  };
  SLUICE_RETURN_IF_ERROR(check("resources.trainer", needs.trainers.min, quota.trainers, 0));
  return check("resources.rollout.min", needs.rollouts.min, quota.rollouts, other_rollouts);
}

std::function<DaemonQuota(const std::string& submitter)> QuotasOf(Policy policy) {
  return [policy = std::move(policy)](const std::string& submitter) {
    DaemonQuota most;
    const Policy::Quota* const quota = policy.FindQuota(submitter);
    if (quota == nullptr) return most;
    if (quota->trainers) most.trainers = static_cast<int>(*quota->trainers);
    if (quota->rollouts) most.rollouts = static_cast<int>(*quota->rollouts);
    return most;
  };
}

Needs NeedsOf(const JobSpec& spec) {
  Needs needs;
  const auto duration = [](const google::protobuf::Duration& value, absl::Duration unset) {
    const absl::Duration given = rpc::FromProto(value);
    return given > absl::ZeroDuration() ? given : unset;
  };
  needs.priority = spec.run().priority();
  if (!spec.resources().pool().empty()) needs.pool = spec.resources().pool();
  needs.trainers.min = needs.trainers.max =
      std::max(1, static_cast<int>(spec.resources().trainer()));
  needs.rollouts = Supervised(spec) ? Count{0, 0} : CountOf(spec.resources().rollout());
  needs.rewards = Rewarded(spec) ? CountOf(spec.resources().reward()) : Count{0, 0};
  if (spec.limits().has_wall())
    needs.wall = duration(spec.limits().wall(), absl::InfiniteDuration());
  needs.start = duration(spec.limits().start(), needs.start);
  needs.stall_warn = duration(spec.limits().stall_warn(), needs.stall_warn);
  needs.stall_fail = duration(spec.limits().stall_fail(), needs.stall_fail);
  needs.restarts_per_hour = static_cast<int>(spec.limits().restarts_per_hour());
  return needs;
}

queue::v1::QueueSpec QueueSpecOf(const JobSpec& spec) {
  queue::v1::QueueSpec queue;
  queue.set_job_name(spec.name());
  queue.set_seed(spec.run().seed());
  queue.set_deterministic(spec.run().deterministic());
  queue.add_policies("policy");
  *queue.mutable_queue() = spec.queue();
  queue.set_max_version_span(spec.weights().has_max_version_span()
                                 ? spec.weights().max_version_span()
                                 : spec.queue().max_staleness());
  queue.set_max_steps(spec.limits().max_steps());

  queue.set_member_tokens(MemberTokens(spec));
  queue.set_token_bytes(TokenBytes(spec));

  AddSources(spec, &queue);
  const job::v1::DataOrder& order = spec.data().order();
  queue.set_sampler(order.sampler() == "levels"     ? queue::v1::SAMPLER_LEVELS
                    : order.sampler() == "adaptive" ? queue::v1::SAMPLER_ADAPTIVE
                                                    : queue::v1::SAMPLER_UNIFORM);
  queue.set_level_up(order.level_up());
  queue.set_level_window(order.level_window());
  queue.set_rest_after(order.rest_after());
  queue.set_rest_steps(order.rest_steps());
  queue.set_skip_bad_rows(spec.data().order().on_bad_row() == "skip");
  queue.set_epochs(spec.data().order().epochs());
  queue.set_max_rejected_steps(spec.algorithm().advantage().max_rejected_steps());
  queue.set_filter(queue::v1::GROUP_FILTER_NONE);

  // Supervised training has no sampling and no rewards: a group is one row of the data.
  if (Supervised(spec)) {
    queue.set_rows_only(true);
    queue.set_group_size(1);
    queue.set_group_min(1);
    return queue;
  }

  queue.set_group_size(spec.rollout().group().size());
  queue.set_group_min(spec.rollout().group().min());
  queue.set_first_wave(spec.rollout().group().first_wave());
  if (spec.algorithm().advantage().group_filter() == "signal")
    queue.set_filter(queue::v1::GROUP_FILTER_SIGNAL);

  if (Rewarded(spec)) AddRewardTask(spec, &queue);
  common::v1::Sampling& sampling = *queue.mutable_sampling();
  sampling.set_temperature(spec.rollout().sampling().temperature());
  sampling.set_top_p(spec.rollout().sampling().top_p());
  sampling.set_max_tokens(spec.rollout().max_response());
  return queue;
}

std::string Difference(const JobSpec& before, const JobSpec& after) {
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(before, after))
    return "no value differs; only the texts of the files, their folders or the --set options "
           "differ";

  std::vector<std::string> lines = absl::StrSplit(report, '\n', absl::SkipEmpty());
  const size_t all = lines.size();
  if (all > kMaxProblems) lines.resize(kMaxProblems);
  return absl::StrCat(
      absl::StrJoin(lines, "; "),
      all > kMaxProblems ? absl::StrCat("; and ", all - kMaxProblems, " more") : "");
}

}  // namespace sluice::controller
