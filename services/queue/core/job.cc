#include "services/queue/core/job.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
absl::Status Unsupported(absl::string_view field, absl::string_view value, absl::string_view hint) {
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "UNSUPPORTED", .catalogue = "SLUICE-QUEUE-0001", .hint = std::string(hint)},
      absl::StrCat(field, ": ", value, " is not supported by this build's queue; ", hint));
}

absl::Status DiskFull() {
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "DISK_FULL",
                    .catalogue = "SLUICE-QUEUE-0006",
                    .hint = "make room on the disk of the queue's --data-dir",
                    .retry_after = absl::Seconds(1)},
                   "the disk of the queue's log is full; nothing accepted is lost, send the same "
                   "again once there is room");
}

absl::Status BadSpec(absl::string_view message) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_SPEC", .catalogue = "SLUICE-QUEUE-0002"}, message);
}

absl::Status CheckSupported(const Spec& spec) {
  if (spec.sampler < Sampler::kUniform || spec.sampler > Sampler::kAdaptive)
    return BadSpec("data.order.sampler is unset");
  if (spec.sampler != Sampler::kUniform) {
    return Unsupported("data.order.sampler",
                       spec.sampler == Sampler::kLevels ? "levels" : "adaptive",
                       "set it to uniform");
  }
  if (spec.policies.size() != 1)
    return Unsupported("policies", absl::StrCat(spec.policies.size()), "train one policy");
  return absl::OkStatus();
}

// P7: a batch may depend on the seed and on what was sampled, never on when something came. With
// eta 0 and no slots beyond B each step trains exactly the groups admitted to it, cut by ordinal;
// what looks at the clock is refused.
absl::Status CheckDeterministic(const Spec& spec) {
  if (spec.max_staleness != 0)
    return BadSpec(
        absl::StrCat("run.deterministic needs queue.max_staleness 0, it is ", spec.max_staleness));
  if (spec.oversample != 0)
    return BadSpec(absl::StrCat("run.deterministic needs queue.admission.oversample 0, it is ",
                                spec.oversample));
  if (spec.straggler == Straggler::kWait || spec.straggler == Straggler::kMask)
    return absl::OkStatus();
  return BadSpec(absl::StrCat("run.deterministic needs queue.straggler.policy wait or mask; ",
                              spec.straggler == Straggler::kDrop ? "drop" : "shrink",
                              " goes by the clock"));
}

absl::Status CheckTask(const TaskSpec& task) {
  if (task.tries == 0 || task.deadline <= absl::ZeroDuration())
    return BadSpec(absl::StrCat("task ", task.name, ": tries or deadline is 0"));
  if (task.granularity != Granularity::kTrajectory && task.granularity != Granularity::kGroup)
    return BadSpec(absl::StrCat("task ", task.name, ": granularity is unset"));
  const bool verdict =
      std::find(task.produces.begin(), task.produces.end(), "verdict") != task.produces.end();
  if (verdict && task.granularity != Granularity::kGroup)
    return BadSpec(
        absl::StrCat("task ", task.name, " writes verdict; its granularity must be group"));
  return absl::OkStatus();
}
}  // namespace

absl::Status Job::Check(const Spec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckSupported(spec));
  if (spec.groups_per_step == 0) return BadSpec("queue.groups_per_step is 0, wanted at least 1");
  if (spec.sources.empty()) return BadSpec("data.train names no source");
  for (const SourceSpec& source : spec.sources) {
    if (!(source.weight > 0))
      return BadSpec(
          absl::StrCat("data.train ", source.name, ": weight ", source.weight, ", wanted above 0"));
  }
  if (spec.lease < absl::Seconds(1)) return BadSpec("queue.keep.lease is below 1s");
  if (spec.durability < Durability::kMemory || spec.durability > Durability::kFull)
    return BadSpec("queue.keep.durability is unset");
  if (spec.rows_only) return absl::OkStatus();
  if (spec.group_size == 0 || spec.group_min == 0 || spec.group_min > spec.group_size) {
    return BadSpec(absl::StrCat("rollout.group: min ", spec.group_min, " of size ", spec.group_size,
                                ", wanted 1 <= min <= size"));
  }
  if (spec.max_eta_adm() > spec.max_staleness) {
    return BadSpec(absl::StrCat("queue.admission.staleness ", spec.max_eta_adm(),
                                " > queue.max_staleness ", spec.max_staleness));
  }
  if (!(spec.oversample >= 0 && spec.oversample <= 1))
    return BadSpec(absl::StrCat("queue.admission.oversample ", spec.oversample, ", wanted 0 to 1"));
  if (spec.statistic == Statistic::kStrict && spec.straggler == Straggler::kMask) {
    return BadSpec(
        "queue.straggler.policy mask needs queue.admission.statistic masked; set the policy to "
        "drop");
  }
  if (spec.member_tokens == 0 || spec.token_bytes < 8)
    return BadSpec("member_tokens is 0, or token_bytes below the 8 of a token and its log-prob");
  if (spec.statistic < Statistic::kMasked || spec.statistic > Statistic::kStrict)
    return BadSpec("queue.admission.statistic is unset");
  if (spec.filter < Filter::kNone || spec.filter > Filter::kSignal)
    return BadSpec("algorithm.advantage.group_filter is unset");
  if (spec.straggler < Straggler::kWait || spec.straggler > Straggler::kShrink)
    return BadSpec("queue.straggler.policy is unset");
  if (spec.wait <= absl::ZeroDuration()) return BadSpec("queue.straggler.wait is 0");
  if (spec.deterministic) SLUICE_RETURN_IF_ERROR(CheckDeterministic(spec));
  for (const TaskSpec& task : spec.tasks) SLUICE_RETURN_IF_ERROR(CheckTask(task));
  const bool rewarded = std::any_of(spec.tasks.begin(), spec.tasks.end(), [](const TaskSpec& task) {
    return std::find(task.produces.begin(), task.produces.end(), "task_reward") !=
           task.produces.end();
  });
  if (spec.filter == Filter::kSignal && !rewarded)
    return BadSpec(
        "algorithm.advantage.group_filter signal needs a task that produces task_reward");
  const uint64_t needed = NeededBytes(spec);
  if (needed > spec.quota_bytes) {
    return BadSpec(absl::StrCat("queue.keep.quota ", spec.quota_bytes, " B < ", needed,
                                " B = (admission staleness ", spec.max_eta_adm(), " + 2) steps x ",
                                spec.slots_per_step(), " groups x ", spec.group_size, " members x ",
                                spec.member_bytes(), " B"));
  }
  return absl::OkStatus();
}

