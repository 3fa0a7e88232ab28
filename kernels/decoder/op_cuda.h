#pragma once

#include <cstdint>

#include "kernels/decoder/op.h"

namespace sluice {

// The pieces of op.h on a GPU, in the same order of every sum, so with the bits of its kinds with
// fused multiply-add. Pointers are the device's, `stream` is a cudaStream_t, and what a launch
// returns is a cudaError_t. A result depends on its own row alone here too: one shape of work for
// all M, no sum is split, no atomics. Built with SLUICE_CUDA.
namespace cuda {

// As gemm and gemm_bf16. In bf16 ldx and K are even.
int Gemm(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
         float* y, int64_t ldy, bool add, void* stream);
int GemmBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
             int64_t k, float* y, int64_t ldy, bool add, void* stream);

// As gate_up and gate_up_bf16.
int GateUp(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
           float* y, int64_t ldy, void* stream);
int GateUpBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
               int64_t k, uint16_t* y, int64_t ldy, void* stream);

// rms_norm of m rows of n numbers side by side.
int RmsNorm(const float* x, const float* weight, int64_t m, int64_t n, float eps, float* y,
            void* stream);

// swiglu of n numbers.
int SwiGlu(const float* gate, const float* up, int64_t n, float* y, void* stream);

// rope of `heads` heads [2 half] side by side in each of m rows (row stride ldx); row r takes
// angles cos[positions[r]], sin[positions[r]] of tables [.., half].
int Rope(float* x, int64_t ldx, int64_t m, int64_t heads, const int32_t* positions,
         const float* cos, const float* sin, float sign, int64_t half, void* stream);

// A query of attention, and the sequence that it is of.
template <typename T>  // float, or uint16_t for fp16.
struct PagedQuery {
  AttentionQuery query;
  KvHead<T> cache;
  const int32_t* blocks;
};
// As attend and attend_f16, for queries of any sequences and heads. D <= 256.
int Attend(const PagedQuery<float>* queries, int64_t count, int64_t d, void* stream);
int AttendF16(const PagedQuery<uint16_t>* queries, int64_t count, int64_t d, void* stream);

}  // namespace cuda
}  // namespace sluice
