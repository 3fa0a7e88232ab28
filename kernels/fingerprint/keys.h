#pragma once

#include <array>
#include <cstdint>

#include "kernels/fingerprint/op.h"

// The keys of the fingerprint (op.h), for host and device code.
#ifdef __CUDACC__
#define SLUICE_HOST_DEVICE __host__ __device__
#else
#define SLUICE_HOST_DEVICE
#endif

namespace sluice::kernels {

// M in op.h: the finaliser of splitmix64.
SLUICE_HOST_DEVICE constexpr uint64_t FingerprintMix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kFingerprintG = 0x9E3779B97F4A7C15;

// R_lane(j) in op.h.
SLUICE_HOST_DEVICE constexpr uint64_t ElementKey(int lane, uint64_t j) {
  return FingerprintMix(kFingerprintG * (1024 * static_cast<uint64_t>(lane) + j + 1)) | 1;
}
// T_lane(block) in op.h.
SLUICE_HOST_DEVICE constexpr uint64_t BlockKey(uint64_t tid, int lane, uint64_t block) {
  return FingerprintMix(tid + kFingerprintG * (2 * block + static_cast<uint64_t>(lane) + 1)) | 1;
}

// The values R_l[j] for the host, computed once. 16 KiB, which stay in the first-level cache.
struct ElementKeys {
  alignas(64) std::array<std::array<uint64_t, kFingerprintBlock>, 2> r;
  ElementKeys() {
    for (int lane = 0; lane < 2; ++lane) {
      for (uint64_t j = 0; j < kFingerprintBlock; ++j) r[lane][j] = ElementKey(lane, j);
    }
  }
  static const ElementKeys& Get() {
    static const ElementKeys keys;
    return keys;
  }
};

}  // namespace sluice::kernels
