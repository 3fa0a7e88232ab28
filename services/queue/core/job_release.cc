#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Release: a worker gives leases back, or the controller takes those of a worker that is gone.
namespace sluice::queue {
namespace {
constexpr size_t kWhyBytes = 1024;
}  // namespace

absl::StatusOr<ReleaseAnswer> Job::OnRelease(const Caller& caller, const Release& input) {
  if (input.reason < ReleaseReason::kDrain || input.reason > ReleaseReason::kLost)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_REASON",
                 "reason is unset; Release needs one");

  ReleaseAnswer answer;
  std::vector<Id16> leases;
  if (!input.worker.empty()) {
    // The controller alone calls with incarnation 0 (JobRef in common.proto).
    if (caller.incarnation != 0)
      return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
                   "only the controller releases another worker's leases");
    leases = leases_.HeldBy(input.worker, input.incarnation);
    engines_.RemoveUpTo(input.worker, input.incarnation);
    const auto listed = callers_.listed().find(input.worker);
    if (listed == callers_.listed().end() || listed->second.incarnation <= input.incarnation)
      tasks_.ForgetWorker(input.worker);
  } else {
    SLUICE_RETURN_IF_ERROR(callers_.CheckCaller(caller, WorkerRole::kNone));
    for (const Id16& id : input.leases) {
      const LeaseEntry* entry = leases_.Find(id);
      if (entry != nullptr && entry->worker == caller.worker) leases.push_back(id);
    }
    answer.repeat = leases.empty() && !input.leases.empty();
    if (answer.repeat) ++counters_.repeats["Release"];
  }

  for (const Id16& id : leases) {
    EndLease(id, LeaseEnd::kReleased, input.reason, input.not_before, input.cause);
    ++answer.released;
  }
  return answer;
}

void Job::EndLease(const Id16& id, LeaseEnd how, ReleaseReason reason, absl::Duration not_before,
                   const std::string& why) {
  // This lease may have ended together with another one of the same list: a task that is out of
  // tries drops its member or group, with all their leases.
  if (leases_.Find(id) == nullptr) return;

  const LeaseEntry entry = *leases_.Find(id);
  leases_.End(id, how);
  switch (entry.kind) {
    case LeaseKind::kBatch: batches_.Find(entry.batch)->lease.reset(); return;
    case LeaseKind::kTrajectory:
      groups_.ReleaseMember(groups_.at(entry.group), entry.member, now_);
      return;
    case LeaseKind::kTask: {
      const bool use_try = reason == ReleaseReason::kFault || reason == ReleaseReason::kLost;
      const char* const what =
          how == LeaseEnd::kExpired ? " did not answer in time" : " gave it back";
      // The text may be any bytes, and is shown to people.
      const std::string cause = absl::StrCat(entry.worker, what, why.empty() ? "" : ": ",
                                             absl::CHexEscape(why.substr(0, kWhyBytes)));
      FailTask(groups_.at(entry.group), entry.member, entry.task, use_try, not_before, cause);
      return;
    }
  }
}

}  // namespace sluice::queue
