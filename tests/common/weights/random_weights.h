#pragma once

#include <cstdint>

#include "common/base/splitmix.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Two tensors of random numbers; other seeds change all of them.
inline TensorSet RandomWeights(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {40'000}}, {"b", DType::kF32, {13}}});
  SplitMix64 random(seed);
  for (size_t i = 0; i < set.size(); ++i) {
    for (float& x : set.as<float>(i)) x = static_cast<float>(random.Uniform());
  }
  return set;
}

}  // namespace sluice
