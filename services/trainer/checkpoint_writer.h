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

// Writes checkpoints beside the next steps, one at a time, and tells the queue of each that is safe
// (Durable).
//
// Owns one thread, `checkpoint`. Thread-safe.
class CheckpointWriter {
 public:
  // What a checkpoint is made of; the copies are the writer's from now on.
  struct Contents {
    std::shared_ptr<const TensorSet> model;
    TensorSet optimizer;
    TrainState state;
    std::string cursor;
    std::string lineage_tail;  // Lines since the checkpoint written or found before.
  };
  // Runs on the `checkpoint` thread once the queue has heard of the checkpoint at `path`.
  using Done =
      std::function<void(const std::string& path, const TrainState& state, double seconds)>;

  // `previous`: the checkpoint the run goes on from; empty: none. `store`, `queue` and `clock`
  // outlive the writer.
  CheckpointWriter(CheckpointStore* store, QueueClient* queue, Clock* clock, std::string previous,
                   Done done);
  // Cancel the queue's calls before; a write under way is finished.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits for the one before, then returns at once. An error is why writing has failed for good.
  absl::Status Write(Contents contents) ABSL_LOCKS_EXCLUDED(mu_);
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
  std::string previous_;  // The thread's own.

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<Contents> waiting_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
