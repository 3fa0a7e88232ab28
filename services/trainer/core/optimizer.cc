#include "services/trainer/core/optimizer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/algorithms/proximal.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/collective/collective.h"
#include "common/models/parallel.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"

namespace sluice::trainer {
namespace {

// Fewest elements for which another thread is worth its cost.
constexpr int64_t kMinElementsPerThread = 1 << 18;

// Sums in parallel, in parts whose sums are added in order, so that the number of threads changes
// no bit.
double SumOfAllSquares(const float* x, int64_t n) {
  constexpr int64_t kPart = 1 << 20;
  std::vector<double> parts((n + kPart - 1) / kPart);
  ParallelEach(static_cast<int64_t>(parts.size()), [&](int64_t p) {
    parts[p] = SumOfSquares(x + p * kPart, std::min(kPart, n - p * kPart));
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

}  // namespace

void Optimizer::Slots::Add(const std::string& name, const at::Tensor& tensor, float* values,
                           float* average) {
  list.push_back({name, tensor, values, average, layout.Add(tensor.numel()), tensor.numel()});
}

Optimizer::Optimizer(absl::Span<const TrainModel::Parameter> parameters,
                     const OptimizerSettings& settings, const Ranks* ranks, bool share_moments,
                     const Average& average, std::unique_ptr<Lora> lora, ModelShards* shards)
    : settings_(settings),
      ranks_(ranks),
      sharded_(ranks->many() && share_moments),
      lora_(std::move(lora)),
      shards_(shards),
      decay_(average.decay) {
  const ScheduleRow* row = FindSchedule(settings.schedule);
  SLUICE_CHECK_MSG(row != nullptr, settings.schedule);  // Validate() has checked the name.
  schedule_ = Schedule{settings.warmup, settings.total, 0.0, row->shape};
  SLUICE_CHECK(average.parameters.empty() || average.parameters.size() == parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    if (shares_parameters()) {
      parameters_.Add(parameters[i].name, tensor, shards_->ValuesOf(i),
                      average.shards == nullptr ? nullptr : average.shards->ValuesOf(i));
    } else {
      parameters_.Add(parameters[i].name, tensor, tensor.mutable_data_ptr<float>(),
                      average.parameters.empty()
                          ? nullptr
                          : average.parameters[i].tensor.mutable_data_ptr<float>());
    }
  }
  if (lora_ == nullptr) {
    trained_ = parameters_;
  } else {
    SLUICE_CHECK(average.parameters.empty());
    for (const Lora::Factor& factor : lora_->factors())
      trained_.Add(factor.name, factor.value, factor.value.mutable_data_ptr<float>());
    factor_grads_ = MakeFlat(trained_);
  }

  own_begin_ = sharded_ ? PartBegin(ranks_->rank()) : 0;
  own_end_ = sharded_ ? PartBegin(ranks_->rank() + 1) : trained_.layout.size();
  if (shards_ != nullptr) {
    SLUICE_CHECK(sharded_ && lora_ == nullptr);
    shards_->SetSums([this](int index) { return Accumulator(index).data(); });
  }
  const at::ScalarType type = settings.moments == DType::kBF16 ? at::kBFloat16 : at::kFloat;
  m_ = at::zeros({own_end_ - own_begin_}, type);
  v_ = at::zeros({own_end_ - own_begin_}, type);
  SelectAccumulator(0);
}

Optimizer::Flat Optimizer::MakeFlat(const Slots& slots) {
  Flat flat{at::zeros({slots.layout.size()}), {}};
  for (const Slot& slot : slots.list)
    flat.views.push_back(flat.whole.narrow(0, slot.offset, slot.size).view(slot.tensor.sizes()));
  return flat;
}

absl::Span<float> Optimizer::Accumulator(int index) {
  Flat& flat = grads_[index];
  if (!used(index)) {
    if (shards_ == nullptr) flat = MakeFlat(parameters_);
    else flat.whole = at::zeros({own_end_ - own_begin_});
  }
  return {flat.whole.mutable_data_ptr<float>(), static_cast<size_t>(flat.whole.numel())};
}

void Optimizer::SelectAccumulator(int index) {
  Accumulator(index);
  selected_ = index;
  if (shards_ != nullptr) return shards_->SelectAccumulator(index);
  for (size_t i = 0; i < parameters_.list.size(); ++i)
    parameters_.list[i].tensor.mutable_grad() = grads_[index].views[i];
}

void Optimizer::ZeroGrad() {
  for (int index = 0; index < kAccumulators; ++index) Zero(index);
}

void Optimizer::Zero(int index) {
  if (!used(index)) return;
  const absl::Span<float> grad = Accumulator(index);
  ParallelFor(
      static_cast<int64_t>(grad.size()), kMinElementsPerThread,
      [&](int64_t begin, int64_t end) { std::fill(grad.data() + begin, grad.data() + end, 0.0f); });
}

void Optimizer::AddScaled(int from, double scale, int to) {
  if (!used(from)) return;
  const absl::Span<const float> x = Accumulator(from);
  const absl::Span<float> y = Accumulator(to);
  ParallelFor(static_cast<int64_t>(x.size()), kMinElementsPerThread,
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) y[i] += static_cast<float>(scale * x[i]);
              });
}

double Optimizer::SquaredNorm(int index) const {
  const at::Tensor& grad = grads_[index].whole;
  return used(index) ? SumOfAllSquares(grad.const_data_ptr<float>(), grad.numel()) : 0;
}

void Optimizer::UpdateAverage(size_t i) {
  const Slot& slot = trained_.list[i];
  if (slot.average == nullptr) return;
  const EwmaWeights weights = EwmaAt(decay_, updates_);
  const Range range = shares_parameters() ? OwnRange(slot) : Range{0, slot.size};
  float* const average = slot.average + range.first;
  const float* const values = slot.values + range.first;
  ParallelFor(range.count, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      average[j] =
          static_cast<float>(weights.old_weight * average[j] + weights.new_weight * values[j]);
    }
  });
}

