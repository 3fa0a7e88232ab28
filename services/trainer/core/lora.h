#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/models/train_model.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// Low-rank training of some weight matrices of a model (LoRA, arXiv:2106.09685):
// W = W0 + scale B A, where W0 [out, in] is frozen, and A [r, in] and B [out, r] are trained. The
// scale is alpha / r.
//
// The model holds W itself and not the factors. Forward and backward are therefore those of full
// training, and trainer and engines agree bit for bit as there; an engine need not know of the
// factors. The price is that the gradient of W is computed as a whole.
class Lora {
 public:
  // `base` holds the frozen weights. Both models outlive this object.
  Lora(const LoraSettings& settings, TrainModel* model, TrainModel* base);

  // A factor that is trained: A and B of the first matrix, then those of the next one, in the order
  // of the parameters. Their names rise.
  struct Factor {
    std::string name;  // NAME.lora_A or NAME.lora_B, where NAME is the weight's without `.weight`.
    at::Tensor value;
  };
  const std::vector<Factor>& factors() const { return factors_; }

  // Sets A to random numbers, uniform within 1 / sqrt(in) of 0 as in PEFT, and B to 0. The seed
  // decides, whatever the number of threads.
  void Reset();
  // Computes the gradients of all factors from `weight_gradients`, those of the model's parameters.
  void Gradients(absl::Span<const at::Tensor> weight_gradients,
                 absl::Span<at::Tensor> factor_gradients) const;

  // Indices of the parameters that have factors, in the order of the matrices.
  const std::vector<size_t>& parameters() const { return parameters_; }
  // Sets weight i of parameters() in the model from its factors.
  void Merge(size_t i);

 private:
  const at::Tensor& a(size_t i) const { return factors_[2 * i].value; }
  const at::Tensor& b(size_t i) const { return factors_[2 * i + 1].value; }

  const uint64_t seed_;
  const double scale_;
  TrainModel* const model_;
  TrainModel* const base_;
  std::vector<size_t> parameters_;
  std::vector<Factor> factors_;
};

}  // namespace sluice::trainer
