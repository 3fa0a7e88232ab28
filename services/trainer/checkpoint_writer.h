#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/one_slot_worker.h"

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
  // Called on the `checkpoint` thread once the queue knows of the checkpoint at `path`.
  using Done =
      std::function<void(const std::string& path, const TrainState& state, double seconds)>;

  // `previous` is the path of the checkpoint from which the run goes on; empty if none. `store`,
  // `queue` and `clock` outlive the writer.
  CheckpointWriter(CheckpointStore* store, QueueClient* queue, Clock* clock, std::string previous,
                   Done done);
  // Cancel the queue's calls before. A write that is under way is finished; one that waits is
  // dropped.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits until the previous checkpoint is written, then hands over `contents` and returns;
  // contents.previous is set here. Returns the error with which writing has failed, if it has;
  // nothing is written after it.
  absl::Status Write(CheckpointContents contents);
  // Waits until all that was handed over is written. Errors are those of Write().
  absl::Status Flush() { return worker_.Flush(); }
  absl::Status status() const { return worker_.status(); }

 private:
  absl::Status WriteNow(CheckpointContents contents);

  CheckpointStore* const store_;
  QueueClient* const queue_;
  Clock* const clock_;
  const Done done_;
  std::string previous_;  // Used by the worker's thread alone.

  OneSlotWorker worker_;  // Its thread reads the fields above.
};

}  // namespace sluice::trainer
