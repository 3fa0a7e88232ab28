#include "services/trainer/core/optimizer.h"

#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/parallel.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"

namespace sluice::trainer {
namespace {

constexpr int64_t kAlign = 16;  // In elements: slots start on cache lines.
// Fewest elements for which another thread is worth its cost.
constexpr int64_t kMinElementsPerThread = 1 << 18;

}  // namespace

Optimizer::Optimizer(TrainModel* model, const OptimizerSettings& settings) : settings_(settings) {
  const ScheduleRow* row = FindSchedule(settings.schedule);
  SLUICE_CHECK_MSG(row != nullptr, settings.schedule);  // Validate() has checked the name.
  schedule_ = Schedule{settings.warmup, settings.total, 0.0, row->shape};
  for (const TrainModel::Parameter& parameter : model->parameters()) {
    slots_.push_back({&parameter, flat_size_, parameter.tensor.numel()});
    flat_size_ += (parameter.tensor.numel() + kAlign - 1) / kAlign * kAlign;
  }

  grads_[0] = MakeFlat();
  m_ = at::zeros({flat_size_});
  v_ = at::zeros({flat_size_});
  SelectAccumulator(0);
}

Optimizer::Flat Optimizer::MakeFlat() const {
  Flat flat{at::zeros({flat_size_}), {}};
  for (const Slot& slot : slots_) {
    flat.views.push_back(
        flat.whole.narrow(0, slot.offset, slot.size).view(slot.parameter->tensor.sizes()));
  }
  return flat;
}

void Optimizer::SelectAccumulator(int index) {
  if (!used(index)) grads_[index] = MakeFlat();
  for (size_t i = 0; i < slots_.size(); ++i)
    slots_[i].parameter->tensor.mutable_grad() = grads_[index].views[i];
}

void Optimizer::ZeroGrad() {
  for (Flat& flat : grads_) {
    if (flat.whole.defined())
      std::memset(flat.whole.mutable_data_ptr<float>(), 0, flat_size_ * sizeof(float));
  }
}

Optimizer::Outcome Optimizer::Update(double scale0, double scale1) {
  float* grad = grads_[0].whole.mutable_data_ptr<float>();
  // Combine the accumulators in the first one. Both factors are applied here, so `scale0` is 1 from
  // now on.
  if (used(1)) {
    const float* other = grads_[1].whole.const_data_ptr<float>();
    for (int64_t i = 0; i < flat_size_; ++i)
      grad[i] = static_cast<float>(scale0 * grad[i] + scale1 * other[i]);
    scale0 = 1;
  }

  Outcome outcome;
  outcome.grad_norm = std::sqrt(SumOfSquares(grad, flat_size_)) * std::abs(scale0);
  outcome.lr = settings_.lr * schedule_.Factor(updates_);
  if (!std::isfinite(outcome.grad_norm)) return outcome;

  const AdamWOptions options{settings_.beta1, settings_.beta2, settings_.eps,
                             settings_.weight_decay};
  const double grad_scale = scale0 * ClipFactor(outcome.grad_norm, settings_.max_grad_norm);
  ++updates_;
  float *const m = m_.mutable_data_ptr<float>(), *const v = v_.mutable_data_ptr<float>();
  for (const Slot& slot : slots_) {
    const at::Tensor& parameter = slot.parameter->tensor;
    float* const values = parameter.mutable_data_ptr<float>();
    ParallelFor(slot.size, kMinElementsPerThread, [&](int64_t begin, int64_t end) {
      const int64_t at = slot.offset + begin;
      AdamWStep(options, updates_, outcome.lr, /*decay=*/parameter.dim() >= 2, grad_scale,
                end - begin, grad + at, values + begin, m + at, v + at);
    });
  }
  outcome.applied = true;
  return outcome;
}

absl::StatusOr<TensorSet> Optimizer::Moments() const {
  std::vector<TensorSpec> specs;
  for (const char* prefix : {"m.", "v."}) {
    for (const Slot& slot : slots_) {
      specs.push_back({absl::StrCat(prefix, slot.parameter->name), DType::kF32,
                       slot.parameter->tensor.sizes().vec()});
    }
  }
  SLUICE_ASSIGN_OR_RETURN(TensorSet moments, TensorSet::Create(std::move(specs)));
  for (const auto& [prefix, flat] : {std::pair("m.", &m_), std::pair("v.", &v_)}) {
    for (const Slot& slot : slots_) {
      const int64_t i = moments.Find(absl::StrCat(prefix, slot.parameter->name));
      std::memcpy(moments.data(i), flat->const_data_ptr<float>() + slot.offset,
                  slot.size * sizeof(float));
    }
  }
  return moments;
}

absl::Status Optimizer::Restore(const TensorSet& moments, int64_t updates) {
  for (const auto& [prefix, flat] : {std::pair("m.", &m_), std::pair("v.", &v_)}) {
    for (const Slot& slot : slots_) {
      const TensorSpec wanted{absl::StrCat(prefix, slot.parameter->name), DType::kF32,
                              slot.parameter->tensor.sizes().vec()};
      const int64_t i = moments.Find(wanted.name);
      if (i < 0 || !(moments.spec(i) == wanted)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the moment ", wanted.name, " of the optimizer's state is ",
            i < 0 ? "missing" : ShapeText(moments.spec(i).dtype, moments.spec(i).shape),
            "; the model needs ", ShapeText(wanted.dtype, wanted.shape)));
      }
      std::memcpy(flat->mutable_data_ptr<float>() + slot.offset, moments.data(i),
                  slot.size * sizeof(float));
    }
  }
  updates_ = updates;
  return absl::OkStatus();
}

void Optimizer::Reset() {
  m_.zero_();
  v_.zero_();
  updates_ = 0;
}

}  // namespace sluice::trainer
