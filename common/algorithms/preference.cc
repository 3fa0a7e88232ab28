#include "common/algorithms/preference.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

// log(1 + exp(x)) and its derivative, without overflow.
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double Sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

}  // namespace

PairLoss DpoLoss(double margin, double beta, double smoothing) {
  const double x = beta * margin;
  return {(1 - smoothing) * Softplus(-x) + smoothing * Softplus(x),
          beta * (smoothing * Sigmoid(x) - (1 - smoothing) * Sigmoid(-x))};
}

}  // namespace sluice
