#include "common/models/train_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "kernels/decoder/op.h"
#include "kernels/decoder_grad/op.h"

namespace sluice::train_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

const float* In(const at::Tensor& t) { return t.const_data_ptr<float>(); }
float* Out(at::Tensor& t) { return t.mutable_data_ptr<float>(); }

// Rows per piece of work that a thread takes: about 64k numbers.
int64_t Grain(int64_t row_numbers) { return std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_numbers)); }

// y [M, N] = x [M, K] times a packed weight [N, K]^T.
at::Tensor Product(const at::Tensor& x, const std::vector<float>& packed, int64_t n) {
  constexpr int64_t kTile = 48;  // Rows whose inputs stay in L1 while the weight's panels pass.
  const int64_t m = x.size(0), k = x.size(1);
  at::Tensor y = at::empty({m, n}, x.options());
  const float* from = In(x);
  float* to = Out(y);
  at::parallel_for(0, m, Grain(n + k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r += kTile) {
      BestDecoderOps().gemm(from + r * k, k, packed.data(), std::min(kTile, end - r), n, k, to + r * n, n, false);
    }
  });
  return y;
}

// dw [N, K] = g [M, N]^T times x [M, K], the rows of both in pieces, x packed so that the sums run over the piece.
at::Tensor OuterProduct(const at::Tensor& g, const at::Tensor& x) {
  constexpr int64_t kPiece = 256;
  const int64_t m = g.size(0), n = g.size(1), k = x.size(1);
  at::Tensor dw = at::zeros({n, k}, g.options());
  const float *grads = In(g), *inputs = In(x);
  float* to = Out(dw);
  at::parallel_for(0, n, Grain(m), [&](int64_t begin, int64_t end) {
    std::vector<float> packed(PackedFloats(k, kPiece));
    for (int64_t r = 0; r < m; r += kPiece) {
      const int64_t rows = std::min(kPiece, m - r);
      PackColumns(inputs + r * k, rows, k, packed.data());
      BestDecoderOps().gemm_turned(grads + r * n + begin, n, packed.data(), end - begin, k, rows, to + begin * k, k, true);
    }
  });
  return dw;
}

struct LinearFn : Function<LinearFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    const int64_t n = w.size(0), k = w.size(1);
    std::vector<float> packed(PackedFloats(n, k));
    PackRows(In(w), n, k, 0, packed.data());
    return Product(x, packed, n);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], g = grads[0].contiguous();
    const int64_t n = w.size(0), k = w.size(1);
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) {
      std::vector<float> packed(PackedFloats(k, n));
      PackColumns(In(w), n, k, packed.data());
      dx = Product(g, packed, k);
    }
    if (ctx->needs_input_grad(1)) dw = OuterProduct(g, x);
    return {dx, dw};
  }
};

struct RmsNormFn : Function<RmsNormFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    const int64_t n = weight.size(0);
    at::Tensor y = at::empty_like(x);
    const float *from = In(x), *w = In(weight);
    float* to = Out(y);
    at::parallel_for(0, x.numel() / n, Grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) BestDecoderOps().rms_norm(from + r * n, w, n, static_cast<float>(eps), to + r * n);
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], g = grads[0].contiguous();
    const float eps = static_cast<float>(ctx->saved_data["eps"].toDouble());
    const int64_t n = weight.size(0), rows = x.numel() / n;
    at::Tensor dx = at::empty_like(x), dw = at::zeros_like(weight);
    for (int64_t r = 0; r < rows; ++r) {  // One thread: the rows' parts of dw add up in one order.
      BestDecoderGradOps().rms_norm(In(x) + r * n, In(weight), In(g) + r * n, n, eps, Out(dx) + r * n, Out(dw));
    }
    return {dx, dw, at::Tensor()};
  }
};

// Turns pairs (a, b) of the halves of each head by +angle or -angle: (a cos - b sin, b cos + a sin).
at::Tensor Turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, float sign) {
  const int64_t half = cos.size(1), heads = x.size(1) / (2 * half), width = x.size(1);
  at::Tensor y = at::empty_like(x);
  const float *from = In(x), *cosines = In(cos), *sines = In(sin);
  float* to = Out(y);
  at::parallel_for(0, x.size(0), Grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float *c = cosines + t * half, *s = sines + t * half;
      for (int64_t h = 0; h < heads; ++h) {
        const float* a = from + t * width + h * 2 * half;
        float* out = to + t * width + h * 2 * half;
        for (int64_t i = 0; i < half; ++i) {
          const float turn = sign * s[i];
          out[i] = a[i] * c[i] - a[i + half] * turn;
          out[i + half] = a[i + half] * c[i] + a[i] * turn;
        }
      }
    }
  });
  return y;
}

