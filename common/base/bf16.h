#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

// Rounds to the nearest bfloat16, ties to even. A NaN becomes a quiet NaN; a value that is too
// large becomes infinity.
inline uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// Exact, because every bfloat16 is a float.
inline float FloatFromBf16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

}  // namespace sluice
