#pragma once

#include <cstdint>
#include <string>

#include "common/base/splitmix.h"

namespace sluice {

// What a host of the tests shares.
inline std::string PeerBytes(uint64_t seed, uint64_t bytes) {
  SplitMix64 random(seed);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random.Next());
  return out;
}

}  // namespace sluice