absl::StatusOr<Optimizer::Outcome> Optimizer::Update(double scale0, double scale1,
                                                     double lr_factor) {
  SLUICE_ASSIGN_OR_RETURN(const Gradient gradient, SumGradients(scale0, scale1));
  return Apply(gradient, lr_factor);
}

absl::StatusOr<Optimizer::Gradient> Optimizer::SumGradients(double scale0, double scale1) {
  const absl::Span<float> grad = Accumulator(0);
  // Combine the accumulators in the first one. Both factors are applied here, so `scale0` is 1 from
  // now on. With several ranks this is always done: a rank whose share was empty has not used the
  // second accumulator, and all must add up the same.
  if (used(1) || ranks_->many()) {
    const float* other = used(1) ? grads_[1].whole.const_data_ptr<float>() : nullptr;
    ParallelFor(static_cast<int64_t>(grad.size()), kMinElementsPerThread,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    const double second = other == nullptr ? 0 : scale1 * other[i];
                    grad[i] = static_cast<float>(scale0 * grad[i] + second);
                  }
                });
    scale0 = 1;
  }

  if (lora_ != nullptr) lora_->Gradients(grads_[0].views, absl::MakeSpan(factor_grads_.views));
  float* const trained = TrainedGradient();
  SLUICE_RETURN_IF_ERROR(SumOverRanks(trained));
  SLUICE_ASSIGN_OR_RETURN(const double squares, SquaredNormOfAll(trained));
  return Gradient{.norm = std::sqrt(squares) * std::abs(scale0), .scale = scale0};
}

