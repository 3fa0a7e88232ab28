#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half x) { return x.bits; }

inline float __half2float(__half x) {
  const uint32_t digits = x.bits & 0x7FFFu, sign = (x.bits & 0x8000u) << 16;
  // Infinities and NaNs keep their mantissa. For all other numbers, denormals included, the product
  // with 2^112 corrects the exponent.
  const uint32_t size =
      digits >= 0x7C00u
          ? digits << 13 | 0x7F800000u
          : __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, digits << 13) * 0x1p112f);
  return __builtin_bit_cast(float, size | sign);
}

// Rounds to nearest, ties to even. From 65520 on the result is infinity.
inline __half __float2half_rn(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000u : 0;
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7FFFu)};
  const float size = std::fabs(x);
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00u)};

  // The last bit of an fp16 number is worth 2^place: 10 below its first bit, and at least -24.
  const int place = std::max(std::ilogb(size == 0 ? 0x1p-24f : size) - 10, -24);
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(size, -place)), place);

  // The product changes the exponent's bias to that of fp16: the reverse of __half2float().
  const float moved = rounded * 0x1p-112f;
  return {static_cast<uint16_t>(sign | __builtin_bit_cast(uint32_t, moved) >> 13)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }
