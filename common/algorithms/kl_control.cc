#include "common/algorithms/kl_control.h"

#include <algorithm>

namespace sluice {

double AdaptKl(const KlControl& control, double beta, double kl, int64_t sequences) {
  if (control.target == 0) return beta;
  const double error = std::clamp(kl / control.target - 1, -0.2, 0.2);
  return beta * (1 + error * static_cast<double>(sequences) / control.horizon);
}

}  // namespace sluice