uint64_t Job::NeededBytes(const Spec& spec) {
  return spec.rows_only
             ? 0
             : uint64_t{spec.slots_per_step()} * spec.group_bytes() * (spec.max_eta_adm() + 2);
}

Job::Job(Options options, Spec spec, std::shared_ptr<const RowSource> rows)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      queue_incarnation_(options_.queue_incarnation),
      prompts_(spec_, std::move(rows)),
      slots_(spec_.slots_per_step()),
      leases_(spec_.lease, options_.seed),
      admission_(spec_.max_staleness, spec_.admission_staleness) {
  for (const char* reason : kDropReasons) ledger_.dropped[reason] = 0;
}

template <typename T>
void Job::Finish(uint64_t call, absl::StatusOr<T> answer) {
  if (answer.ok()) {
    Answer(call, *std::move(answer));
  } else {
    Answer(call, answer.status());
  }
}

void Job::Step(const Event& event, Effects* effects) {
  now_ = event.now;
  effects_ = effects;
  ++ledger_.event;
  Dispatch(event);
  Pump();
  effects_ = nullptr;
}

void Job::Dispatch(const Event& event) {
  const Caller& caller = event.caller;
  std::visit(
      [&](const auto& input) {
        using T = std::decay_t<decltype(input)>;
        if constexpr (std::is_same_v<T, SetJob>) Finish(event.call, OnSetJob(input));
        if constexpr (std::is_same_v<T, Admit>) OnAdmit(event, input);
        if constexpr (std::is_same_v<T, LeaseTasks>) OnLeaseTasks(event, input);
        if constexpr (std::is_same_v<T, AcquireBatch>) OnAcquire(event, input);
        if constexpr (std::is_same_v<T, Put>) {
          if (absl::Status fenced = Fence(caller, WorkerRole::kNone); !fenced.ok())
            return Answer(event.call, fenced);
          if (space_ == Space::kFull) return Answer(event.call, DiskFull());
          Answer(event.call, OnPut(caller, input));
        }
        if constexpr (std::is_same_v<T, Seal> || std::is_same_v<T, Drop>) {
          if (absl::Status fenced = Fence(caller, WorkerRole::kRollout); !fenced.ok())
            return Answer(event.call, fenced);
          ItemsAnswer answer{.repeat = !input.items.empty()};
          for (const auto& item : input.items) {
            if constexpr (std::is_same_v<T, Seal>) answer.items.push_back(SealOne(caller, item));
            if constexpr (std::is_same_v<T, Drop>) answer.items.push_back(DropOne(caller, item));
            answer.repeat &= answer.items.back().repeat;
          }
          if (answer.repeat) ++counters_.repeats[std::is_same_v<T, Seal> ? "Seal" : "Drop"];
          Answer(event.call, std::move(answer));
        }
        if constexpr (std::is_same_v<T, Renew>) Finish(event.call, OnRenew(caller, input));
        if constexpr (std::is_same_v<T, Release>) Finish(event.call, OnRelease(caller, input));
        if constexpr (std::is_same_v<T, queue::Apply>) Finish(event.call, OnApply(caller, input));
        if constexpr (std::is_same_v<T, AdvanceVersion>)
          Finish(event.call, OnAdvance(caller, input));
        if constexpr (std::is_same_v<T, Durable>) Finish(event.call, OnDurable(caller, input));
        if constexpr (std::is_same_v<T, Restore>) Finish(event.call, OnRestore(caller, input));
        if constexpr (std::is_same_v<T, Retask>) Finish(event.call, OnRetask(caller, input));
        if constexpr (std::is_same_v<T, Tick>) OnTick();
        if constexpr (std::is_same_v<T, MemoryShare>) share_bytes_ = input.bytes;
        if constexpr (std::is_same_v<T, Forget>) {
          parked_.remove_if([&](const Parked& parked) { return parked.call == event.call; });
        }
        if constexpr (std::is_same_v<T, Restarted>) OnRestarted(input);
        if constexpr (std::is_same_v<T, DiskSpace>) OnDiskSpace(input);
      },
      event.input);
}

