#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Checks of a spec: which jobs this build can run.
namespace sluice::queue {
namespace {
absl::Status Unsupported(absl::string_view field, absl::string_view value, absl::string_view hint) {
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "UNSUPPORTED", .catalogue = "SLUICE-QUEUE-0001", .hint = std::string(hint)},
      absl::StrCat(field, ": ", value, " is not supported by this build's queue; ", hint));
}

absl::Status BadSpec(absl::string_view message) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_SPEC", .catalogue = "SLUICE-QUEUE-0002"}, message);
}

absl::Status CheckSupported(const Spec& spec) {
  if (spec.sampler < Sampler::kUniform || spec.sampler > Sampler::kAdaptive)
    return BadSpec("data.order.sampler is unset");
  if (spec.sampler != Sampler::kUniform && (spec.epochs > 0 || spec.rows_only))
    return BadSpec(
        "data.order.sampler is not uniform, but the job limits epochs or samples no answers");
  if (spec.sampler == Sampler::kLevels && (spec.level_window == 0 || !std::isfinite(spec.level_up)))
    return BadSpec("data.order.level_window is 0, or level_up is not finite");
  if (spec.rest_after > 0 && (spec.sampler == Sampler::kUniform || spec.rest_steps == 0))
    return BadSpec(
        "data.order.rest_after is set, but sampler is uniform, which goes by no rewards, or "
        "rest_steps is 0");
  if (spec.policies.size() != 1)
    return Unsupported("policies", absl::StrCat(spec.policies.size()), "train one policy");
  return absl::OkStatus();
}

absl::Status CheckData(const Spec& spec) {
  if (spec.groups_per_step == 0) return BadSpec("queue.groups_per_step is 0, wanted at least 1");
  if (spec.sources.empty()) return BadSpec("data.train names no source");
  for (const SourceSpec& source : spec.sources) {
    if (!(source.weight > 0))
      return BadSpec(
          absl::StrCat("data.train ", source.name, ": weight ", source.weight, ", wanted above 0"));
  }
  if (spec.lease < absl::Seconds(1)) {
    return BadSpec(absl::StrCat("queue.keep.lease is ", absl::FormatDuration(spec.lease),
                                ", wanted at least 1s"));
  }
  if (spec.durability < Durability::kMemory || spec.durability > Durability::kFull)
    return BadSpec("queue.keep.durability is unset");
  return absl::OkStatus();
}

