#include "services/queue/core/job.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

// SetJob: the controller sets the phase and the list of workers of the job.
namespace sluice::queue {
namespace {
absl::Status BadJob(absl::string_view message) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_SPEC", .catalogue = "SLUICE-QUEUE-0002"}, message);
}
}  // namespace

absl::StatusOr<SetJobAnswer> Job::OnSetJob(const SetJob& input) {
  if (set_ && input.revision < revision_) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "LOST_RACE", .current = absl::StrCat(revision_)},
                     absl::StrCat("revision ", input.revision, " is below the stored ", revision_));
  }

  SetJobAnswer answer{.repeat = set_ && input.revision == revision_,
                      .incarnation = queue_incarnation_,
                      .restored = restored_ >= 0};
  if (answer.repeat) {
    ++counters_.repeats["SetJob"];
  } else {
    Spec same = input.spec;
    same.max_steps = spec_.max_steps;
    if (!(same == spec_))
      return BadJob("the spec of a running job cannot change, but for limits.max_steps");
    if (input.phase < Phase::kOpen || input.phase > Phase::kFreed) return BadJob("phase is unset");

    set_ = true;
    revision_ = input.revision;
    spec_.max_steps = input.spec.max_steps;
    if (phase_ < Phase::kClosed && input.phase >= Phase::kClosed) Close();
    if (phase_ != input.phase) effects_->watch = true;
    phase_ = input.phase;
    SetWorkers(input.workers);
  }
  answer.version = batches_.version();
  answer.ledger = ledger_;
  return answer;
}

void Job::SetWorkers(const std::vector<Worker>& workers) {
  const auto end_leases = [&](const std::vector<Id16>& leases) {
    for (const Id16& id : leases)
      EndLease(id, LeaseEnd::kFenced, ReleaseReason::kLost, absl::ZeroDuration());
  };

  callers_.ClearList();
  for (const Worker& worker : workers) {
    const Callers::Change change = callers_.AddToList(worker);
    if (change.newer_worker) {
      engines_.Remove(worker.id);
      tasks_.ForgetWorker(worker.id);
      end_leases(leases_.HeldBy(worker.id, worker.incarnation - 1));
    }
    if (change.newer_trainers) {
      effects_->watch = true;
      end_leases(leases_.HeldOfKind(LeaseKind::kBatch, callers_.trainer_incarnation() - 1));
    }
  }
  engines_.RemoveUnlisted(callers_.listed());
  tasks_.ForgetUnlisted(callers_.listed());

  // Callers that wait and are fenced now are told at once.
  parked_.RemoveIf([&](const ParkedCalls::Call& call) {
    const bool trainer = std::holds_alternative<AcquireBatch>(call.input);
    const absl::Status fenced =
        callers_.CheckNotFenced(call.caller, trainer ? WorkerRole::kTrainer : WorkerRole::kNone);
    if (!fenced.ok()) Answer(call.call, fenced);
    return !fenced.ok();
  });
}

// Drops all groups that are not trained. Trained batches stay: they may still become durable.
void Job::Close() {
  for (const auto& [k, batch] : batches_.batches()) {
    if (batch.applied) continue;
    for (const FrozenGroup& frozen : batch.groups) DropGroup(*groups_.Find(frozen.id), "closed");
    if (batch.lease) leases_.End(*batch.lease, LeaseEnd::kReleased);
  }
  for (const Group* group : groups_.OldestFirst()) {
    if (group->state != GroupState::kInBatch) DropGroup(*group, "closed");
  }
  batches_.EraseUntrained();
}

}  // namespace sluice::queue
