#include "services/trainer/core/optimizer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/algorithms/proximal.h"
#include "common/base/status.h"
#include "common/models/parallel.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"

namespace sluice::trainer {
namespace {

constexpr int64_t kAlign = 16;  // In elements: slots start on cache lines.
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

void Optimizer::Slots::Add(const std::string& name, const at::Tensor& tensor, float* average) {
  list.push_back({name, tensor, average, size, tensor.numel()});
  size += (tensor.numel() + kAlign - 1) / kAlign * kAlign;
}

Optimizer::Optimizer(TrainModel* model, const OptimizerSettings& settings, TrainModel* average,
                     double decay, std::unique_ptr<Lora> lora)
    : settings_(settings), lora_(std::move(lora)), average_(average), decay_(decay) {
  const ScheduleRow* row = FindSchedule(settings.schedule);
  SLUICE_CHECK_MSG(row != nullptr, settings.schedule);  // Validate() has checked the name.
  schedule_ = Schedule{settings.warmup, settings.total, 0.0, row->shape};
  for (const TrainModel::Parameter& parameter : model->parameters()) {
    float* const mean =
        average == nullptr
            ? nullptr
            : average->parameters()[parameters_.list.size()].tensor.mutable_data_ptr<float>();
    parameters_.Add(parameter.name, parameter.tensor, mean);
  }
  if (lora_ == nullptr) {
    trained_ = parameters_;
  } else {
    SLUICE_CHECK(average == nullptr);
    for (const Lora::Factor& factor : lora_->factors()) trained_.Add(factor.name, factor.value);
    factor_grads_ = MakeFlat(trained_);
  }

  grads_[0] = MakeFlat(parameters_);
  m_ = at::zeros({trained_.size});
  v_ = at::zeros({trained_.size});
  SelectAccumulator(0);
}

Optimizer::Flat Optimizer::MakeFlat(const Slots& slots) {
  Flat flat{at::zeros({slots.size}), {}};
  for (const Slot& slot : slots.list)
    flat.views.push_back(flat.whole.narrow(0, slot.offset, slot.size).view(slot.tensor.sizes()));
  return flat;
}

void Optimizer::SelectAccumulator(int index) {
  if (!used(index)) grads_[index] = MakeFlat(parameters_);
  for (size_t i = 0; i < parameters_.list.size(); ++i)
    parameters_.list[i].tensor.mutable_grad() = grads_[index].views[i];
}

void Optimizer::ZeroGrad() {
  for (int index = 0; index < kAccumulators; ++index) Zero(index);
}

void Optimizer::Zero(int index) {
  if (!used(index)) return;
  float* const grad = grads_[index].whole.mutable_data_ptr<float>();
  ParallelFor(parameters_.size, kMinElementsPerThread,
              [&](int64_t begin, int64_t end) { std::fill(grad + begin, grad + end, 0.0f); });
}

void Optimizer::AddScaled(int from, double scale, int to) {
  if (!used(from)) return;
  if (!used(to)) grads_[to] = MakeFlat(parameters_);
  const float* const x = grads_[from].whole.const_data_ptr<float>();
  float* const y = grads_[to].whole.mutable_data_ptr<float>();
  ParallelFor(parameters_.size, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] += static_cast<float>(scale * x[i]);
  });
}

double Optimizer::SquaredNorm(int index) const {
  return used(index)
             ? SumOfAllSquares(grads_[index].whole.const_data_ptr<float>(), parameters_.size)
             : 0;
}

void Optimizer::UpdateAverage(size_t i) {
  const Slot& slot = trained_.list[i];
  if (slot.average == nullptr) return;
  const EwmaWeights weights = EwmaAt(decay_, updates_);
  const float* const values = slot.tensor.const_data_ptr<float>();
  ParallelFor(slot.size, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      slot.average[j] =
          static_cast<float>(weights.old_weight * slot.average[j] + weights.new_weight * values[j]);
    }
  });
}

Optimizer::Outcome Optimizer::Update(double scale0, double scale1, double lr_factor) {
  float* grad = grads_[0].whole.mutable_data_ptr<float>();
  // Combine the accumulators in the first one. Both factors are applied here, so `scale0` is 1 from
  // now on.
  if (used(1)) {
    const float* other = grads_[1].whole.const_data_ptr<float>();
    ParallelFor(parameters_.size, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        grad[i] = static_cast<float>(scale0 * grad[i] + scale1 * other[i]);
    });
    scale0 = 1;
  }

  const float* const trained = TrainedGradient();
  Outcome outcome;
  outcome.grad_norm = std::sqrt(SumOfAllSquares(trained, trained_.size)) * std::abs(scale0);
  outcome.lr = settings_.lr * schedule_.Factor(updates_) * lr_factor;
  if (!std::isfinite(outcome.grad_norm)) return outcome;

  const AdamWOptions options{settings_.beta1, settings_.beta2, settings_.eps,
                             settings_.weight_decay};
  const double grad_scale = scale0 * ClipFactor(outcome.grad_norm, settings_.max_grad_norm);
  ++updates_;
  float *const m = m_.mutable_data_ptr<float>(), *const v = v_.mutable_data_ptr<float>();
  const std::vector<Snapshots> live = LiveSnapshots();
  for (size_t i = 0; i < trained_.list.size(); ++i) {
    const Slot& slot = trained_.list[i];
    for (const Snapshots& snapshots : live) {
      PreserveState(snapshots, i);
      if (lora_ == nullptr && snapshots.parameters != nullptr) snapshots.parameters->Preserve(i);
    }
    float* const values = slot.tensor.mutable_data_ptr<float>();
    ParallelFor(slot.size, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
      const int64_t at = slot.offset + begin;
      AdamWStep(options, updates_, outcome.lr, /*decay=*/slot.tensor.dim() >= 2, grad_scale,
                end - begin, trained + at, values + begin, m + at, v + at);
    });
    UpdateAverage(i);
  }

  if (lora_ != nullptr) {
    const std::vector<size_t>& changed = lora_->parameters();
    for (const Snapshots& snapshots : live) {
      if (snapshots.parameters == nullptr) continue;
      for (const size_t parameter : changed) snapshots.parameters->Preserve(parameter);
    }
    ParallelEach(static_cast<int64_t>(changed.size()), [&](int64_t i) { lora_->Merge(i); });
  }
  outcome.applied = true;
  return outcome;
}

