#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/train_model.h"
#include "common/optim/schedule.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// AdamW over a model's parameters, with gradients and moments in flat fp32 buffers: one pass to
// zero, one for the norm.
//
// Gradients are sums over micro-batches without the step's denominator; Update() brings the
// factors. There are two accumulators, so that terms whose factors are known only when the batch
// closes can be kept apart.
class Optimizer {
 public:
  // `model` outlives the optimizer, which writes its parameters in place.
  Optimizer(TrainModel* model, const OptimizerSettings& settings);

  // Backward passes from here on add to accumulator `index`, 0 or 1.
  void Accumulate(int index);
  void ZeroGrad();

  struct Outcome {
    bool applied = false;  // False: the gradient is not finite, and nothing has changed.
    double grad_norm = 0;  // Before clipping.
    double lr = 0;
  };
  // One AdamW update with the gradient scale0 * accumulator 0 + scale1 * accumulator 1, clipped to
  // the global norm.
  Outcome Update(double scale0, double scale1);

  int64_t updates() const { return updates_; }  // t of AdamW, s of the schedule.

  // The moments, as tensors m.NAME and v.NAME with the parameters' shapes.
  absl::StatusOr<TensorSet> Moments() const;
  // INVALID_ARGUMENT: a moment is missing or has another shape.
  absl::Status Restore(const TensorSet& moments, int64_t updates);
  void Reset();  // Moments of zero, no updates.

 private:
  struct Slot {
    const TrainModel::Parameter* parameter;
    int64_t offset, size;  // Elements in the flat buffers.
  };
  struct Flat {
    at::Tensor whole;               // [n] with padding of zeros between the slots
    std::vector<at::Tensor> views;  // By slot, in the parameter's shape.
  };
  Flat MakeFlat() const;
  bool used(int index) const { return !grads_[index].views.empty(); }

  const OptimizerSettings settings_;
  Schedule schedule_;
  std::vector<Slot> slots_;
  int64_t flat_size_ = 0;
  Flat grads_[2];  // The second is made when first used.
  at::Tensor m_, v_;
  int64_t updates_ = 0;
};

}  // namespace sluice::trainer
