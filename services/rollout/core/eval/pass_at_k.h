#pragma once

#include <cstdint>

namespace sluice {

// Returns the unbiased estimate of pass@k (arXiv:2107.03374, section 2.1) from n answers of which c
// passed: the chance that of k answers drawn from them without replacement at least one passed,
//   1 - C(n - c, k) / C(n, k).
// Requires c <= n and 1 <= k <= n.
inline double PassAtK(uint32_t n, uint32_t c, uint32_t k) {
  if (n - c < k) return 1;
  double none = 1;
  for (uint32_t i = n - c + 1; i <= n; ++i) none *= 1.0 - static_cast<double>(k) / i;
  return 1 - none;
}

}  // namespace sluice
