#pragma once

#include <cstdint>
#include <cstring>

// Arithmetic that op_cpu.cc and op.cu share, written so that both give the same bits: plain fp32
// operations, each rounded once (no contraction: -ffp-contract=off, -fmad=false), no libm, and no
// branches that prevent vectorisation.

// These functions are always inlined, so that they use the vector instructions of their caller.
#ifdef __CUDACC__
#define SLUICE_SAMPLE_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define SLUICE_SAMPLE_INLINE inline __attribute__((always_inline))
#endif

namespace sluice::sample {

inline constexpr int kLanes = 16;  // Number of strided partial sums.
// Vocabulary entries per chunk. Each chunk has its own partial sums, and the sums of the chunks are
// added from left to right.
inline constexpr int kChunk = 1024;
// The Gumbel noise g_v is at most -log(2^-33) = 22.874. A token whose logit is that far below the
// best score cannot win.
inline constexpr float kMaxNoise = 22.9f;
// The noise is at least -log(24 ln 2) = -2.812, so the token with the best logit scores at least
// its logit plus this.
inline constexpr float kLeastNoise = -2.9f;

SLUICE_SAMPLE_INLINE uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

SLUICE_SAMPLE_INLINE float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// e^x for x <= 0 within 2 ulp; 0 below -87. Method: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor
// polynomial up to r^7 (remainder 1e-9).
SLUICE_SAMPLE_INLINE float Exp(float x) {
  // 1.5 * 2^23: adding it rounds to an integer, which is in the low bits.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  // ln 2 is split into two constants. The first has so few bits that its product with n is exact.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float scale = FromBits((Bits(shifted) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

// ln x for normal x > 0 within 2 ulp. Method: x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2),
// and a polynomial of the Cephes library.
SLUICE_SAMPLE_INLINE float Log(float x) {
  const uint32_t offset = Bits(x) - 0x3f3504f3;  // sqrt(1/2)
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float f = FromBits((offset & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * z;
  p = p + e * -2.12194440e-4f;
  p = p - 0.5f * z;
  return (f + p) + e * 0.693359375f;
}

// Gumbel noise -log(-log1p(-w)) with w = (x + 1/2) / 2^32, where w is at most 1 - 2^-24, so that
// the result is finite.
SLUICE_SAMPLE_INLINE float Gumbel(uint32_t x) {
  // The two halves are converted separately, because a signed conversion is one instruction on all
  // targets.
  const float high = static_cast<float>(static_cast<int32_t>(x >> 16));
  const float low = static_cast<float>(static_cast<int32_t>(x & 0xffff)) + 0.5f;
  const float sum = (high * 65536.0f + low) * 0x1p-32f;
  const float w = sum < 0x1.fffffep-1f ? sum : 0x1.fffffep-1f;
  const float u = 1.0f - w;
  // log1p(-w) = log(u) * -w / (u - 1), which cancels the rounding error of u. If u is 1, the result
  // is -w.
  const float ratio = w / (1.0f - u);
  const float exponential = u == 1.0f ? w : -Log(u) * ratio;
  return -Log(exponential);
}

// Maps x to an integer that rises with x; -0 and 0 have the same one.
SLUICE_SAMPLE_INLINE uint32_t OrderKey(float x) {
  const uint32_t bits = Bits(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Weight of a token in top-p as an integer, in units of 2^-40, from e = exp(z' - max).
SLUICE_SAMPLE_INLINE uint64_t Mass(float e) { return static_cast<uint64_t>(e * 0x1p40f); }

// Returns the smallest mass that is at least the share p of `total` > 0.
SLUICE_SAMPLE_INLINE uint64_t MassWanted(double p, uint64_t total) {
  const double wanted = p * static_cast<double>(total);
  uint64_t mass = static_cast<uint64_t>(wanted);
  mass += static_cast<double>(mass) < wanted;
  return mass < 1 ? 1 : mass > total ? total : mass;
}

// A prefix of the tokens in the order of op.h: those for which OrderKey(z') is above `key`, and of
// those for which it equals `key` the ids up to `last`.
struct Cut {
  uint32_t key = 0;
  int32_t last = INT32_MAX;
};
SLUICE_SAMPLE_INLINE bool Keeps(const Cut& cut, float z, int64_t id) {
  const uint32_t key = OrderKey(z);
  return key > cut.key || (key == cut.key && id <= cut.last);
}

// The key of a cut is found digit by digit, the highest first: 11, 11 and 10 bits. (These are
// functions because device code cannot index a constant array.)
inline constexpr int kDigits = 3;
SLUICE_SAMPLE_INLINE constexpr int DigitShift(int digit) {
  return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}
SLUICE_SAMPLE_INLINE constexpr int DigitBits(int digit) { return digit < 2 ? 11 : 10; }
inline constexpr int kMostBuckets = 1 << 11;

struct Words {
  uint32_t c[4];
};

// The product of two numbers of 32 bits. CUDA's compiler makes superfluous additions of the plain
// form, if a factor is a constant with the highest bit set.
SLUICE_SAMPLE_INLINE uint64_t Product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__umulhi(a, b)) << 32 | a * b;
#else
  return static_cast<uint64_t>(a) * b;
#endif
}

// The random numbers of Philox4x32-10 (see op.h).
SLUICE_SAMPLE_INLINE Words Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                  uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = Product(0xD2511F53u, c0);
    const uint64_t p1 = Product(0xCD9E8D57u, c2);
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Adds 16 partial sums in a fixed tree.
SLUICE_SAMPLE_INLINE float SumLanes(const float* lanes) {
  float tree[kLanes / 2];
  for (int i = 0; i < kLanes / 2; ++i) tree[i] = lanes[i] + lanes[i + kLanes / 2];
  for (int width = kLanes / 4; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) tree[i] = tree[i] + tree[i + width];
  }
  return tree[0];
}

}  // namespace sluice::sample
