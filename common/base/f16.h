#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

// Exact, because every float16 (IEEE 754 binary16) is a float. It has no branches, so that loops
// over it are vectorised.
inline float FloatFromF16(uint16_t value) {
  const uint32_t sign = (value & 0x8000u) << 16, digits = value & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(digits)) * 0x1.0p-24f;
  const uint32_t normal = (digits << 13) + (112u << 23), special = (digits << 13) | 0x7f800000u,
                 magnitude = digits < 0x400    ? std::bit_cast<uint32_t>(subnormal)
                             : digits < 0x7c00 ? normal
                                               : special;
  return std::bit_cast<float>(sign | magnitude);
}

}  // namespace sluice