struct RopeFn : Function<RopeFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return Turn(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {Turn(grads[0].contiguous(), saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

struct SwiGluFn : Function<SwiGluFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    at::Tensor y = at::empty_like(gate);
    const float *g = In(gate), *u = In(up);
    float* to = Out(y);
    const int64_t n = gate.size(1);
    at::parallel_for(0, gate.size(0), Grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) BestDecoderOps().swiglu(g + r * n, u + r * n, n, to + r * n);
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(gate);
    const float *g = In(gate), *u = In(saved[1]), *d = In(dy);
    float *dg = Out(dgate), *du = Out(dup);
    at::parallel_for(0, gate.numel(), 65536, [&](int64_t begin, int64_t end) {
      BestDecoderGradOps().swiglu(g + begin, u + begin, d + begin, end - begin, dg + begin, du + begin);
    });
    return {dgate, dup};
  }
};

// Attention of one sequence, whose rows start at the pointers: its keys and values go through the blocks of the decode cache.
void AttendSequence(const float* q, const float* k, const float* v, int64_t length, int64_t q_width, int64_t kv_width, int64_t d, float* out) {
  const int64_t group = q_width / kv_width;
  std::vector<float> keys(HeadCache::KeyFloats(length, d)), values(HeadCache::ValueFloats(length, d)), scratch(group * RoundUpToLanes(length));
  const HeadCache cache{keys.data(), values.data()};
  for (int64_t h = 0; h < kv_width / d; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      StoreKeyValue(cache, t, d, k + t * kv_width + h * d, v + t * kv_width + h * d);
      const int64_t at = t * q_width + h * group * d;
      BestDecoderOps().attend(q + at, cache, t + 1, group, d, scratch.data(), out + at);
    }
  }
}

struct AttentionFn : Function<AttentionFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& ends, int64_t d) {
    ctx->save_for_backward({q, k, v});
    ctx->saved_data["ends"] = ends;
    ctx->saved_data["d"] = d;
    const int64_t q_width = q.size(1), kv_width = k.size(1);
    at::Tensor out = at::empty_like(q);
    const float *qs = In(q), *ks = In(k), *vs = In(v);
    float* to = Out(out);
    const int64_t sequences = static_cast<int64_t>(ends.size()) - 1;
    at::parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t at = ends[b], length = ends[b + 1] - at;
        AttendSequence(qs + at * q_width, ks + at * kv_width, vs + at * kv_width, length, q_width, kv_width, d, to + at * q_width);
      }
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], dout = grads[0].contiguous();
    const std::vector<int64_t> ends = ctx->saved_data["ends"].toIntVector();
    const int64_t d = ctx->saved_data["d"].toInt(), q_width = q.size(1), kv_width = k.size(1), group = q_width / kv_width;
    at::Tensor dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    const float *qs = In(q), *ks = In(k), *vs = In(v), *douts = In(dout);
    float *dqs = Out(dq), *dks = Out(dk), *dvs = Out(dv);
    at::parallel_for(0, static_cast<int64_t>(ends.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch;
      for (int64_t b = begin; b < end; ++b) {
        const int64_t length = ends[b + 1] - ends[b];
        scratch.resize(2 * length);
        for (int64_t h = 0; h < q_width / d; ++h) {
          const int64_t at = ends[b] * q_width + h * d, kv_at = ends[b] * kv_width + h / group * d;
          BestDecoderGradOps().attention(qs + at, ks + kv_at, vs + kv_at, douts + at, length, d, q_width, kv_width, scratch.data(), dqs + at,
                                         dks + kv_at, dvs + kv_at);
        }
      }
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

struct ScoreFn : Function<ScoreFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets, double temperature) {
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    at::Tensor lp = at::empty({rows}, logits.options()), entropy = at::empty_like(lp), lse = at::empty_like(lp);
    const float inverse = static_cast<float>(1 / temperature);
    const float* z = In(logits);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float *lps = Out(lp), *entropies = Out(entropy), *lses = Out(lse);
    at::parallel_for(0, rows, Grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BestDecoderGradOps().score(z + r * vocab, vocab, inverse, target[r], lps + r, entropies + r, lses + r);
      }
    });
    ctx->save_for_backward({logits, targets, entropy, lse});
    ctx->saved_data["inverse"] = static_cast<double>(inverse);
    return {lp, entropy};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    const auto or_zeros = [&](const at::Tensor& g) { return g.defined() ? g.contiguous() : at::zeros({rows}, logits.options()); };
    const at::Tensor dlp = or_zeros(grads[0]), dentropy = or_zeros(grads[1]);
    at::Tensor dlogits = at::empty_like(logits);
    const float inverse = static_cast<float>(ctx->saved_data["inverse"].toDouble());
    const int64_t* target = saved[1].const_data_ptr<int64_t>();
    const float *z = In(logits), *entropy = In(saved[2]), *lse = In(saved[3]), *g = In(dlp), *h = In(dentropy);
    float* to = Out(dlogits);
    at::parallel_for(0, rows, Grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BestDecoderGradOps().score_grad(z + r * vocab, vocab, inverse, target[r], entropy[r], lse[r], g[r], h[r], to + r * vocab);
      }
    });
    return {dlogits, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Linear(const at::Tensor& x, const at::Tensor& w) { return LinearFn::apply(x, w); }
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) { return RmsNormFn::apply(x, weight, eps); }
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) { return RopeFn::apply(x, cos, sin); }
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) { return SwiGluFn::apply(gate, up); }
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::vector<int64_t>& ends, int64_t head_dim) {
  return AttentionFn::apply(q, k, v, ends, head_dim);
}
std::vector<at::Tensor> Score(const at::Tensor& logits, const at::Tensor& targets, double temperature) {
  return ScoreFn::apply(logits, targets, temperature);
}

}  // namespace sluice::train_ops
