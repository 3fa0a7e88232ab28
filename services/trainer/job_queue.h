#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/queue_client.h"
#include "common/rl/version.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "services/trainer/batch_reader.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/lineage.h"
#include "services/trainer/job_context.h"

namespace sluice::trainer {

// The experience queue as one training job uses it: Restore once, then batch after batch is read
// ahead, trained by the caller, and reported by Apply.
//
// At each Apply the trainer and the queue compare what they believe was trained: the CRC32C of the
// batch's canonical bytes, and the hash of the ledger over all steps.
//
// Used by the job's thread. MoveTo(), CancelReading() and CancelAll() may be called from any
// thread, at any time.
class JobQueue {
 public:
  explicit JobQueue(JobContext* job) : job_(job) {}

  absl::Status Connect();
  // The queue has this address now. From any thread, at any time.
  void MoveTo(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);

  struct Restored {
    // The newest version that engines were told of. Nullopt if there is none.
    std::optional<PolicyVersion> published;
    // If replay_end is above the restored version V, the queue hands out the batches of the steps
    // [V, replay_end) again as they were.
    int64_t replay_end = 0;
  };
  // Sends the queue back to `state`, whose checkpoint is at `checkpoint` and holds `cursor`; both
  // are empty if the run starts from the model. With `requeue`, batches after it are not handed out
  // again as they were; their groups compete for places in new ones.
  // DATA_LOSS: the queue's ledger at that version is not that of `state`.
  absl::StatusOr<Restored> Restore(const std::string& cursor, const std::string& checkpoint,
                                   const TrainState& state, bool requeue);

  // Begins to read batches ahead, and to renew their leases.
  void StartReading(BatchReader::Options options);
  // Waits for the next slice of batch k. Errors are those of BatchReader::Next().
  absl::StatusOr<BatchReader::Slice> NextSlice(int64_t k);

  // A batch whose step is done.
  struct TrainedBatch {
    int64_t k = 0;
    uint32_t groups = 0;
    std::string lease;
    uint32_t crc32c = 0;                // As the queue announced it.
    std::vector<LineageEntry> lineage;  // What was trained on.
    std::string skipped;                // Why the step did not change the weights; empty if it did.
    // How far off-policy its tokens were (queue.v1.ApplyRequest), if the step has these numbers.
    std::optional<double> ess, kl;
  };
  struct Applied {
    std::string ledger_hash;  // After step k, 32 bytes.
    std::string cursor;       // Empty unless it was asked for.
  };
  // Tells the queue that the step is done. `ledger_hash` is the ledger's hash before the step. A
  // batch whose lease has ended meanwhile, as it does while this process is paused, is acquired
  // again.
  // DATA_LOSS: what was trained on is not what the queue handed out.
  absl::StatusOr<Applied> Apply(const TrainedBatch& batch, const std::string& ledger_hash,
                                bool want_cursor);
  // Repeats the last Apply to get its cursor. Nullopt if nothing was applied yet.
  absl::StatusOr<std::optional<std::string>> CursorOfLastApply();

  // Ends the reading. With `release`, batches that were read ahead go back to the queue at once:
  // the next incarnation need not wait until their leases expire.
  void StopReading(bool release);
  void StopRenewing() { leases_.reset(); }

  void CancelReading() { cancel_reading_.Trigger(); }
  void CancelAll() { cancel_all_.Trigger(); }

  QueueClient* client() { return client_.get(); }

 private:
  // Returns a new lease of the batch.
  absl::StatusOr<std::string> AcquireAgain(const TrainedBatch& batch);

  JobContext* const job_;
  rpc::Cancel cancel_reading_;  // Ends waits for data.
  rpc::Cancel cancel_all_;      // Ends every call.
  Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);  // Empty: that of the configuration.
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
  // Two clients, so that a wait for data can be cancelled while Apply and Durable still work.
  std::unique_ptr<QueueClient> client_, reading_client_;
  std::unique_ptr<LeaseKeeper> leases_;
  std::unique_ptr<BatchReader> reader_;
  std::optional<queue::v1::ApplyRequest> last_apply_;
};

}  // namespace sluice::trainer
