#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace sluice {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::vector<float> RandomLogits(uint32_t seed, int64_t count, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(count);
  for (float& z : logits) z = normal(random);
  return logits;
}

}  // namespace sluice
