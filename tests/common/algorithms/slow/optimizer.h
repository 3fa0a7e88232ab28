#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

// Section 13 of the sheet: the optimizer step.
namespace sluice::slow {

// 13.2
inline double GlobalNorm(const std::vector<double>& gradient) {
  double squares = 0;
  for (const double g : gradient) squares += g * g;
  return std::sqrt(squares);
}
inline double ClipByNorm(double norm, double max_norm) {
  return std::min(1.0, max_norm / (norm + 1e-6));
}

// 13.3, for one parameter.
struct AdamW {
  double lr = 0, b1 = 0.9, b2 = 0.999, eps = 1e-8, wd = 0;
  double p = 0, m = 0, v = 0;
  int t = 0;

  void Step(double g) {
    ++t;
    p -= lr * wd * p;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    p -= lr * (m / (1 - std::pow(b1, t))) / (std::sqrt(v / (1 - std::pow(b2, t))) + eps);
  }
};

// 13.4
inline double WarmUp(double s, double warmup) { return (s + 1) / warmup; }
inline double ConstantFactor(double s, double warmup) { return s < warmup ? WarmUp(s, warmup) : 1; }
inline double CosineFactor(double s, double warmup, double total, double floor) {
  if (s < warmup) return WarmUp(s, warmup);
  const double progress =
      std::min(1.0, std::max(0.0, (s - warmup) / std::max(1.0, total - warmup)));
  return floor + (1 - floor) / 2 * (1 + std::cos(std::acos(-1.0) * progress));
}

// 13.5: the bf16 number nearest to a finite x, by arithmetic: 8 significant bits, of which the
// last is worth at least 2^-133, ties to even.
inline double NearestBf16(double x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x) - 7, -133);
  const double units = std::ldexp(x, -exponent);  // nearbyint() rounds ties to even.
  const double rounded = std::ldexp(std::nearbyint(units), exponent);
  return std::abs(rounded) >= std::ldexp(1, 128) ? std::copysign(INFINITY, x) : rounded;
}

}  // namespace sluice::slow
