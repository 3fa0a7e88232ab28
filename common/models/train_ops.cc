#include "common/models/train_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "common/base/bf16.h"
#include "common/models/parallel.h"
#include "common/models/train_function.h"
#include "kernels/decoder/op.h"
#include "kernels/decoder_grad/op.h"
#include "kernels/sample/op.h"

namespace sluice::train_ops {
namespace {

// Returns y [M, N]. Computes it in pieces of rows, in parallel: product(first, rows, to) computes
// `rows` rows from row `first` on and writes them to `to`.
template <typename Product>
at::Tensor ComputeByRows(int64_t m, int64_t n, int64_t k, const at::TensorOptions& options,
                         const Product& product) {
  constexpr int64_t kTile = 48;  // The inputs of this many rows stay in the L1 cache.
  at::Tensor y = at::empty({m, n}, options);
  float* to = MutableData(y);
  ParallelFor(m, ProductGrain(n + k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += kTile) product(r, std::min(kTile, end - r), to + r * n);
  });
  return y;
}

// Returns y [M, N] = x [M, K] times the transpose of a packed weight [N, K].
at::Tensor Multiply(const at::Tensor& x, const std::vector<float>& packed, int64_t n) {
  const int64_t m = x.size(0), k = x.size(1);
  const float* from = ConstData(x);
  return ComputeByRows(m, n, k, x.options(), [&](int64_t r, int64_t rows, float* to) {
    BestDecoderOps().gemm(from + r * k, k, packed.data(), rows, n, k, to, n, false);
  });
}

// Returns a copy of x, rounded to bf16.
at::Tensor Bf16Copy(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  const float* from = ConstData(x);
  float* to = MutableData(y);
  ParallelFor(x.numel(), kPointGrain, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> narrow(end - begin);
    BestDecoderOps().to_bf16(from + begin, end - begin, narrow.data());
    for (int64_t i = begin; i < end; ++i) to[i] = FloatFromBf16(narrow[i - begin]);
  });
  return y;
}

// Returns a copy of x [M, K], made row by row with put(from, count, to). A row of odd length gets a
// zero at its end, because the bf16 kernels take numbers in pairs.
template <typename T, typename Put>
std::vector<T> CopyEvenRows(const at::Tensor& x, const Put& put) {
  const int64_t m = x.size(0), k = x.size(1), ld = RoundUpToPairs(k);
  std::vector<T> rows(m * ld);
  for (int64_t r = 0; r < m; ++r) put(ConstData(x) + r * k, k, &rows[r * ld]);
  return rows;
}

// Returns x times the transpose of w [N, K], with w rounded to bf16, and x too if `round_x`.
at::Tensor MultiplyInBf16(const at::Tensor& x, const at::Tensor& w, bool round_x) {
  const int64_t m = x.size(0), n = w.size(0), k = w.size(1), ld = RoundUpToPairs(k);
  std::vector<uint16_t> packed(PackedBf16s(n, k)), row(k);
  for (int64_t i = 0; i < n; ++i) {
    BestDecoderOps().to_bf16(ConstData(w) + i * k, k, row.data());
    PackRows(row.data(), 1, k, i, packed.data());
  }

  if (round_x) {
    const std::vector<uint16_t> rows = CopyEvenRows<uint16_t>(x, BestDecoderOps().to_bf16);
    return ComputeByRows(m, n, k, x.options(), [&](int64_t r, int64_t count, float* to) {
      BestDecoderOps().gemm_bf16(&rows[r * ld], ld, packed.data(), count, n, k, to, n, false);
    });
  }
  const std::vector<float> rows = CopyEvenRows<float>(
      x, [](const float* from, int64_t count, float* to) { std::copy_n(from, count, to); });
  return ComputeByRows(m, n, k, x.options(), [&](int64_t r, int64_t count, float* to) {
    BestDecoderOps().gemm_mixed(&rows[r * ld], ld, packed.data(), count, n, k, to, n, false);
  });
}

