#pragma once

#include <cstdint>

#include "kernels/decoder/op.h"

namespace sluice {

// The operations of op.h on a GPU. Every sum has the same order, so the bits equal those of the CPU
// kinds with fused multiply-add. Pointers are device pointers, `stream` is a cudaStream_t, and each
// function returns the cudaError_t of its launch. None of them synchronises. As on the CPU, a
// result depends only on its own row: the number of rows decides which threads compute a sum, but
// no sum is split, and there are no atomics. Packed weights must be aligned to 16 bytes, as the
// memory of cudaMalloc() is. Only built with SLUICE_CUDA.
namespace cuda {

// As gemm and gemm_bf16. In bf16, ldx and K must be even.
int Gemm(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
         float* y, int64_t ldy, bool add, void* stream);
int GemmBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
             int64_t k, float* y, int64_t ldy, bool add, void* stream);

// As gate_up and gate_up_bf16. In bf16, ldx and K must be even.
int GateUp(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
           float* y, int64_t ldy, void* stream);
int GateUpBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
               int64_t k, uint16_t* y, int64_t ldy, void* stream);

// rms_norm of m rows of n numbers, stored one after the other.
int RmsNorm(const float* x, const float* weight, int64_t m, int64_t n, float eps, float* y,
            void* stream);

// swiglu of n numbers.
int SwiGlu(const float* gate, const float* up, int64_t n, float* y, void* stream);

// rope in place, of `heads` heads [2 half], stored one after the other, in each of m rows (row
// stride ldx). Row r uses the angles cos[positions[r]], sin[positions[r]] of tables [.., half].
int Rope(float* x, int64_t ldx, int64_t m, int64_t heads, const int32_t* positions,
         const float* cos, const float* sin, float sign, int64_t half, void* stream);

// A query of attention, with the KV head and block table of its sequence.
template <typename T>  // float, or uint16_t for fp16.
struct PagedQuery {
  AttentionQuery query;
  KvHead<T> cache;
  const int32_t* blocks;
};
// As attend and attend_f16, for queries of any sequences and heads. If D > 256, returns
// cudaErrorInvalidValue.
int Attend(const PagedQuery<float>* queries, int64_t count, int64_t d, void* stream);
int AttendF16(const PagedQuery<uint16_t>* queries, int64_t count, int64_t d, void* stream);

}  // namespace cuda
}  // namespace sluice