absl::StatusOr<Optimizer::Outcome> Optimizer::Apply(const Gradient& gradient, double lr_factor) {
  Outcome outcome;
  outcome.grad_norm = gradient.norm;
  outcome.lr = settings_.lr * schedule_.Factor(updates_) * lr_factor;
  if (!std::isfinite(outcome.grad_norm)) return outcome;
  if (!HitFailpoint("trainer.optimizer.lr_x1000").ok()) outcome.lr *= 1000;

  const double grad_scale = gradient.scale * ClipFactor(outcome.grad_norm, settings_.max_grad_norm);
  ++updates_;
  const std::vector<Locked> live = LiveSnapshots();
  for (size_t i = 0; i < trained_.list.size(); ++i) {
    const Slot& slot = trained_.list[i];
    for (const Locked& snapshots : live) {
      PreserveState(snapshots, i);
      if (lora_ == nullptr && snapshots.parameters != nullptr) snapshots.parameters->Preserve(i);
    }
    const Range own = OwnRange(slot);
    StepElements(slot, own.first, own.count, outcome.lr, grad_scale);
    if (!sharded_) UpdateAverage(i);
  }
  if (sharded_) {
    if (!shares_parameters()) SLUICE_RETURN_IF_ERROR(ShareTrained());
    for (size_t i = 0; i < trained_.list.size(); ++i) UpdateAverage(i);
  }

  if (lora_ != nullptr) {
    const std::vector<size_t>& changed = lora_->parameters();
    for (const Locked& snapshots : live) {
      if (snapshots.parameters == nullptr) continue;
      for (const size_t parameter : changed) snapshots.parameters->Preserve(parameter);
    }
    ParallelEach(static_cast<int64_t>(changed.size()), [&](int64_t i) { lora_->Merge(i); });
  }
  outcome.applied = true;
  return outcome;
}

void Optimizer::StepElements(const Slot& slot, int64_t first, int64_t count, double lr,
                             double grad_scale) {
  const AdamWOptions options{settings_.beta1, settings_.beta2, settings_.eps,
                             settings_.weight_decay};
  const bool decay = slot.tensor.dim() >= 2;
  const float* const gradient = TrainedGradient() + slot.offset;
  float* const values = slot.values;
  const State m = MomentOf("m.", m_, slot), v = MomentOf("v.", v_, slot);
  ParallelFor(count, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
    const int64_t at = first + begin;
    if (settings_.moments == DType::kBF16) {
      // The place in the flat buffer of all ranks.
      const auto place = static_cast<uint64_t>(slot.offset + at);
      AdamWStepBf16(options, updates_, lr, decay, grad_scale, end - begin, place, gradient + at,
                    values + at, reinterpret_cast<uint16_t*>(m.At(at)),
                    reinterpret_cast<uint16_t*>(v.At(at)));
    } else {
      AdamWStep(options, updates_, lr, decay, grad_scale, end - begin, gradient + at, values + at,
                reinterpret_cast<float*>(m.At(at)), reinterpret_cast<float*>(v.At(at)));
    }
  });
}

float* Optimizer::TrainedGradient() {
  float* const gradient =
      (lora_ == nullptr ? grads_[0] : factor_grads_).whole.mutable_data_ptr<float>();
  return shards_ == nullptr ? gradient : gradient - own_begin_;
}

