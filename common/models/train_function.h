#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

// Names and helpers for the autograd functions of train_ops.h. Only their .cc files include this
// header.
namespace sluice::train_ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

inline const float* ConstData(const at::Tensor& t) { return t.const_data_ptr<float>(); }
inline float* MutableData(at::Tensor& t) { return t.mutable_data_ptr<float>(); }

// Returns how many rows of a matrix product a thread takes at once. `row_numbers` is the number of
// inputs and outputs of one row; a piece has about 64k of them, and at least one row.
inline int64_t ProductGrain(int64_t row_numbers) {
  return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_numbers));
}

// Operations that take only a few instructions per number are split into pieces of kPointGrain
// numbers. Such a piece takes about 100 us, so that it is worth waking a thread. PointGrain() gives
// the length of a piece in rows of `row_numbers` numbers.
inline constexpr int64_t kPointGrain = 1 << 19;
inline int64_t PointGrain(int64_t row_numbers) {
  return std::max<int64_t>(1, kPointGrain / std::max<int64_t>(1, row_numbers));
}

}  // namespace sluice::train_ops
