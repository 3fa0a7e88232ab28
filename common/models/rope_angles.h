#pragma once

#include <cstdint>
#include <vector>

#include "common/checkpoint/model_config.h"

namespace sluice {

// The cosines and sines of the rotary position embedding, for every position of a context. D is the
// head size.
class RopeAngles {
 public:
  RopeAngles(const RopeConfig& rope, int64_t head_dim, int64_t positions);

  // Return [D / 2]: the cosines and the sines of the angles by which the pairs of a head are
  // rotated at `position`.
  const float* cos(int64_t position) const { return &cos_[position * pairs_]; }
  const float* sin(int64_t position) const { return &sin_[position * pairs_]; }
  int64_t pairs() const { return pairs_; }

 private:
  const int64_t pairs_;
  std::vector<float> cos_, sin_;  // [positions, D / 2]
};

}  // namespace sluice