absl::Status Optimizer::SumOverRanks(float* gradient) {
  if (!ranks_->many() || shards_ != nullptr) return absl::OkStatus();
  Collective& collective = ranks_->collective();
  if (!sharded_) return collective.Sum({gradient, static_cast<size_t>(trained_.layout.size())});
  for (int rank = 0; rank < ranks_->world(); ++rank) {
    const int64_t begin = PartBegin(rank), end = PartBegin(rank + 1);
    SLUICE_RETURN_IF_ERROR(
        collective.SumTo(rank, {gradient + begin, static_cast<size_t>(end - begin)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Optimizer::SquaredNormOfAll(const float* gradient) const {
  double squares = SumOfAllSquares(gradient + own_begin_, own_end_ - own_begin_);
  if (sharded_) SLUICE_RETURN_IF_ERROR(ranks_->collective().Sum(absl::MakeSpan(&squares, 1)));
  return squares;
}

Optimizer::Range Optimizer::OwnRange(const Slot& slot) const {
  const int64_t first = std::clamp<int64_t>(own_begin_ - slot.offset, 0, slot.size),
                end = std::clamp<int64_t>(own_end_ - slot.offset, 0, slot.size);
  return {first, end - first};
}

absl::Status Optimizer::ShareTrained() {
  for (const Slot& slot : trained_.list) {
    for (int rank = 0; rank < ranks_->world(); ++rank) {
      const int64_t begin = std::max(PartBegin(rank), slot.offset),
                    end = std::min(PartBegin(rank + 1), slot.offset + slot.size);
      if (begin >= end) continue;
      SLUICE_RETURN_IF_ERROR(ranks_->collective().Broadcast(
          rank, {slot.values + (begin - slot.offset), static_cast<size_t>(end - begin)}));
    }
  }
  return absl::OkStatus();
}

void Optimizer::PreserveState(const Locked& snapshots, size_t i) {
  if (snapshots.moments == nullptr) return;
  for (size_t kind = 0; kind < StateOf(trained_.list[i]).size(); ++kind)
    snapshots.moments->Preserve(kind * trained_.list.size() + i);
}

Optimizer::State Optimizer::MomentOf(const char* prefix, at::Tensor& moment, const Slot& slot) {
  State state{prefix, static_cast<std::byte*>(moment.mutable_data_ptr()), settings_.moments,
              sharded_};
  state.values = state.At(slot.offset - own_begin_);
  return state;
}

std::vector<Optimizer::State> Optimizer::StateOf(const Slot& slot) {
  std::vector<State> state;
  const auto add = [&](const char* prefix, float* values, bool sharded) {
    state.push_back({prefix, reinterpret_cast<std::byte*>(values), DType::kF32, sharded});
  };
  if (slot.average != nullptr) add("a.", slot.average, shares_parameters());
  state.push_back(MomentOf("m.", m_, slot));
  // The checkpoint's model has the weights, from which the factors cannot be computed.
  if (lora_ != nullptr) add("p.", slot.values, false);
  state.push_back(MomentOf("v.", v_, slot));
  return state;
}

TensorSpec Optimizer::SpecOf(const State& state, const Slot& slot) const {
  return {absl::StrCat(state.prefix, slot.name), state.dtype, slot.tensor.sizes().vec()};
}

std::vector<int64_t> Optimizer::BeginsOf(const State& state, const Slot& slot) const {
  std::vector<int64_t> begins(static_cast<size_t>(ranks_->world()) + 1, slot.size);
  begins[0] = 0;
  for (int rank = 1; state.sharded && rank < ranks_->world(); ++rank)
    begins[rank] = std::clamp<int64_t>(PartBegin(rank) - slot.offset, 0, slot.size);
  return begins;
}

Optimizer::Snapshots Optimizer::TakeSnapshots() {
  Snapshots snapshots;
  std::vector<Snapshot::Live> tensors;
  const auto add = [&](ShardSnapshot& snapshot, const State& state, const Slot& slot) {
    snapshot.specs.push_back(SpecOf(state, slot));
    const std::vector<int64_t>& begins = snapshot.begins.emplace_back(BeginsOf(state, slot));
    const int64_t first = begins[ranks_->rank()], end = begins[ranks_->rank() + 1];
    tensors.push_back({snapshot.specs.back(), state.At(first), end - first});
  };

  for (const Slot& slot : parameters_.list)
    add(snapshots.parameters,
        {"", reinterpret_cast<std::byte*>(slot.values), DType::kF32, shares_parameters()}, slot);
  snapshots.parameters.part = std::make_shared<Snapshot>(std::exchange(tensors, {}));
  for (size_t kind = 0; kind < StateOf(trained_.list[0]).size(); ++kind) {
    for (const Slot& slot : trained_.list) add(snapshots.moments, StateOf(slot)[kind], slot);
  }
  snapshots.moments.part = std::make_shared<Snapshot>(std::move(tensors));
  snapshots_.push_back({snapshots.parameters.part, snapshots.moments.part});
  return snapshots;
}

Optimizer::~Optimizer() { PreserveAll(); }

void Optimizer::PreserveAll() {
  for (const Locked& live : LiveSnapshots()) {
    if (live.parameters != nullptr) live.parameters->PreserveAll();
    if (live.moments != nullptr) live.moments->PreserveAll();
  }
}

std::vector<Optimizer::Locked> Optimizer::LiveSnapshots() {
  std::vector<Locked> live;
  std::erase_if(snapshots_, [&](const Live& weak) {
    live.push_back({weak.parameters.lock(), weak.moments.lock()});
    if (live.back().parameters != nullptr || live.back().moments != nullptr) return false;
    live.pop_back();
    return true;
  });
  return live;
}

absl::Status Optimizer::Restore(const TensorSource* moments, int64_t updates) {
  std::map<std::string, size_t> places;
  if (moments != nullptr) {
    for (size_t i = 0; i < moments->specs().size(); ++i) places[moments->specs()[i].name] = i;
  }
  std::vector<float> buffer;  // What rank 0 sends to another rank.
  const auto floats = [](std::byte* values, int64_t elements, DType dtype) {
    return absl::Span<float>(reinterpret_cast<float*>(values),
                             static_cast<size_t>(FloatsThatHold(elements, dtype)));
  };
  for (const Slot& slot : trained_.list) {
    for (const State& state : StateOf(slot)) {
      size_t index = 0;
      if (moments != nullptr) {
        const TensorSpec wanted = SpecOf(state, slot);
        const auto place = places.find(wanted.name);
        if (place == places.end() || !(moments->specs()[place->second] == wanted)) {
          const std::string found = place == places.end()
                                        ? "missing"
                                        : ShapeText(moments->specs()[place->second].dtype,
                                                    moments->specs()[place->second].shape);
          return absl::InvalidArgumentError(
              absl::StrCat("the tensor ", wanted.name, " of the optimizer's state is ", found,
                           "; the model needs ", ShapeText(wanted.dtype, wanted.shape)));
        }
        index = place->second;
      }

      if (!state.sharded) {
        if (moments != nullptr)
          SLUICE_RETURN_IF_ERROR(moments->Read(index, 0, slot.size, state.values));
        if (!ranks_->many()) continue;
        SLUICE_RETURN_IF_ERROR(
            ranks_->collective().Broadcast(0, floats(state.values, slot.size, state.dtype)));
        continue;
      }
      const std::vector<int64_t> begins = BeginsOf(state, slot);
      for (int rank = 0; rank < ranks_->world(); ++rank) {
        const int64_t first = begins[rank], count = begins[rank + 1] - first;
        absl::Span<float> part = floats(state.At(first), count, state.dtype);
        if (moments != nullptr && rank > 0) {
          buffer.resize(part.size());
          part = absl::MakeSpan(buffer);
        }
        if (moments != nullptr)
          SLUICE_RETURN_IF_ERROR(moments->Read(index, first, count, part.data()));
        SLUICE_RETURN_IF_ERROR(ranks_->collective().Transfer(0, rank, part));
      }
    }
  }
  updates_ = updates;
  return absl::OkStatus();
}

void Optimizer::Reset() {
  m_.zero_();
  v_.zero_();
  updates_ = 0;
  if (lora_ != nullptr) lora_->Reset();
}

absl::Status BroadcastParameters(const Ranks& ranks,
                                 absl::Span<const TrainModel::Parameter> parameters) {
  if (!ranks.many()) return absl::OkStatus();
  for (const TrainModel::Parameter& parameter : parameters) {
    SLUICE_RETURN_IF_ERROR(
        ranks.collective().Broadcast(0, {parameter.tensor.mutable_data_ptr<float>(),
                                         static_cast<size_t>(parameter.tensor.numel())}));
  }
  return absl::OkStatus();
}

}  // namespace sluice::trainer
