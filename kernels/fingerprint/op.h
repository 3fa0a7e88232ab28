#pragma once

#include <cstdint>

// Fingerprint of weights: 128 bits, additive, so that partial sums of tensors, shards and changes
// add up. With all arithmetic modulo 2^64 and G = 0x9E3779B97F4A7C15, M = splitmix64's finaliser:
//   R_l[j] = M(G (1024 l + j + 1)) | 1            lane l in {0, 1}, 0 <= j < 1024
//   T_l(b) = M(tid + G (2 b + l + 1)) | 1         once per block b of 1024 elements
//   F_l    = sum over i of  T_l(i div 1024) R_l[i mod 1024] bits(i)
// bits(i): the pattern of element i as an unsigned integer of 8, 16 or 32 bits. The keys are odd,
// so one wrong element is always found. Not cryptographic.
namespace sluice::kernels {

inline constexpr uint64_t kFingerprintBlock = 1024;

// Adds the terms of `count` elements to sum[0..1]. `elements` points at the element with flat index
// `first`; `width` is 1, 2 or 4 bytes; `tid` is the tensor's key. Reads little-endian, any
// alignment.
void AddFingerprint(uint64_t tid, const void* elements, int width, uint64_t first, uint64_t count,
                    uint64_t sum[2]);

#ifdef SLUICE_CUDA
// The same over device memory: adds to sum[0..1], two device words, in stream order; does not
// synchronise. `stream` is a cudaStream_t. The elements are aligned to their width.
void AddFingerprintCuda(uint64_t tid, const void* elements, int width, uint64_t first,
                        uint64_t count, uint64_t* sum, void* stream);
#endif

}  // namespace sluice::kernels
