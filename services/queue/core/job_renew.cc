#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Renew: a worker is alive, keeps its leases, and (a rollout) tells which version it holds.
namespace sluice::queue {

absl::StatusOr<RenewAnswer> Job::OnRenew(const Caller& caller, const Renew& input) {
  const WorkerRole role = callers_.RoleOf(caller.worker);
  SLUICE_RETURN_IF_ERROR(callers_.CheckCaller(caller, role));

  RenewAnswer answer{.ttl = leases_.ttl()};
  if (input.leases.empty()) {
    for (const Id16& id : leases_.HeldBy(caller.worker, caller.incarnation))
      leases_.Renew(id, now_);
  }
  for (const Id16& id : input.leases) {
    // All ranks of a trainer group share a batch's lease.
    const LeaseEntry* entry = leases_.Find(id);
    const bool mine = entry != nullptr && entry->incarnation == caller.incarnation &&
                      (entry->worker == caller.worker ||
                       (entry->kind == LeaseKind::kBatch && role == WorkerRole::kTrainer));
    if (mine) {
      leases_.Renew(id, now_);
    } else {
      answer.lost.push_back(id);
    }
  }

  tasks_.NoteWorkerCall(caller.worker, now_);
  if (role != WorkerRole::kRollout) return answer;
  for (const Loaded& loaded : input.loaded) {
    if (loaded.policy != 0)
      return Error(
          absl::StatusCode::kInvalidArgument, "BAD_POLICY",
          absl::StrCat("loaded names policy ", loaded.policy, ", but the job has only policy 0"));
    engines_.SetLoaded(caller.worker, caller.incarnation, loaded);
  }
  engines_.Renew(caller.worker, now_);
  return answer;
}

}  // namespace sluice::queue
