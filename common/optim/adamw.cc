#include "common/optim/adamw.h"

#include <bit>
#include <cmath>

#include "common/base/splitmix.h"

namespace sluice {
namespace {

// What all elements have in common.
struct StepFactors {
  StepFactors(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale)
      : keep(static_cast<float>(decay ? 1 - lr * options.weight_decay : 1.0)),
        b1(static_cast<float>(options.beta1)),
        a1(static_cast<float>(1 - options.beta1)),
        b2(static_cast<float>(options.beta2)),
        a2(static_cast<float>(1 - options.beta2)),
        step(static_cast<float>(lr / (1 - std::pow(options.beta1, static_cast<double>(t))))),
        root(
            static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, static_cast<double>(t))))),
        eps(static_cast<float>(options.eps)),
        scale(static_cast<float>(grad_scale)) {}

  const float keep, b1, a1, b2, a2, step, root, eps, scale;
};

inline void UpdateElement(const StepFactors& f, float grad, float* param, float* m, float* v) {
  const float g = grad * f.scale;
  *m = f.b1 * *m + f.a1 * g;
  *v = f.b2 * *v + f.a2 * g * g;
  *param = *param * f.keep - f.step * *m / (std::sqrt(*v) * f.root + f.eps);
}

inline float Widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Rounds to one of the two neighbours; `noise` are 16 random bits. Numbers that bf16 has stay as
// they are.
inline uint16_t RoundStochastically(float x, uint32_t noise) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + noise) >> 16);
}

// A hash of 32 bits (lowbias32 of Chris Wellons' "Prospecting for Hash Functions"). It compiles to
// vector instructions.
inline uint32_t Hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= x >> 15;
  x *= 0x846ca68b;
  return x ^ x >> 16;
}

// The elements of a step with moments in bf16, and where they are.
struct Bf16Elements {
  int64_t n;
  uint32_t first, key;
  const float* __restrict grad;
  float* __restrict param;
  uint16_t* __restrict m, * __restrict v;
};

[[gnu::always_inline]] inline void UpdateAll(const StepFactors& factors, const Bf16Elements& all) {
  const Bf16Elements e = all;
  for (int64_t i = 0; i < e.n; ++i) {
    float wide_m = Widen(e.m[i]), wide_v = Widen(e.v[i]);
    UpdateElement(factors, e.grad[i], &e.param[i], &wide_m, &wide_v);
    const uint32_t noise = Hash((e.first + static_cast<uint32_t>(i)) ^ e.key);
    e.m[i] = RoundStochastically(wide_m, noise & 0xFFFF);
    e.v[i] = RoundStochastically(wide_v, noise >> 16);
  }
}

// The same loop for several instruction sets. Without them the hash takes longer than the memory.
// No operation of it may be fused with another, so all give the same bits.
void UpdatePlain(const StepFactors& factors, const Bf16Elements& all) { UpdateAll(factors, all); }
[[gnu::target("avx2")]] void UpdateAvx2(const StepFactors& factors, const Bf16Elements& all) {
  UpdateAll(factors, all);
}

[[gnu::target("avx512f,avx512bw")]] void UpdateAvx512(const StepFactors& factors,
                                                      const Bf16Elements& all) {
  UpdateAll(factors, all);
}

auto BestUpdate() {
  return __builtin_cpu_supports("avx512bw") ? UpdateAvx512
         : __builtin_cpu_supports("avx2")   ? UpdateAvx2
                                            : UpdatePlain;
}

}  // namespace

void AdamWStep(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
               int64_t n, const float* __restrict grad, float* __restrict param,
               float* __restrict m, float* __restrict v) {
  const StepFactors factors(options, t, lr, decay, grad_scale);
  for (int64_t i = 0; i < n; ++i) UpdateElement(factors, grad[i], &param[i], &m[i], &v[i]);
}

void AdamWStepBf16(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
                   int64_t n, uint64_t first, const float* grad, float* param, uint16_t* m,
                   uint16_t* v) {
  static const auto update = BestUpdate();
  const StepFactors factors(options, t, lr, decay, grad_scale);
  const auto key = static_cast<uint32_t>(SplitMix64(static_cast<uint64_t>(t)).Next());
  update(factors, {n, static_cast<uint32_t>(first), key, grad, param, m, v});
}

}  // namespace sluice