const float* Optimizer::TrainedGradient() {
  if (lora_ == nullptr) return grads_[0].whole.const_data_ptr<float>();
  lora_->Gradients(grads_[0].views, absl::MakeSpan(factor_grads_.views));
  return factor_grads_.whole.const_data_ptr<float>();
}

void Optimizer::PreserveState(const Snapshots& snapshots, size_t i) {
  if (snapshots.moments == nullptr) return;
  for (size_t kind = 0; kind < StateOf(trained_.list[i]).size(); ++kind)
    snapshots.moments->Preserve(kind * trained_.list.size() + i);
}

std::vector<std::pair<const char*, float*>> Optimizer::StateOf(const Slot& slot) {
  std::vector<std::pair<const char*, float*>> state;
  if (slot.average != nullptr) state.emplace_back("a.", slot.average);
  state.emplace_back("m.", m_.mutable_data_ptr<float>() + slot.offset);
  // The checkpoint's model has the weights, from which the factors cannot be computed.
  if (lora_ != nullptr) state.emplace_back("p.", slot.tensor.mutable_data_ptr<float>());
  state.emplace_back("v.", v_.mutable_data_ptr<float>() + slot.offset);
  return state;
}

Optimizer::Snapshots Optimizer::TakeSnapshots() {
  std::vector<Snapshot::Live> parameters, moments;
  for (const Slot& slot : parameters_.list) {
    parameters.push_back({{slot.name, DType::kF32, slot.tensor.sizes().vec()},
                          slot.tensor.const_data_ptr<float>(),
                          slot.size});
  }
  for (size_t kind = 0; kind < StateOf(trained_.list[0]).size(); ++kind) {
    for (const Slot& slot : trained_.list) {
      const auto [prefix, values] = StateOf(slot)[kind];
      moments.push_back({{absl::StrCat(prefix, slot.name), DType::kF32, slot.tensor.sizes().vec()},
                         values,
                         slot.size});
    }
  }
  const Snapshots snapshots{std::make_shared<Snapshot>(std::move(parameters)),
                            std::make_shared<Snapshot>(std::move(moments))};
  snapshots_.emplace_back(snapshots.parameters, snapshots.moments);
  return snapshots;
}

Optimizer::~Optimizer() { PreserveAll(); }

void Optimizer::PreserveAll() {
  for (const Snapshots& live : LiveSnapshots()) {
    if (live.parameters != nullptr) live.parameters->PreserveAll();
    if (live.moments != nullptr) live.moments->PreserveAll();
  }
}

std::vector<Optimizer::Snapshots> Optimizer::LiveSnapshots() {
  std::vector<Snapshots> live;
  std::erase_if(snapshots_, [&](const auto& weak) {
    live.push_back({weak.first.lock(), weak.second.lock()});
    if (live.back().parameters != nullptr || live.back().moments != nullptr) return false;
    live.pop_back();
    return true;
  });
  return live;
}

absl::Status Optimizer::Restore(const TensorSource& moments, int64_t updates) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < moments.specs().size(); ++i) places[moments.specs()[i].name] = i;
  for (const Slot& slot : trained_.list) {
    for (const auto& [prefix, values] : StateOf(slot)) {
      const TensorSpec wanted{absl::StrCat(prefix, slot.name), DType::kF32,
                              slot.tensor.sizes().vec()};
      const auto place = places.find(wanted.name);
      if (place == places.end() || !(moments.specs()[place->second] == wanted)) {
        const std::string found = place == places.end()
                                      ? "missing"
                                      : ShapeText(moments.specs()[place->second].dtype,
                                                  moments.specs()[place->second].shape);
        return absl::InvalidArgumentError(
            absl::StrCat("the tensor ", wanted.name, " of the optimizer's state is ", found,
                         "; the model needs ", ShapeText(wanted.dtype, wanted.shape)));
      }
      SLUICE_RETURN_IF_ERROR(moments.Read(place->second, 0, slot.size, values));
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

}  // namespace sluice::trainer
