#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_source.h"
#include "common/models/train_model.h"
#include "common/optim/schedule.h"
#include "services/trainer/core/lora.h"
#include "services/trainer/core/model_shards.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/shard_exchange.h"
#include "services/trainer/core/snapshot.h"

namespace sluice::trainer {

// AdamW over the parameters of a model: the policy, or its critic. Gradients and moments are in
// flat buffers, so one pass zeroes all gradients and one pass computes their norm. Gradients are
// fp32; the moments are fp32 or bf16 (OptimizerSettings::moments).
//
// Gradients are sums over micro-batches without the step's denominator; Update() applies the
// factors. There are several accumulators, because some terms of the loss have different factors
// that are known only when the batch is complete. Each is allocated when it is first used.
//
// Several ranks (ranks.h) add up their gradients in Update() and make the same update. If they
// share the moments, each rank has those of one equal part of the flat buffer, updates the
// parameters of that part, and sends them to the others. All ranks then make the same calls. With
// ModelShards each has only that part of the gradients too, which the passes have added up, and
// perhaps of the parameters, which it then sends to nobody.
//
// It can keep a running average of the parameters in a second model (PPO-EWMA, proximal.h). With
// low-rank training (lora.h) AdamW works on the factors, and the model's weights follow.
//
// Not thread-safe.
class Optimizer {
 public:
  static constexpr int kAccumulators = 4;

  // The running average that is kept in a second model: the model's parameters, in the order of
  // those that are trained, and the beta of the average.
  struct Average {
    absl::Span<const TrainModel::Parameter> parameters;  // Empty: no average is kept.
    double decay;
    ModelShards* shards;  // Of parameters in parts, as those that are trained; else null.
  };
  // The tensors of `parameters`, which are updated in place, outlive the optimizer; so do `ranks`,
  // `shards` and the tensors of `average`. `lora` is null if all parameters are trained; an average
  // excludes it. `shards` is null if each rank has the whole gradients; else there is no `lora`,
  // and several ranks share the moments.
  Optimizer(absl::Span<const TrainModel::Parameter> parameters, const OptimizerSettings& settings,
            const Ranks* ranks, bool share_moments, const Average& average = {},
            std::unique_ptr<Lora> lora = nullptr, ModelShards* shards = nullptr);
  ~Optimizer();

  // Makes later backward passes add to accumulator `index`, in [0, kAccumulators).
  void SelectAccumulator(int index);
  int selected() const { return selected_; }
  void ZeroGrad();  // Zeroes all accumulators.
  void Zero(int index);
  // Adds `scale` times accumulator `from` to accumulator `to`.
  void AddScaled(int from, double scale, int to);
  // Of an accumulator, over all parameters that this rank has gradients of.
  double SquaredNorm(int index) const;

  struct Outcome {
    bool applied = false;  // False if the gradient is not finite; then nothing has changed.
    double grad_norm = 0;  // Before clipping.
    double lr = 0;
  };
  // Makes one AdamW update. Its gradient is scale0 * accumulator 0 + scale1 * accumulator 1, summed
  // over all ranks and clipped to the global norm. Its learning rate is that of the schedule times
  // `lr_factor`. The errors are those of Collective.
  absl::StatusOr<Outcome> Update(double scale0, double scale1, double lr_factor = 1);

  // The two halves of Update(). The first sums the gradient and returns its norm; it changes
  // neither parameters nor moments, so another reason may still stop the update. The second makes
  // the update if `gradient` is finite.
  struct Gradient {
    double norm = 0;   // Of the whole, with its factor.
    double scale = 0;  // Factor by which the summed gradient is still to be multiplied.
  };
  absl::StatusOr<Gradient> SumGradients(double scale0, double scale1);
  absl::StatusOr<Outcome> Apply(const Gradient& gradient, double lr_factor = 1);

  int64_t updates() const { return updates_; }  // t of AdamW, and the position in the schedule.

  // The parameters, and the moments as tensors m.NAME and v.NAME with the parameters' shapes, as
  // they are now. With an average there are tensors a.NAME too. With low-rank training the moments
  // are those of the factors, which are there as p.NAME. Later updates preserve what is still to be
  // read. Of what the ranks share out, each gets its part; all else is in the part of rank 0.
  struct Snapshots {
    ShardSnapshot parameters, moments;
  };
  Snapshots TakeSnapshots();
  bool sharded() const { return sharded_; }
  bool shares_parameters() const { return shards_ != nullptr && shards_->has_parameters(); }
  // Sets the moments, the factors, and the number of updates. The model must hold the weights of
  // the same checkpoint. Rank 0 passes the moments, the other ranks pass null.
  // INVALID_ARGUMENT: a tensor is missing or has another shape.
  absl::Status Restore(const TensorSource* moments, int64_t updates);
  // Sets all moments and the number of updates to 0, and the factors to those of the start, which
  // leave the weights as they are.
  void Reset();

