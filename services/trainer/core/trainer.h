#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/checkpoint/tensor_source.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/held_out.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/step.h"

namespace sluice {
class Clock;
class Collective;
}  // namespace sluice

namespace sluice::trainer {

// The critic in a checkpoint.
struct SavedCritic {
  const TensorSource* parameters = nullptr;
  const TensorSource* moments = nullptr;
  int64_t updates = 0;
};

// A policy under training: its parameters, the optimizer's state, and the training step, which
// turns version k into version k + 1.
//
//   for each batch k: Add(k, slice) once or more; Finish(k) -> StepResult
//
// The gradient of a step is one sum over all its trained tokens, divided by counts of the whole
// step, however the batch is cut into slices and micro-batches. If Streams(settings), Add() runs
// forward and backward at once; the factors that need the whole step (the pooled scale of the
// advantages, the denominators) multiply the accumulated gradients in Finish(). Else Finish() does
// all the work. With one update per batch, the log-probs of the proximal policy are those of the
// update's own forward pass, bit for bit, so they are not computed separately.
//
// Several processes, the ranks of a Collective, can train one model together (ranks.h). Rank 0 is
// used as if it were alone. The others call Follow(), which does what rank 0 does. An error of the
// collective on one rank ends the group: all ranks must be made anew then.
//
// Only one thread at a time may use it. This header does not include LibTorch.
class Trainer {
 public:
  // Makes a trainer whose weights are zeros: call Load() or Restore() next. `clock` outlives the
  // trainer, and so does `collective`, which is null if there is one rank. `snapshots` is a second
  // group of the same ranks, over which checkpoints are read while training goes on; it is needed
  // if the ranks share out the moments. `teacher` is the teacher's configuration, if
  // settings.teacher; it must have the vocabulary of the model.
  // INVALID_ARGUMENT: Validate() refuses the settings.
  // UNIMPLEMENTED: models of this architecture cannot be trained.
  // Of settings.micro_batch_tokens the ranks take the smallest that one of them has.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      Settings settings, const ModelConfig& config, Clock* clock, Collective* collective = nullptr,
      std::shared_ptr<Collective> snapshots = nullptr, const ModelConfig* teacher = nullptr);
  ~Trainer();

  // Of ranks other than 0: does what rank 0 does, and returns when that has become impossible: with
  // the error of a step, or of the collective, which includes that rank 0 has ended. Calls
  // works(false) before it waits for rank 0, and works(true) when there is something to do.
  absl::Status Follow(const std::function<void(bool now)>& works);

  // Of ranks other than 0, before Follow(): the folder in which rank 0 writes checkpoints, as this
  // rank sees it. A rank that has none, or sees another one, leaves the writing to rank 0.
  void SetCheckpointDir(const std::string& dir);

  // Starts from `weights` with no updates done. A critic begins with `critic`, or with `weights` if
  // that is null.
  // INVALID_ARGUMENT: names or shapes are not those of the model.
  absl::Status Load(const TensorSet& weights, const TensorSet* critic = nullptr);
  // Goes on from a checkpoint. Errors are those of Load() and Optimizer::Restore().
  // FAILED_PRECONDITION: in low-rank training, the checkpoint is not of the initial weights.
  // INVALID_ARGUMENT: the job has a critic, and `critic` lacks it.
  absl::Status Restore(const TensorSet& weights, const TensorSource& moments, int64_t updates,
                       int64_t skips_in_a_row, const SavedCritic& critic = {});
  // Goes on with this coefficient of the KL in the reward, which advantage.kl_target adapts; call
  // it after Restore(). Else the coefficient is that of the settings.
  absl::Status SetRewardKl(double coefficient);
  // Sets the initial weights. It must be called before Load() and Restore() if
  // KeepsInitialWeights(settings).
  absl::Status SetReference(const TensorSet& weights);
  // Sets the teacher's weights. It must be called before the first step if settings.teacher.
  absl::Status SetTeacher(const TensorSet& weights);

  // Adds groups to batch k.
  // INVALID_ARGUMENT, FAILED_PRECONDITION STALE: the batch must not be trained on (sequences.h).
  absl::Status Add(int64_t k, std::vector<Group> groups);
  // Ends the step. A step is skipped if there is nothing to train on, or a number is not finite.
  // This is no error: it leaves parameters and optimizer as they were.
  absl::StatusOr<StepResult> Finish(int64_t k);
  // Drops what was added since the last Finish().
  void Abandon();

  // Scores rows that are not trained on, of kinds sft and dpo (held_out.h); no batch may be open.
  absl::StatusOr<HeldOutSums> Evaluate(std::vector<Group> groups);

  // Copies of the parameters. F32 gives the parameters themselves. settings.dtype gives them
  // rounded to nearest even, as the forward pass uses them and the engines must hold them.
  absl::StatusOr<TensorSet> Weights(DType dtype = DType::kF32) const;

  // The parameters in fp32 and AdamW's moments, as they are now, for a checkpoint that is written
  // while training goes on. Only what the next update overwrites before it is read takes memory
  // (snapshot.h). Each moment is read once, from its first element to its last.
  // The same of the critic; null if the job has none.
  struct Sources {
    std::shared_ptr<const TensorSource> model, moments;
    std::shared_ptr<const TensorSource> critic, critic_moments;
  };
  absl::StatusOr<Sources> TakeSnapshot();
  int64_t updates() const;
  int64_t critic_updates() const;  // 0 if the job has no critic.
  double reward_kl() const;        // The coefficient of the KL in the reward of the next step.
  int64_t skips_in_a_row() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Sets the function that says how many threads one operation of a step may use; it is called before
// each operation. The number of threads changes no bit of the result. It holds for the whole
// process and must be set before the first Trainer is made.
void SetComputeThreads(std::function<int()> threads);

}  // namespace sluice::trainer
