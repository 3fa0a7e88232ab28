#include "common/models/rope_angles.h"

#include <cmath>

namespace sluice {

RopeAngles::RopeAngles(const RopeConfig& rope, int64_t head_dim, int64_t positions)
    : pairs_(head_dim / 2) {
  const std::vector<float> frequencies = rope.Frequencies(head_dim);
  cos_.reserve(positions * pairs_);
  sin_.reserve(positions * pairs_);

  for (int64_t p = 0; p < positions; ++p) {
    for (const float frequency : frequencies) {
      // The angle is an fp32 product, as in transformers.
      const float angle = static_cast<float>(p) * frequency;
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

}  // namespace sluice
