#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/models/parallel.h"

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

// Returns a copy of x whose numbers are rounded to a narrow type, with narrow(from, n, to), and
// widened again, one by one.
template <typename Narrow, typename Widen>
at::Tensor RoundedCopy(const at::Tensor& x, const Narrow& narrow, const Widen& widen) {
  at::Tensor y = at::empty_like(x);
  const float* from = ConstData(x);
  float* to = MutableData(y);
  ParallelFor(x.numel(), kPointGrain, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> rounded(end - begin);
    narrow(from + begin, end - begin, rounded.data());
    for (int64_t i = begin; i < end; ++i) to[i] = widen(rounded[i - begin]);
  });
  return y;
}

}  // namespace sluice::train_ops
