#pragma once

#include <cstdint>

namespace sluice {

// The increment of splitmix64: 2^64 divided by the golden ratio.
inline constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64: a bijection on 64 bits that mixes well. Seeds and the fingerprints
// of weights are computed with it.
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The seed of the group with this ordinal (0, 1, .. per job). It depends only on the job's seed and
// the ordinal, so random draws stay the same after the queue restarts.
constexpr uint64_t GroupSeed(uint64_t job_seed, uint64_t ordinal) {
  return Mix64(Mix64(job_seed + kGolden) + kGolden * (ordinal + 1));
}
static_assert(GroupSeed(1, 0) == 0x5e41ab087439611e && GroupSeed(1, 1) == 0xf18d6ce93d6cf1ee);

// A small seeded generator for shuffles and tests. Not thread-safe.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix64(state_ += kGolden); }
  // Uniform in [0, n); n > 0.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // SplitMix64(state()) continues the sequence from here.
  uint64_t state() const { return state_; }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }  // In [0, 1).

 private:
  uint64_t state_;
};

}  // namespace sluice