// Returns dw [N, K] = the transpose of g [M, N] times x [M, K]. The M rows are taken in pieces, and
// x is packed so that the kernel sums over the rows of a piece.
at::Tensor OuterProduct(const at::Tensor& g, const at::Tensor& x) {
  constexpr int64_t kPiece = 256;
  const int64_t m = g.size(0), n = g.size(1), k = x.size(1);
  at::Tensor dw = at::zeros({n, k}, g.options());
  const float *grads = ConstData(g), *inputs = ConstData(x);
  float* to = MutableData(dw);
  ParallelFor(n, ProductGrain(m), [&](int64_t begin, int64_t end) {
    std::vector<float> packed(PackedFloats(k, kPiece));
    for (int64_t r = 0; r < m; r += kPiece) {
      const int64_t rows = std::min(kPiece, m - r);
      PackColumns(inputs + r * k, rows, k, packed.data());
      BestDecoderOps().gemm_transposed(grads + r * n + begin, n, packed.data(), end - begin, k,
                                       rows, to + begin * k, k, true);
    }
  });
  return dw;
}

struct LinearFn : Function<LinearFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            Operands operands) {
    const bool narrow = operands != Operands::kF32;
    ctx->save_for_backward({x, w});
    ctx->saved_data["narrow"] = narrow;
    ctx->saved_data["round_x"] = operands == Operands::kBf16;
    if (narrow) return MultiplyInBf16(x, w, operands == Operands::kBf16);

    const int64_t n = w.size(0), k = w.size(1);
    std::vector<float> packed(PackedFloats(n, k));
    PackRows(ConstData(w), n, k, 0, packed.data());
    return Multiply(x, packed, n);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], g = grads[0].contiguous();
    const int64_t n = w.size(0), k = w.size(1);
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor used = ctx->saved_data["narrow"].toBool() ? Bf16Copy(w) : w;
      std::vector<float> packed(PackedFloats(k, n));
      PackColumns(ConstData(used), n, k, packed.data());
      dx = Multiply(g, packed, k);
    }

    if (ctx->needs_input_grad(1))
      dw = OuterProduct(g, ctx->saved_data["round_x"].toBool() ? Bf16Copy(x) : x);
    return {dx, dw, at::Tensor()};
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
    // Only one thread computes this, so that the sums of dw have a fixed order.
    for (int64_t r = 0; r < rows; ++r)
      norm(inputs + r * n, w, dy + r * n, n, eps, dxs + r * n, dws);
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

struct ScoreFn : Function<ScoreFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits,
                               const at::Tensor& targets, double temperature) {
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    at::Tensor lp = at::empty({rows}, logits.options()), entropy = at::empty_like(lp),
               lse = at::empty_like(lp);
    const float divisor = static_cast<float>(temperature);
    const float* z = ConstData(logits);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float *lps = MutableData(lp), *entropies = MutableData(entropy), *lses = MutableData(lse);
    ParallelFor(rows, ProductGrain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const TokenScore score =
            ScoreCpu(z + r * vocab, vocab, divisor, static_cast<int32_t>(target[r]));
        lps[r] = score.logprob, entropies[r] = score.entropy, lses[r] = score.logsumexp;
      }
    });

    ctx->save_for_backward({logits, targets, entropy, lse});
    ctx->saved_data["inverse"] = 1 / temperature;
    return {lp, entropy};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    const auto or_zeros = [&](const at::Tensor& g) {
      return g.defined() ? g.contiguous() : at::zeros({rows}, logits.options());
    };

    const at::Tensor dlp = or_zeros(grads[0]), dentropy = or_zeros(grads[1]);
    at::Tensor dlogits = at::empty_like(logits);
    const float inverse = static_cast<float>(ctx->saved_data["inverse"].toDouble());
    const int64_t* target = saved[1].const_data_ptr<int64_t>();
    const float *z = ConstData(logits), *entropy = ConstData(saved[2]), *lse = ConstData(saved[3]),
                *g = ConstData(dlp), *h = ConstData(dentropy);
    float* to = MutableData(dlogits);
    ParallelFor(rows, ProductGrain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BestDecoderGradOps().score_grad(z + r * vocab, vocab, inverse, target[r], entropy[r],
                                        lse[r], g[r], h[r], to + r * vocab);
      }
    });
    return {dlogits, at::Tensor(), at::Tensor()};
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
std::vector<at::Tensor> Score(const at::Tensor& logits, const at::Tensor& targets,
                              double temperature) {
  return ScoreFn::apply(logits, targets, temperature);
}

}  // namespace sluice::train_ops
