#include "services/trainer/core/model_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/collective/collective.h"
#include "common/models/parallel.h"
#include "services/trainer/core/shared_passes.h"

namespace sluice::trainer {
namespace {

constexpr int64_t kAlign = 16;  // In elements: tensors start on cache lines.
// Fewest elements for which another thread is worth its cost.
constexpr int64_t kMinSumPerThread = 1 << 18;

// Returns the memory of a room, at least of this size.
float* MakeRoom(at::Tensor& room, int64_t elements) {
  if (!room.defined() || room.numel() < elements) room = at::empty({elements}, at::kFloat);
  return room.mutable_data_ptr<float>();
}

}  // namespace

int64_t FlatLayout::Add(int64_t elements) {
  const int64_t place = size_;
  size_ += (elements + kAlign - 1) / kAlign * kAlign;
  return place;
}

int64_t FlatLayout::PartBegin(int rank, int world) const {
  return size_ / kAlign * rank / world * kAlign;
}

ModelShards::ModelShards(TrainModel* model, Ranks* ranks, PassMemory* memory, Parts parts)
    : model_(model),
      ranks_(ranks),
      memory_(memory),
      parts_(parts),
      units_(static_cast<size_t>(model->config().num_layers) + 1) {
  const std::vector<TrainModel::Parameter>& parameters = model->parameters();
  int64_t last_unit = -1;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t unit = UnitOf(parameters[i].name);
    places_.push_back(layout_.Add(parameters[i].tensor.numel()));
    if (unit != last_unit) {
      SLUICE_CHECK(unit == 0 || units_[unit].empty());
      const size_t room = unit == 0 ? units_[0].size() + 1 : 0;
      units_[unit].push_back({.first = i, .count = 0, .begin = places_[i], .end = 0, .room = room});
    }
    ++units_[unit].back().count;
    units_[unit].back().end = layout_.size();
    last_unit = unit;
  }
  memory_->rooms.resize(std::max(memory_->rooms.size(), units_[0].size() + 1));
  own_begin_ = layout_.PartBegin(ranks->rank(), ranks->world());
  if (parts_.parameters) {
    own_ = at::zeros({layout_.PartBegin(ranks->rank() + 1, ranks->world()) - own_begin_});
    forward_kind_ = ranks->passes().AddKind([this] { return TakePart(Pass::kForward, 0); });
  }
  for (int a = 0; parts_.gradients && a < kAccumulators; ++a) {
    backward_kinds_[a] =
        ranks->passes().AddKind([this, a] { return TakePart(Pass::kBackward, a); });
  }
  model->SetUnitMemory(this);
}

void ModelShards::SelectAccumulator(int index) {
  SLUICE_CHECK(index >= 0 && index < kAccumulators);
  selected_ = index;
}

absl::Status ModelShards::Enter(Pass pass, int64_t unit) {
  if (!IsShared(pass)) return absl::OkStatus();
  if (unit == 0) {
    const bool forward = pass == Pass::kForward;
    SLUICE_RETURN_IF_ERROR(
        ranks_->passes().Begin(forward ? forward_kind_ : backward_kinds_[selected_]));
    current_ = selected_;
  }
  return Open(pass, unit);
}

absl::Status ModelShards::Leave(Pass pass, int64_t unit) {
  return IsShared(pass) ? Close(pass, unit) : absl::OkStatus();
}

absl::Status ModelShards::TakePart(Pass pass, int accumulator) {
  current_ = accumulator;
  SLUICE_RETURN_IF_ERROR(Open(pass, 0));
  const int64_t layers = static_cast<int64_t>(units_.size()) - 1;
  for (int64_t i = 1; i <= layers; ++i) {
    const int64_t unit = pass == Pass::kForward ? i : layers + 1 - i;
    SLUICE_RETURN_IF_ERROR(Open(pass, unit));
    SLUICE_RETURN_IF_ERROR(Close(pass, unit));
  }
  return Close(pass, 0);
}

absl::Status ModelShards::Open(Pass pass, int64_t unit) {
  for (const Run& run : units_[unit]) {
    if (parts_.parameters) SLUICE_RETURN_IF_ERROR(Gather(run));
    if (pass == Pass::kBackward) MakeGradient(run);
  }
  return absl::OkStatus();
}

absl::Status ModelShards::Close(Pass pass, int64_t unit) {
  for (const Run& run : units_[unit]) {
    if (pass == Pass::kBackward) SLUICE_RETURN_IF_ERROR(AddUpGradient(run));
    if (parts_.parameters) Forget(run);
  }
  return absl::OkStatus();
}

absl::Status ModelShards::Gather(const Run& run) {
  float* const values = MakeRoom(memory_->rooms[run.room].values, run.end - run.begin);
  SLUICE_RETURN_IF_ERROR(ForEachOwner(run, [&](int rank, int64_t begin, int64_t count) {
    float* const part = values + (begin - run.begin);
    if (rank == ranks_->rank()) std::copy_n(Own(begin), count, part);
    return ranks_->collective().Broadcast(rank, {part, static_cast<size_t>(count)});
  }));
  for (size_t i = run.first; i < run.first + run.count; ++i)
    LendMemory(model_->parameters()[i].tensor, values + (places_[i] - run.begin));
  return absl::OkStatus();
}

