#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "services/trainer/checkpoint_writer.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/forks.h"
#include "services/trainer/core/lineage.h"
#include "services/trainer/job_context.h"
#include "services/trainer/metrics.h"

namespace sluice::trainer {

// The checkpoints of one training job: finds the one to go on from, knows when the next is due, and
// has it written beside the next steps.
//
// Used by the job's thread, but for what says otherwise.
class JobCheckpoints {
 public:
  // `metrics` outlives this.
  JobCheckpoints(JobContext* job, Metrics* metrics) : job_(job), metrics_(metrics) {}

  // Opens the folder. `model` gives the configuration and tokenizer files of the checkpoints, and
  // the types of the tensors in model.safetensors.
  absl::Status Open(const ModelDir& model);
  // Finds the checkpoint to go on from. Nullopt: the run starts from the model. Damaged
  // checkpoints, and those of an earlier job of this name, are reported as events.
  absl::StatusOr<std::optional<Checkpoint>> FindNewest();
  // Whether a run that goes on from `found` begins at a fork that no checkpoint has followed. Then
  // the queue must not hand out again the batches of the branch that was given up.
  bool BeginsAtFork(const std::optional<Checkpoint>& found) const;
  std::vector<Fork> forks() const ABSL_LOCKS_EXCLUDED(forks_mu_);

  // The newest version up to `most` that the run can go back to: that of a checkpoint on its
  // branch, or 0, the model.
  int64_t FindCovered(int64_t most) const;
  // Whether there is a checkpoint of `version`, or it is 0. May be called from any thread once the
  // run has begun.
  // NOT_FOUND GONE: there is none; the message names those that there are.
  absl::Status CheckCovered(int64_t version) const;
  // Notes that the next incarnation goes on from `version`, and why. It is on disk before this
  // returns. Checkpoints that this run still writes above `version` push out none that are left.
  // May be called from any thread once the run has begun.
  absl::Status AddFork(int64_t version, PolicyVersion withdrawn, const std::string& cause)
      ABSL_LOCKS_EXCLUDED(forks_mu_);
  absl::StatusOr<Checkpoint> ReadVersion(int64_t version) const {
    return store_->ReadVersion(version);
  }

  // From here on checkpoints are written. `previous` is the path of the checkpoint from which the
  // run goes on, and `version` its version. `previous` is empty if there is none.
  void StartWriting(QueueClient* queue, std::string previous, int64_t version);

  // Whether a checkpoint of `version` is due, by limits.max_steps, checkpoint.every_steps or
  // checkpoint.every.
  bool IsDue(int64_t version) const;
  // Whether the newest checkpoint, written or under way, is that of `version`.
  bool HasNewest(int64_t version) const { return newest_ == version; }

  // Notes what a step was trained on; it goes into the next checkpoint.
  void AddLineage(const std::vector<LineageEntry>& entries);
  // Hands a checkpoint over to the writer. Waits while the previous one is being written. The
  // lineage of `contents` is filled in here.
  absl::Status Write(CheckpointContents contents);

  // Returns how long the last Write() has waited, in seconds, and sets that to 0.
  double TakeSecondsWaited() { return std::exchange(seconds_waited_, 0); }

  // Waits until the last checkpoint is written and the queue knows of it.
  absl::Status Flush() { return writer_->Flush(); }
  absl::Status status() const { return writer_->status(); }
  // Cancel the queue's calls before.
  void StopWriting() { writer_.reset(); }

 private:
  void RaiseEarlierJobEvent();
  // Versions of the checkpoints on the job's branch, oldest first.
  std::vector<int64_t> ListOnBranch() const;

  JobContext* const job_;
  Metrics* const metrics_;
  bool IsOnBranch(const PolicyVersion& version) const ABSL_LOCKS_EXCLUDED(forks_mu_);
  mutable Mutex forks_mu_;
  std::optional<Forks> forks_ ABSL_GUARDED_BY(forks_mu_);  // Set by Open().
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::string lineage_tail_;  // Lines since the newest checkpoint.
  int64_t newest_ = -1;       // Version of the newest checkpoint; -1: there is none.
  absl::Duration newest_at_;  // When it was handed over, or the run began. Monotonic.
  double seconds_waited_ = 0;
};

}  // namespace sluice::trainer
