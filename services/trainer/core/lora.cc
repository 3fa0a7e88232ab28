#include "services/trainer/core/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/splitmix.h"
#include "common/models/parallel.h"

namespace sluice::trainer {

Lora::Lora(const LoraSettings& settings, TrainModel* model, TrainModel* base)
    : seed_(settings.seed),
      scale_(settings.alpha / static_cast<double>(settings.rank)),
      model_(model),
      base_(base) {
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const TrainModel::Parameter& parameter = model->parameters()[i];
    if (!IsLoraTarget(settings, parameter.name)) continue;
    parameters_.push_back(i);
    const std::string name(absl::StripSuffix(parameter.name, ".weight"));
    const int64_t out = parameter.tensor.size(0), in = parameter.tensor.size(1);
    factors_.push_back({absl::StrCat(name, ".lora_A"), at::zeros({settings.rank, in})});
    factors_.push_back({absl::StrCat(name, ".lora_B"), at::zeros({out, settings.rank})});
  }
}

void Lora::Reset() {
  SplitMix64 random(seed_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(a(i).size(1)));
    float* const values = a(i).mutable_data_ptr<float>();
    for (int64_t j = 0; j < a(i).numel(); ++j)
      values[j] = static_cast<float>(bound * (2 * random.Uniform() - 1));
    b(i).zero_();
  }
}

void Lora::Gradients(absl::Span<const at::Tensor> weight_gradients,
                     absl::Span<at::Tensor> factor_gradients) const {
  // A matrix is the work of one thread, which gives the same bits for any number of threads.
  ParallelEach(static_cast<int64_t>(parameters_.size()), [&](int64_t i) {
    const at::NoGradGuard no_grad;
    const at::Tensor& gradient = weight_gradients[parameters_[i]];
    factor_gradients[2 * i].copy_(b(i).t().mm(gradient).mul_(scale_));
    factor_gradients[2 * i + 1].copy_(gradient.mm(a(i).t()).mul_(scale_));
  });
}

void Lora::Merge(size_t i) {
  const at::NoGradGuard no_grad;
  const TrainModel::Parameter& weight = model_->parameters()[parameters_[i]];
  const at::Tensor& frozen = base_->parameters()[parameters_[i]].tensor;
  at::Tensor merged = weight.tensor.detach();  // Of the same memory.
  merged.copy_(frozen);
  merged.addmm_(b(i), a(i), /*beta=*/1, /*alpha=*/scale_);
}

}  // namespace sluice::trainer
