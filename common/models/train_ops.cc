#include "common/models/train_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/bf16.h"
#include "common/models/parallel.h"
#include "common/models/train_function.h"
#include "common/models/train_products.h"
#include "kernels/decoder/op.h"
#include "kernels/decoder_grad/op.h"

namespace sluice::train_ops {
namespace {

// Returns a copy of x, rounded to bf16.
at::Tensor Bf16Copy(const at::Tensor& x) {
  return RoundedCopy(x, BestDecoderOps().to_bf16, FloatFromBf16);
}

struct LinearFn : Function<LinearFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            Operands operands) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["operands"] = static_cast<int64_t>(operands);
    at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
    Multiply(ConstData(x), ConstData(w), x.size(0), w.size(0), w.size(1), operands, MutableData(y),
             w.size(0));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], g = grads[0].contiguous();
    const auto operands = static_cast<Operands>(ctx->saved_data["operands"].toInt());
    const int64_t m = x.size(0), n = w.size(0), k = w.size(1);
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = at::empty_like(x);
      MultiplyGradX(ConstData(g), ConstData(w), m, n, k, operands, MutableData(dx));
    }
    if (ctx->needs_input_grad(1))
      MultiplyGradW(ConstData(g), ConstData(x), m, n, k, operands, GradientSum(w));
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// The gradient touches only the rows of the tokens that occur.
struct EmbedFn : Function<EmbedFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table,
                            const std::vector<int64_t>& tokens, bool narrow) {
    ctx->save_for_backward({table});
    ctx->saved_data["tokens"] = tokens;
    const int64_t n = table.size(1), rows = static_cast<int64_t>(tokens.size());
    at::Tensor x = at::empty({rows, n}, table.options());
    const float* from = ConstData(table);
    float* to = MutableData(x);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from + tokens[r] * n, n, to + r * n);
    return narrow ? Bf16Copy(x) : x;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor table = ctx->get_saved_variables()[0], g = grads[0].contiguous();
    const std::vector<int64_t> tokens = ctx->saved_data["tokens"].toIntVector();
    const int64_t n = table.size(1);
    const float* from = ConstData(g);
    float* to = GradientSum(table);
    for (size_t r = 0; r < tokens.size(); ++r) {
      for (int64_t i = 0; i < n; ++i) to[tokens[r] * n + i] += from[r * n + i];
    }
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct RoundToBf16Fn : Function<RoundToBf16Fn> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return Bf16Copy(x); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

struct RmsNormFn : Function<RmsNormFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    const int64_t n = weight.size(0);
    at::Tensor y = at::empty_like(x);
    const float *from = ConstData(x), *w = ConstData(weight);
    float* to = MutableData(y);
    const auto norm = BestDecoderOps().rms_norm;

    ParallelFor(x.numel() / n, PointGrain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        norm(from + r * n, w, n, static_cast<float>(eps), to + r * n);
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], g = grads[0].contiguous();
    const float eps = static_cast<float>(ctx->saved_data["eps"].toDouble());
    const int64_t n = weight.size(0), rows = x.numel() / n;
    at::Tensor dx = at::empty_like(x), dw = at::zeros_like(weight);
    const float *inputs = ConstData(x), *w = ConstData(weight), *dy = ConstData(g);
    float *dxs = MutableData(dx), *dws = MutableData(dw);
    const auto norm = BestDecoderGradOps().rms_norm;
    // The sums of dw have an order that does not depend on the number of threads: one sum for each
    // part of the rows, added in the order of the parts.
    const int64_t part = PointGrain(n), parts = (rows + part - 1) / part;
    std::vector<float> sums(parts * n);
    ParallelEach(parts, [&](int64_t p) {
      for (int64_t r = p * part; r < std::min(rows, (p + 1) * part); ++r)
        norm(inputs + r * n, w, dy + r * n, n, eps, dxs + r * n, &sums[p * n]);
    });
    for (int64_t i = 0; i < parts * n; ++i) dws[i % n] += sums[i];
    return {dx, dw, at::Tensor()};
  }
};

// Rotates each pair (a, b), where a is in the first half of a head and b is in the second, by the
// angle or (sign = -1) by the negative angle: (a cos - b sin, b cos + a sin).
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, float sign) {
  const int64_t half = cos.size(1), heads = x.size(1) / (2 * half), width = x.size(1);
  at::Tensor y = at::empty_like(x);
  const float *from = ConstData(x), *cosines = ConstData(cos), *sines = ConstData(sin);
  float* to = MutableData(y);
  ParallelFor(x.size(0), PointGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = t * width + h * 2 * half;
        BestDecoderOps().rope(from + at, cosines + t * half, sines + t * half, sign, half, to + at);
      }
    }
  });
  return y;
}

struct RopeFn : Function<RopeFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return Rotate(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {Rotate(grads[0].contiguous(), saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

struct SwiGluFn : Function<SwiGluFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    at::Tensor y = at::empty_like(gate);
    const float *g = ConstData(gate), *u = ConstData(up);
    float* to = MutableData(y);
    const int64_t n = gate.size(1);
    ParallelFor(gate.size(0), PointGrain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        BestDecoderOps().swiglu(g + r * n, u + r * n, n, to + r * n);
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
    const float *g = ConstData(gate), *u = ConstData(saved[1]), *d = ConstData(dy);
    float *dg = MutableData(dgate), *du = MutableData(dup);
    ParallelFor(gate.numel(), kPointGrain, [&](int64_t begin, int64_t end) {
      BestDecoderGradOps().swiglu(g + begin, u + begin, d + begin, end - begin, dg + begin,
                                  du + begin);
    });
    return {dgate, dup};
  }
};

// A function that an AutogradContext can hold.
struct HeldFunction : torch::CustomClassHolder {
  explicit HeldFunction(std::function<variable_list(const at::Tensor&)> f) : call(std::move(f)) {}
  const std::function<variable_list(const at::Tensor&)> call;
};

struct ComputeAgainFn : Function<ComputeAgainFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const c10::intrusive_ptr<HeldFunction>& held) {
    ctx->save_for_backward({x});
    ctx->saved_data["forward"] = c10::IValue::make_capsule(held);
    return held->call(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto held =
        c10::static_intrusive_pointer_cast<HeldFunction>(ctx->saved_data["forward"].toCapsule());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    const at::AutoGradMode with_grad(true);
    torch::autograd::backward(held->call(x), grads);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Integers(absl::Span<const int64_t> values) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, Operands operands) {
  return LinearFn::apply(x, w, operands);
}
at::Tensor Embed(const at::Tensor& table, const std::vector<int64_t>& tokens, bool narrow) {
  return EmbedFn::apply(table, tokens, narrow);
}
variable_list ComputeAgain(const at::Tensor& x,
                           std::function<variable_list(const at::Tensor& x)> forward) {
  return ComputeAgainFn::apply(x, c10::make_intrusive<HeldFunction>(std::move(forward)));
}
at::Tensor RoundToBf16(const at::Tensor& x) { return RoundToBf16Fn::apply(x); }
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFn::apply(x, weight, eps);
}
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RopeFn::apply(x, cos, sin);
}
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  return SwiGluFn::apply(gate, up);
}
}  // namespace sluice::train_ops