absl::Status CheckWaves(const Spec& spec) {
  if (spec.first_wave == 0) return absl::OkStatus();
  if (spec.first_wave < 2 || spec.first_wave < spec.group_min ||
      spec.first_wave >= spec.group_size) {
    return BadSpec(absl::StrCat("rollout.group.first_wave is ", spec.first_wave,
                                ", wanted at least 2, at least min, which is ", spec.group_min,
                                ", and below size, which is ", spec.group_size));
  }
  const bool rewarded = absl::c_any_of(spec.tasks, [](const TaskSpec& task) {
    return absl::c_linear_search(task.produces, "task_reward");
  });
  if (!rewarded || spec.has_task(Granularity::kGroup)) {
    return BadSpec(
        "rollout.group.first_wave needs a task that produces task_reward, and only tasks of "
        "granularity trajectory");
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const Spec& spec) {
  if (spec.group_size == 0 || spec.group_min == 0 || spec.group_min > spec.group_size) {
    return BadSpec(absl::StrCat("rollout.group: min ", spec.group_min, " of size ", spec.group_size,
                                ", wanted 1 <= min <= size"));
  }
  SLUICE_RETURN_IF_ERROR(CheckWaves(spec));
  if (spec.max_eta_adm() > spec.max_staleness) {
    return BadSpec(absl::StrCat("queue.admission.staleness is ", spec.max_eta_adm(),
                                ", wanted at most queue.max_staleness, which is ",
                                spec.max_staleness));
  }
  if (!(spec.oversample >= 0 && spec.oversample <= 1))
    return BadSpec(absl::StrCat("queue.admission.oversample ", spec.oversample, ", wanted 0 to 1"));
  if (spec.statistic == Statistic::kStrict && spec.straggler == Straggler::kMask) {
    return BadSpec(
        "queue.straggler.policy mask needs queue.admission.statistic masked; set the policy to "
        "drop");
  }
  if (spec.member_tokens == 0 || spec.token_bytes < 8) {
    return BadSpec(absl::StrCat("member_tokens is ", spec.member_tokens, " and token_bytes is ",
                                spec.token_bytes,
                                "; wanted at least 1, and the 8 of a token and its log-prob"));
  }
  if (spec.statistic < Statistic::kMasked || spec.statistic > Statistic::kStrict)
    return BadSpec("queue.admission.statistic is unset");
  if (spec.filter < Filter::kNone || spec.filter > Filter::kSignal)
    return BadSpec("algorithm.advantage.group_filter is unset");
  if (spec.straggler < Straggler::kWait || spec.straggler > Straggler::kShrink)
    return BadSpec("queue.straggler.policy is unset");
  if (spec.wait <= absl::ZeroDuration()) {
    return BadSpec(absl::StrCat("queue.straggler.wait is ", absl::FormatDuration(spec.wait),
                                ", wanted above 0"));
  }
  return absl::OkStatus();
}

// In a deterministic job a batch may depend on the seed and on what was sampled, never on when
// something came. With eta 0 and no slots beyond B each step trains exactly the groups admitted to
// it, cut by ordinal; what looks at the clock is refused.
absl::Status CheckDeterministic(const Spec& spec) {
  if (spec.max_staleness != 0)
    return BadSpec(
        absl::StrCat("run.deterministic needs queue.max_staleness 0, it is ", spec.max_staleness));
  if (spec.oversample != 0)
    return BadSpec(absl::StrCat("run.deterministic needs queue.admission.oversample 0, it is ",
                                spec.oversample));
  if (spec.sampler != Sampler::kUniform && spec.filter != Filter::kNone)
    return BadSpec(
        "run.deterministic needs data.order.sampler uniform, or no "
        "algorithm.advantage.group_filter: "
        "the sampler goes by groups that are rejected, and these come in any order");
  if (spec.straggler == Straggler::kWait || spec.straggler == Straggler::kMask)
    return absl::OkStatus();
  return BadSpec(absl::StrCat("run.deterministic needs queue.straggler.policy wait or mask; ",
                              spec.straggler == Straggler::kDrop ? "drop" : "shrink",
                              " goes by the clock"));
}

absl::Status CheckTask(const TaskSpec& task) {
  if (task.tries == 0 || task.deadline <= absl::ZeroDuration())
    return BadSpec(absl::StrCat("task ", task.name, " has ", task.tries,
                                " tries and a deadline of ", absl::FormatDuration(task.deadline),
                                "; wanted both above 0"));
  if (task.granularity != Granularity::kTrajectory && task.granularity != Granularity::kGroup)
    return BadSpec(absl::StrCat("task ", task.name, ": granularity is unset"));
  const bool verdict = absl::c_linear_search(task.produces, "verdict");
  if (verdict && task.granularity != Granularity::kGroup)
    return BadSpec(
        absl::StrCat("task ", task.name, " writes verdict; its granularity must be group"));
  return absl::OkStatus();
}

absl::Status CheckTasks(const Spec& spec) {
  for (const TaskSpec& task : spec.tasks) SLUICE_RETURN_IF_ERROR(CheckTask(task));

  // The filter compares rewards, so some task has to write them.
  const bool rewarded = std::any_of(spec.tasks.begin(), spec.tasks.end(), [](const TaskSpec& task) {
    return absl::c_linear_search(task.produces, "task_reward");
  });
  if (spec.filter != Filter::kSignal || rewarded) return absl::OkStatus();
  return BadSpec("algorithm.advantage.group_filter signal needs a task that produces task_reward");
}

absl::Status CheckQuota(const Spec& spec) {
  const uint64_t needed = Job::NeededBytes(spec);
  if (needed <= spec.quota_bytes) return absl::OkStatus();
  return BadSpec(absl::StrCat(
      "queue.keep.quota is ", spec.quota_bytes, " B, but the job needs ", needed,
      " B: (admission staleness ", spec.max_eta_adm(), " + 2) steps x ", spec.slots_per_step(),
      " groups x ", spec.group_bytes(), " B for ", spec.group_size,
      " members; raise the quota, or lower rollout.max_response, rollout.group.size or "
      "queue.groups_per_step"));
}
}  // namespace

absl::Status Job::CheckSpec(const Spec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckSupported(spec));
  SLUICE_RETURN_IF_ERROR(CheckData(spec));

  // A supervised job samples nothing: it has no groups to wait for and no tasks.
  if (spec.rows_only) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckGroups(spec));
  if (spec.deterministic) SLUICE_RETURN_IF_ERROR(CheckDeterministic(spec));
  SLUICE_RETURN_IF_ERROR(CheckTasks(spec));
  return CheckQuota(spec);
}

uint64_t Job::NeededBytes(const Spec& spec) {
  if (spec.rows_only) return 0;
  return uint64_t{spec.slots_per_step()} * spec.group_bytes() * (spec.max_eta_adm() + 2);
}

}  // namespace sluice::queue
