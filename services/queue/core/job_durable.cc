#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Durable: a checkpoint of a version is complete, so what was trained up to it can be freed.
namespace sluice::queue {

absl::StatusOr<DurableAnswer> Job::OnDurable(const Caller& caller, const Durable& input) {
  SLUICE_RETURN_IF_ERROR(callers_.CheckNotFenced(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(CheckRestored());
  if (input.version <= batches_.durable()) {
    ++counters_.repeats["Durable"];
    return DurableAnswer{.repeat = true};
  }

  SLUICE_RETURN_IF_ERROR(callers_.CheckListed(caller, WorkerRole::kTrainer));
  if (input.version > batches_.version())
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                 absl::StrCat("version ", input.version, " cannot be durable: only ",
                              batches_.version(), " steps are trained"));
  if (batches_.HashAt(input.version) != input.hash) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat("the ledger hash of checkpoint ", input.checkpoint,
                              " is not the queue's hash of version ", input.version));
  }
  MakeDurable(input.version);
  return DurableAnswer{};
}

void Job::MakeDurable(int64_t version) {
  ledger_.durable_version = version;
  for (const Batch& batch : batches_.MakeDurable(version)) {
    for (const FrozenGroup& frozen : batch.groups) {
      ledger_.applied -= static_cast<int64_t>(frozen.members.size());
      ledger_.durable += static_cast<int64_t>(frozen.members.size());
      groups_.Erase(*groups_.Find(frozen.id));
    }
  }
}

}  // namespace sluice::queue