// The job itself. ---------------------------------------------------------------------------------

absl::StatusOr<SetJobAnswer> Job::OnSetJob(const SetJob& input) {
  if (set_ && input.revision < revision_) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "LOST_RACE", .current = absl::StrCat(revision_)},
                     absl::StrCat("revision ", input.revision, " is below the stored ", revision_));
  }
  SetJobAnswer answer{.repeat = set_ && input.revision == revision_,
                      .incarnation = queue_incarnation_,
                      .restored = restored_ >= 0};
  if (!answer.repeat) {
    Spec same = input.spec;
    same.max_steps = spec_.max_steps;
    if (!(same == spec_))
      return BadSpec("the spec of a running job cannot change, but for limits.max_steps");
    if (input.phase < Phase::kOpen || input.phase > Phase::kFreed) return BadSpec("phase is unset");
    set_ = true;
    revision_ = input.revision;
    spec_.max_steps = input.spec.max_steps;
    if (phase_ < Phase::kClosed && input.phase >= Phase::kClosed) Close();
    if (phase_ != input.phase) effects_->watch = true;
    phase_ = input.phase;
    SetWorkers(input.workers);
  } else {
    ++counters_.repeats["SetJob"];
  }
  answer.version = version_;
  answer.ledger = ledger_;
  return answer;
}

void Job::SetWorkers(const std::vector<Worker>& workers) {
  workers_.clear();
  for (const Worker& worker : workers) {
    workers_[worker.id] = worker;
    int64_t& fence = fence_[worker.id];
    if (worker.incarnation > fence) {
      fence = worker.incarnation;
      kept_.erase(worker.id);
      engines_.erase(worker.id);
      for (const Id16& id : leases_.HeldBy(worker.id, fence - 1))
        EndLease(id, LeaseEnd::kFenced, ReleaseReason::kLost, absl::ZeroDuration());
    }
    if (worker.role == WorkerRole::kTrainer && worker.incarnation > gang_) {
      gang_ = worker.incarnation;
      effects_->watch = true;
      for (const Id16& id : leases_.Of(LeaseKind::kBatch, gang_ - 1))
        EndLease(id, LeaseEnd::kFenced, ReleaseReason::kLost, absl::ZeroDuration());
    }
  }
  for (auto it = engines_.begin(); it != engines_.end();)
    it = workers_.contains(it->first) ? std::next(it) : engines_.erase(it);
  // Fenced callers that wait are told at once.
  for (auto it = parked_.begin(); it != parked_.end();) {
    const bool trainer = std::holds_alternative<AcquireBatch>(it->input);
    const absl::Status fenced =
        Fence(it->caller, trainer ? WorkerRole::kTrainer : WorkerRole::kNone);
    if (!fenced.ok()) Answer(it->call, fenced);
    it = fenced.ok() ? std::next(it) : parked_.erase(it);
  }
}

// What lives is dropped; applied work stays, it may still become durable.
void Job::Close() {
  for (auto it = batches_.begin(); it != batches_.end();) {
    if (it->second.applied) {
      ++it;
      continue;
    }
    for (const FrozenGroup& frozen : it->second.groups) DropGroup(*Find(frozen.id), "closed");
    if (it->second.lease) leases_.End(*it->second.lease, LeaseEnd::kReleased);
    it = batches_.erase(it);
  }
  std::vector<Group*> live;
  for (const auto& [ordinal, group] : groups_) {
    if (group->state != GroupState::kInBatch) live.push_back(group.get());
  }
  std::sort(live.begin(), live.end(), [](const Group* a, const Group* b) { return a->id < b->id; });
  for (Group* group : live) DropGroup(*group, "closed");
  next_cut_ = version_;
}

Group* Job::Find(const GroupId& id) {
  const auto it = groups_.find(id.ordinal);
  return it == groups_.end() || it->second->id != id ? nullptr : it->second.get();
}

const Group* Job::Find(const GroupId& id) const {
  const auto it = groups_.find(id.ordinal);
  return it == groups_.end() || it->second->id != id ? nullptr : it->second.get();
}

const Group* Job::group(uint64_t ordinal) const {
  const auto it = groups_.find(ordinal);
  return it == groups_.end() ? nullptr : it->second.get();
}

}  // namespace sluice::queue