void ModelShards::Forget(const Run& run) {
  for (size_t i = run.first; i < run.first + run.count; ++i)
    LendMemory(model_->parameters()[i].tensor, nullptr);
}

absl::Status ModelShards::ForEachGathered(const std::function<void(size_t i)>& visit) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    SLUICE_RETURN_IF_ERROR(Open(Pass::kForward, static_cast<int64_t>(unit)));
    for (const Run& run : units_[unit])
      for (size_t i = run.first; i < run.first + run.count; ++i) visit(i);
    SLUICE_RETURN_IF_ERROR(Close(Pass::kForward, static_cast<int64_t>(unit)));
  }
  return absl::OkStatus();
}

absl::Status ModelShards::Load(const TensorSet* weights) {
  if (weights != nullptr) SLUICE_RETURN_IF_ERROR(model_->CheckLayout(*weights));
  std::vector<float> values;  // Of a run, on rank 0.
  for (const std::vector<Run>& unit : units_) {
    for (const Run& run : unit) {
      if (weights != nullptr) values.assign(static_cast<size_t>(run.end - run.begin), 0);
      for (size_t i = run.first; weights != nullptr && i < run.first + run.count; ++i) {
        SLUICE_RETURN_IF_ERROR(ConvertElements(weights->spec(i).dtype, weights->data(i),
                                               DType::kF32, &values[places_[i] - run.begin],
                                               weights->elements(i)));
      }
      SLUICE_RETURN_IF_ERROR(ForEachOwner(run, [&](int rank, int64_t begin, int64_t count) {
        float* part = weights == nullptr ? nullptr : &values[begin - run.begin];
        if (weights != nullptr && rank == 0) std::copy_n(part, count, Own(begin));
        if (weights == nullptr && rank == ranks_->rank()) part = Own(begin);
        return ranks_->collective().Transfer(0, rank, {part, static_cast<size_t>(count)});
      }));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelShards::Store(TensorSet* weights) {
  if (weights != nullptr) SLUICE_RETURN_IF_ERROR(model_->CheckLayout(*weights));
  std::vector<float> values;  // Of a run, on rank 0.
  for (const std::vector<Run>& unit : units_) {
    for (const Run& run : unit) {
      if (weights != nullptr) values.resize(static_cast<size_t>(run.end - run.begin));
      SLUICE_RETURN_IF_ERROR(ForEachOwner(run, [&](int rank, int64_t begin, int64_t count) {
        float* part = weights == nullptr ? nullptr : &values[begin - run.begin];
        if (weights != nullptr && rank == 0) std::copy_n(Own(begin), count, part);
        if (weights == nullptr && rank == ranks_->rank()) part = Own(begin);
        return ranks_->collective().Transfer(rank, 0, {part, static_cast<size_t>(count)});
      }));
      for (size_t i = run.first; weights != nullptr && i < run.first + run.count; ++i) {
        SLUICE_RETURN_IF_ERROR(ConvertElements(DType::kF32, &values[places_[i] - run.begin],
                                               weights->spec(i).dtype, weights->data(i),
                                               weights->elements(i)));
      }
    }
  }
  return absl::OkStatus();
}

void ModelShards::MakeGradient(const Run& run) {
  at::Tensor& room = memory_->rooms[run.room].gradient;
  float* const gradient = MakeRoom(room, run.end - run.begin);
  ParallelFor(run.end - run.begin, kMinSumPerThread,
              [&](int64_t from, int64_t to) { std::fill(gradient + from, gradient + to, 0.0f); });
  for (size_t i = run.first; i < run.first + run.count; ++i) {
    const at::Tensor& tensor = model_->parameters()[i].tensor;
    tensor.mutable_grad() =
        room.narrow(0, places_[i] - run.begin, tensor.numel()).view(tensor.sizes());
  }
}

absl::Status ModelShards::AddUpGradient(const Run& run) {
  float* const gradient = memory_->rooms[run.room].gradient.mutable_data_ptr<float>();
  SLUICE_RETURN_IF_ERROR(ForEachOwner(run, [&](int rank, int64_t begin, int64_t count) {
    float* const part = gradient + (begin - run.begin);
    SLUICE_RETURN_IF_ERROR(ranks_->collective().SumTo(rank, {part, static_cast<size_t>(count)}));
    if (rank != ranks_->rank()) return absl::OkStatus();
    float* const sums = part_of_(current_) + (begin - own_begin_);
    ParallelFor(count, kMinSumPerThread, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) sums[i] += part[i];
    });
    return absl::OkStatus();
  }));
  for (size_t i = run.first; i < run.first + run.count; ++i)
    model_->parameters()[i].tensor.mutable_grad() = at::Tensor();
  return absl::OkStatus();
}

template <typename Visit>
absl::Status ModelShards::ForEachOwner(const Run& run, const Visit& visit) const {
  for (int rank = 0; rank < ranks_->world(); ++rank) {
    const int64_t begin = std::max(run.begin, layout_.PartBegin(rank, ranks_->world())),
                  end = std::min(run.end, layout_.PartBegin(rank + 1, ranks_->world()));
    if (begin < end) SLUICE_RETURN_IF_ERROR(visit(rank, begin, end - begin));
  }
  return absl::OkStatus();
}

}  // namespace sluice::trainer
