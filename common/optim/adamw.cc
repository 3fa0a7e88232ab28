#include "common/optim/adamw.h"

#include <cmath>

namespace sluice {

void AdamWStep(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
               int64_t n, const float* __restrict grad, float* __restrict param,
               float* __restrict m, float* __restrict v) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(t));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(t));
  const float keep = static_cast<float>(decay ? 1 - lr * options.weight_decay : 1.0);
  const float b1 = static_cast<float>(options.beta1), a1 = static_cast<float>(1 - options.beta1);
  const float b2 = static_cast<float>(options.beta2), a2 = static_cast<float>(1 - options.beta2);
  const float step = static_cast<float>(lr / correction1);
  const float root = static_cast<float>(1 / std::sqrt(correction2));
  const float eps = static_cast<float>(options.eps);
  const float scale = static_cast<float>(grad_scale);
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * scale;
    m[i] = b1 * m[i] + a1 * g;
    v[i] = b2 * v[i] + a2 * g * g;
    param[i] = param[i] * keep - step * m[i] / (std::sqrt(v[i]) * root + eps);
  }
}

}  // namespace sluice
