#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/train_model.h"
#include "common/models/unit_memory.h"
#include "services/trainer/core/ranks.h"

namespace sluice::trainer {

// The places of tensors in one flat buffer. Each rank may own one equal part of it.
class FlatLayout {
 public:
  // Adds a tensor and returns its place, in elements.
  int64_t Add(int64_t elements);
  int64_t size() const { return size_; }
  // Where the part of a rank of `world` begins; its end is where the next part begins.
  int64_t PartBegin(int rank, int world) const;

 private:
  int64_t size_ = 0;  // With padding behind each tensor.
};

// What the passes of models of one shape use, one pass at a time. It is kept from pass to pass:
// memory that is freed layer by layer lies between activations, where little else fits.
struct PassMemory {
  struct Room {
    at::Tensor values, gradient;  // Undefined until they are needed.
  };
  std::vector<Room> rooms;
};

// A model of which each rank keeps an equal part of the gradients (ZeRO-2, arXiv:1910.02054), of
// the parameters, or of both (ZeRO-3). The parts are those of a FlatLayout of all parameters, in
// their order. A pass has in memory what belongs to the layer that it is in, and to no layer. It
// gathers the parameters of a unit when it enters it. When a backward pass leaves a unit, each part
// of the unit's gradient is added up over the ranks, by the rank that owns the part.
//
// All ranks make the same passes (SharedPasses). The errors are those of Collective. Not
// thread-safe.
class ModelShards : public UnitMemory {
 public:
  static constexpr int kAccumulators = 2;
  struct Parts {
    bool parameters = false;  // The model's memory is lent (TrainModel::Create).
    bool gradients = false;   // Else no gradients are computed.
  };

  // All arguments outlive this. The model asks this for its units from now on. The parameters begin
  // as zeros.
  ModelShards(TrainModel* model, Ranks* ranks, PassMemory* memory, Parts parts);

  bool has_parameters() const { return parts_.parameters; }

  // The rest is for parameters in parts.

  // Where parameter i would begin: its elements in this rank's part are at their places from here.
  float* ValuesOf(size_t i) { return own_.mutable_data_ptr<float>() + places_[i] - own_begin_; }
  // Sets all parameters from the weights of rank 0, or copies them to weights of rank 0. The other
  // ranks pass null.
  // INVALID_ARGUMENT: names or shapes differ.
  absl::Status Load(const TensorSet* weights);
  absl::Status Store(TensorSet* weights);
  // Calls visit(i) for each parameter i while it is in memory as a whole.
  absl::Status ForEachGathered(const std::function<void(size_t i)>& visit);

  // The rest is for gradients.

  // Sets where sums are kept: `part_of(accumulator)` returns the memory of this rank's part of it.
  // It is called only with the accumulators of passes that a rank has made.
  void SetSums(std::function<float*(int accumulator)> part_of) { part_of_ = std::move(part_of); }
  // The accumulator, in [0, kAccumulators), to which the next backward passes of this rank add.
  void SelectAccumulator(int index);

  absl::Status Enter(Pass pass, int64_t unit) override;
  absl::Status Leave(Pass pass, int64_t unit) override;

 private:
  // Parameters that are adjacent in the flat buffer.
  struct Run {
    size_t first, count;  // Of the model's parameters.
    int64_t begin, end;   // In the flat buffer.
    size_t room;          // Of PassMemory: the first for layers, one more for each other run.
  };

  // Whether the ranks make such a pass together.
  bool IsShared(Pass pass) const {
    return pass == Pass::kForward ? parts_.parameters : parts_.gradients;
  }
  absl::Status Open(Pass pass, int64_t unit);
  absl::Status Close(Pass pass, int64_t unit);
  absl::Status Gather(const Run& run);
  void Forget(const Run& run);  // What was gathered.
  void MakeGradient(const Run& run);
  // Adds the gradient of all ranks to the sums, and frees it.
  absl::Status AddUpGradient(const Run& run);
  absl::Status TakePart(Pass pass, int accumulator);

  // Calls visit(rank, begin, count) for each rank that owns elements of the run, where `begin` is
  // the place of the first of them in the flat buffer.
  template <typename Visit>
  absl::Status ForEachOwner(const Run& run, const Visit& visit) const;

  // The element of this rank's part with this place in the flat buffer.
  float* Own(int64_t place) { return own_.mutable_data_ptr<float>() + (place - own_begin_); }

  TrainModel* const model_;
  Ranks* const ranks_;
  PassMemory* const memory_;
  const Parts parts_;
  FlatLayout layout_;
  std::vector<int64_t> places_;  // By parameter.
  std::vector<std::vector<Run>> units_;
  int64_t own_begin_ = 0;
  at::Tensor own_;  // This rank's part of the parameters, if they are in parts.
  // Kinds of SharedPasses.
  int forward_kind_ = 0;
  int backward_kinds_[kAccumulators] = {};
  std::function<float*(int)> part_of_;
  int selected_ = 0;  // The accumulator of this rank's next backward pass.
  int current_ = 0;   // That of the backward pass under way.
};

}  // namespace sluice::trainer
