#pragma once

#include <cstdint>

// Fingerprint of weights: 128 bits, additive, so that the sums of parts (tensors, shards, changes)
// add up to that of the whole. All arithmetic is modulo 2^64. With G = 0x9E3779B97F4A7C15 and M =
// the finaliser of splitmix64:
//   R_l[j] = M(G (1024 l + j + 1)) | 1            lane l in {0, 1}, 0 <= j < 1024
//   T_l(b) = M(tid + G (2 b + l + 1)) | 1         once per block b of 1024 elements
//   F_l    = sum over i of  T_l(i div 1024) R_l[i mod 1024] bits(i)
// bits(i) is the bit pattern of element i as an unsigned integer of 8, 16 or 32 bits. The keys are
// odd, so a single wrong element always changes the fingerprint. Not cryptographic.
namespace sluice::kernels {

inline constexpr uint64_t kFingerprintBlock = 1024;

// Adds the terms of `count` elements to sum[0..1]. `elements` points to the element with flat index
// `first`; `width` is its size, 1, 2 or 4 bytes; `tid` is the key of the tensor. Elements are
// little-endian, with any alignment.
void AddFingerprint(uint64_t tid, const void* elements, int width, uint64_t first, uint64_t count,
                    uint64_t sum[2]);

#ifdef SLUICE_CUDA
// The same for device memory: adds to the two device words sum[0..1] in stream order and does not
// synchronise. `stream` is a cudaStream_t. The elements must be aligned to their width.
void AddFingerprintCuda(uint64_t tid, const void* elements, int width, uint64_t first,
                        uint64_t count, uint64_t* sum, void* stream);
#endif

}  // namespace sluice::kernels
