#include "common/base/bf16.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/f16.h"
#include "common/base/splitmix.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Bf16Test, MasterWeightsMoveWhereBf16WouldStandStill) {
  float master = 1;
  const float wanted[] = {1.0f, 0.99609375f, 0.99609375f, 0.99609375f, 0.99609375f};
  float pure = 1;

  for (float cast : wanted) {
    master -= 0.001f;
    EXPECT_EQ(FloatFromBf16(Bf16FromFloat(master)), cast);
    pure = FloatFromBf16(Bf16FromFloat(pure - 0.001f));
    EXPECT_EQ(pure, 1);
  }
}

// The reference: returns the nearer neighbour by exact arithmetic, and on a tie the one whose last
// bit is 0.
uint16_t SlowBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t toward_zero = static_cast<uint16_t>(bits >> 16);
  const double low = FloatFromBf16(toward_zero), value = x;
  const uint16_t next = static_cast<uint16_t>(toward_zero + 1);

  // After the largest finite number comes infinity. It counts as 2^128, the number that would
  // follow if the format had a larger exponent.
  const double high =
      (next & 0x7fff) == 0x7f80 ? std::copysign(std::ldexp(1.0, 128), value) : FloatFromBf16(next);
  const double down = std::abs(value - low), up = std::abs(high - value);
  if (down != up) return down < up ? toward_zero : next;
  return toward_zero & 1 ? next : toward_zero;
}

TEST(Bf16Test, RoundsToNearestEven) {
  SplitMix64 random(5);
  std::vector<float> master;
  for (int i = 0; i < 100000; ++i) {
    uint32_t bits = static_cast<uint32_t>(random.Next());
    if (i % 4 == 1) bits = (bits & 0xffff0000u) | 0x8000u;  // Halfway between two neighbours.
    if (i % 4 == 2) bits &= 0x807fffffu;                    // A subnormal number.
    // An infinity or a NaN becomes a finite number.
    if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xbfffffffu;
    master.push_back(std::bit_cast<float>(bits));
  }

  master.push_back(std::numeric_limits<float>::max());
  master.push_back(0.0f);
  master.push_back(-0.0f);

  for (const float x : master) ASSERT_EQ(Bf16FromFloat(x), SlowBf16(x)) << std::hexfloat << x;
}

TEST(Bf16Test, NotFiniteStaysNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatFromBf16(Bf16FromFloat(inf)), inf);
  EXPECT_EQ(FloatFromBf16(Bf16FromFloat(-inf)), -inf);
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)))));
}

TEST(F16Test, EachNumberIsTheSameAsAFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float want = static_cast<float>(std::bit_cast<_Float16>(half)), got = FloatFromF16(half);
    if (std::isnan(want)) EXPECT_TRUE(std::isnan(got)) << bits;
    else EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << bits;
  }
}

}  // namespace
}  // namespace sluice
