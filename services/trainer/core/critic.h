#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/algorithms/value_loss.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/checkpoint/tensor_source.h"
#include "common/models/train_model.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// The critic of GAE: predicts for each token of the policy, from the state before it, the rest of
// the reward (its value). It is a model of the policy's shape, but its head has one output, and an
// AdamW of its own. Its numbers are computed as those of the policy are (`settings.dtype`), but for
// the head and the loss, which are in fp32. In a mixture-of-experts model its own router chooses.
//
// Several ranks share the work as they do for the policy. Whatever else of the policy they share
// out, of the critic it is at most the moments.
//
// Not thread-safe.
class Critic {
 public:
  // The config of the model of a critic: that of the policy, without an output head of its own.
  static ModelConfig ConfigOf(ModelConfig policy);
  // `model` has that config. `settings` and `ranks` outlive the critic.
  Critic(std::unique_ptr<TrainModel> model, const Settings& settings, Ranks* ranks);

  // Starts from the weights of a model of the policy's shape, with a head that predicts 0, and no
  // updates done. Ranks other than 0 pass null.
  // INVALID_ARGUMENT: the weights do not have a tensor of the critic.
  absl::Status Load(const TensorSet* weights);
  // Goes on from what optimizer().TakeSnapshots() gave. Ranks other than 0 pass null.
  // INVALID_ARGUMENT: a tensor is missing or has another shape.
  absl::Status Restore(const TensorSource* parameters, const TensorSource* moments,
                       int64_t updates);

  // Sets Trajectory::values of all trajectories with trained tokens, from the weights as they are
  // now. The ranks share the work, and each then has all of it.
  absl::Status SetValues(std::vector<Group>& groups);
  // Runs forward and backward of the value loss of a micro-batch, without the denominator of the
  // update, and adds its tokens to *stats.
  absl::Status AddGradients(MicroBatch& batch, ValueStats* stats);

  Optimizer& optimizer() { return optimizer_; }
  // In the order of their names: those of the policy without the output head, and value_head.bias
  // [1] and value_head.weight [1, hidden size].
  absl::Span<const TrainModel::Parameter> parameters() const { return parameters_; }

 private:
  // Values [N] of the rows of a batch, in fp32, with gradients unless there is a NoGradGuard.
  absl::StatusOr<at::Tensor> Predict(MicroBatch& batch);

  const Settings& settings_;
  Ranks* const ranks_;
  const std::unique_ptr<TrainModel> model_;
  const std::vector<TrainModel::Parameter> parameters_;
  const at::Tensor bias_, weight_;  // Of the head; they are in parameters_.
  Optimizer optimizer_;
};

}  // namespace sluice::trainer
