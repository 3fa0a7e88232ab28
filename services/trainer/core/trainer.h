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
#include "services/trainer/core/experience.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/step.h"

namespace sluice {
class Clock;
}

namespace sluice::trainer {

// A policy under training: parameters, optimizer state, and the step that makes version k + 1 of
// version k.
//
//   for each batch k: Add(k, slice) once or more; Finish(k) -> StepResult
//
// A step's gradient is one sum over all its trained tokens, divided by global counts, whatever the
// slices and micro-batches. Where Streams(settings) holds, Add() runs forward and backward at once,
// and factors of the whole step (the pooled scale of the advantages, the denominators) multiply the
// accumulated gradients in Finish(); else Finish() does all the work. One update per batch: the
// forward pass of the update itself serves as the recomputation of the proximal policy, bit for
// bit.
//
// Used by one thread at a time. LibTorch stays behind this header.
class Trainer {
 public:
  // The weights start as zeros: Load() or Restore() comes next. `clock` outlives the trainer.
  // INVALID_ARGUMENT: settings that Validate() refuses. UNIMPLEMENTED: an architecture without a
  // training execution.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Settings& settings,
                                                         const ModelConfig& config, Clock* clock);
  ~Trainer();

  // Starts from `weights`: no updates done. INVALID_ARGUMENT: names or shapes are not the model's.
  absl::Status Load(const TensorSet& weights);
  // Goes on from a checkpoint.
  absl::Status Restore(const TensorSet& weights, const TensorSet& moments, int64_t updates,
                       int64_t skips_in_a_row);
  // The frozen policy that the KL term is taken to; needed where settings.reference.
  absl::Status SetReference(const TensorSet& weights);

  // INVALID_ARGUMENT, FAILED_PRECONDITION STALE: the batch must not be trained on (sequences.h).
  absl::Status Add(int64_t k, std::vector<Group> groups);
  // Ends the step. A skipped step (13.6 of the algorithms: nothing to train on, or a number that is
  // not finite) leaves parameters and optimizer as they were, and is no error.
  absl::StatusOr<StepResult> Finish(int64_t k);
  // Forgets what was added since the last Finish().
  void Abandon();

  // Copies. In F32 the parameters themselves, which a checkpoint holds; in settings.dtype what the
  // forward pass runs on, rounded to nearest even, which engines are to hold.
  absl::StatusOr<TensorSet> Weights(DType dtype = DType::kF32) const;
  absl::StatusOr<TensorSet> Moments() const;
  int64_t updates() const;
  int64_t skips_in_a_row() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Threads that one operation of a step may use, asked before each. Their number changes no bit. Of
// the process; before the first Trainer.
void SetComputeThreads(std::function<int()> threads);

}  // namespace sluice::trainer
