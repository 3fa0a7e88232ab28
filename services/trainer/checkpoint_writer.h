#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "services/trainer/core/checkpoint.h"

namespace sluice {
class Clock;
class QueueClient;
}  // namespace sluice

namespace sluice::trainer {

// Writes checkpoints while the next steps are trained, one at a time, and tells the queue of each
// one that is on disk (Durable).
//
// Owns one thread, `checkpoint`. Thread-safe.
class CheckpointWriter {
 public:
  // The contents of a checkpoint. They are copies, which belong to the writer.
  struct Contents {
    std::shared_ptr<const TensorSet> model;
    TensorSet optimizer;
    TrainState state;
    std::string cursor;
    std::string lineage_tail;  // Lines since the checkpoint before.
  };
  // Called on the `checkpoint` thread once the queue knows of the checkpoint at `path`.
  using Done =
      std::function<void(const std::string& path, const TrainState& state, double seconds)>;

  // `previous` is the path of the checkpoint from which the run goes on; empty if none. `store`,
  // `queue` and `clock` outlive the writer.
  CheckpointWriter(CheckpointStore* store, QueueClient* queue, Clock* clock, std::string previous,
                   Done done);
  // Cancel the queue's calls before. A write that is under way is finished; one that waits is
  // dropped.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits until the checkpoint before is written, then hands over `contents` and returns. The error
  // is the one with which writing has failed; nothing is written after it.
  absl::Status Write(Contents contents) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all that was handed over is written. Errors as of Write().
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Thread;
  void Run();
  absl::Status WriteOne(const Contents& contents);

  CheckpointStore* const store_;
  QueueClient* const queue_;
  Clock* const clock_;
  const Done done_;
  std::string previous_;  // Used by the thread alone.

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<Contents> waiting_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