  // Call this before the parameters or moments are overwritten otherwise than by Update().
  void PreserveAll();

 private:
  // A tensor and its place in flat buffers.
  struct Slot {
    std::string name;
    at::Tensor tensor;     // Without memory, if the parameters are in parts.
    float* values;         // Those of the tensor, or where they would begin.
    float* average;        // The same of the parameter's average, or null.
    int64_t offset, size;  // In elements.
  };
  struct Slots {
    std::vector<Slot> list;
    FlatLayout layout;

    void Add(const std::string& name, const at::Tensor& tensor, float* values,
             float* average = nullptr);
  };
  struct Flat {
    at::Tensor whole;               // With zeros as padding between the slots.
    std::vector<at::Tensor> views;  // One per slot, in the shape of its tensor; none of a part.
  };
  static Flat MakeFlat(const Slots& slots);
  // Makes an accumulator if there is none yet, and returns its elements.
  absl::Span<float> Accumulator(int index);
  // The flat gradient of what is trained, where the whole would begin.
  float* TrainedGradient();
  // Adds up the gradient over the ranks. Each rank then has at least the part that it owns.
  absl::Status SumOverRanks(float* gradient);
  // Sum of the squares of the gradient's parts that the ranks own.
  absl::StatusOr<double> SquaredNormOfAll(const float* gradient) const;
  // Sends what each rank owns of the trained values to all others.
  absl::Status ShareTrained();
  // The elements of a slot that this rank owns.
  struct Range {
    int64_t first, count;
  };
  Range OwnRange(const Slot& slot) const;

  struct Live {
    std::weak_ptr<Snapshot> parameters, moments;
  };
  struct Locked {
    std::shared_ptr<Snapshot> parameters, moments;
  };
  // Call this before the state of trained slot i is overwritten.
  void PreserveState(const Locked& snapshots, size_t i);
  void UpdateAverage(size_t i);

  // A part of a slot's state besides its parameter, by the prefix of its name in a checkpoint.
  struct State {
    const char* prefix;
    // The slot's values; of a part that is sharded, where they would begin. In a flat buffer a slot
    // is followed by room up to a whole number of floats.
    std::byte* values;
    DType dtype;
    bool sharded;

    std::byte* At(int64_t element) const {
      return values + element * static_cast<int64_t>(DTypeBytes(dtype));
    }
  };
  std::vector<State> StateOf(const Slot& slot);  // In the order of the names.
  TensorSpec SpecOf(const State& state, const Slot& slot) const;
  // ShardSnapshot::begins of a state of the slot.
  std::vector<int64_t> BeginsOf(const State& state, const Slot& slot) const;

  // Makes AdamW's step on elements [first, first + count) of a slot, with the flat gradient.
  void StepElements(const Slot& slot, int64_t first, int64_t count, double lr, double grad_scale);
  // The values of a slot's moment, whose buffer is m_ or v_.
  State MomentOf(const char* prefix, at::Tensor& moment, const Slot& slot);

  // The snapshots that are still in use.
  std::vector<Locked> LiveSnapshots();
  bool used(int index) const { return grads_[index].whole.defined(); }
  // Where the part of a rank in the flat buffer of trained values begins.
  int64_t PartBegin(int rank) const { return trained_.layout.PartBegin(rank, ranks_->world()); }

  const OptimizerSettings settings_;
  const Ranks* const ranks_;
  const bool sharded_;
  Schedule schedule_;
  Slots parameters_;  // Of the model.
  Slots trained_;     // What AdamW works on: the parameters, or the factors.
  const std::unique_ptr<Lora> lora_;
  ModelShards* const shards_;
  Flat grads_[kAccumulators];
  int selected_ = 0;
  Flat factor_grads_;
  int64_t own_begin_ = 0, own_end_ = 0;  // What this rank updates of the flat buffer.
  at::Tensor m_, v_;                     // [own_end_ - own_begin_] in settings_.moments.
  const double decay_;                   // Of the average.
  std::vector<Live> snapshots_;
  int64_t updates_ = 0;
};

// Sends the parameters of rank 0 to all other ranks.
absl::Status BroadcastParameters(const Ranks& ranks,
                                 absl::Span<const TrainModel::Parameter> parameters);

}  // namespace sluice::trainer
