#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>

// What the autograd functions of train_ops.h are written with. For their .cc files alone.
namespace sluice::train_ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

inline const float* In(const at::Tensor& t) { return t.const_data_ptr<float>(); }
inline float* Out(at::Tensor& t) { return t.mutable_data_ptr<float>(); }

// Rows per piece of a product that a thread takes: about 64k numbers of its input and output.
inline int64_t Grain(int64_t row_numbers) {
  return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_numbers));
}

// Numbers, and rows of so many, per piece of what costs a few operations a number: some 100 us,
// which pay for waking a thread.
inline constexpr int64_t kPointGrain = 1 << 19;
inline int64_t PointGrain(int64_t row_numbers) {
  return std::max<int64_t>(1, kPointGrain / std::max<int64_t>(1, row_numbers));
}

}  // namespace sluice::train_ops
