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
#include "kernels/sample/op.h"

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
    const auto norm = BestDecoderOps().rms_norm;
    at::parallel_for(0, x.numel() / n, Grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) norm(from + r * n, w, n, static_cast<float>(eps), to + r * n);
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], g = grads[0].contiguous();
    const float eps = static_cast<float>(ctx->saved_data["eps"].toDouble());
    const int64_t n = weight.size(0), rows = x.numel() / n;
    at::Tensor dx = at::empty_like(x), dw = at::zeros_like(weight);
    const float *inputs = In(x), *w = In(weight), *dy = In(g);
    float *dxs = Out(dx), *dws = Out(dw);
    const auto norm = BestDecoderGradOps().rms_norm;
    for (int64_t r = 0; r < rows; ++r) norm(inputs + r * n, w, dy + r * n, n, eps, dxs + r * n, dws);  // One thread: dw adds up in one order.
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
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = t * width + h * 2 * half;
        BestDecoderOps().rope(from + at, cosines + t * half, sines + t * half, sign, half, to + at);
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

// Sequences that see a prefix come right behind it: family f is sequences starts[f] .. starts[f + 1] - 1, of which the first is
// the prefix of the others, if there are any.
std::vector<int64_t> Families(const std::vector<int64_t>& ends, const std::vector<int64_t>& prefix) {
  const int64_t sequences = static_cast<int64_t>(ends.size()) - 1;
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < sequences; ++b) {
    if (prefix.empty() || prefix[b] < 0) starts.push_back(b);
  }
  starts.push_back(sequences);
  return starts;
}

// Tokens of the longest sequence of family [first, last), its prefix included.
int64_t LongestOf(const std::vector<int64_t>& ends, int64_t first, int64_t last) {
  int64_t longest = 0;
  for (int64_t b = first + 1; b < last; ++b) longest = std::max(longest, ends[b + 1] - ends[b]);
  return ends[first + 1] - ends[first] + longest;
}

struct Heads {
  int64_t q_width, kv_width, d;
  int64_t window;  // 0: none.
  int64_t group() const { return q_width / kv_width; }  // Query heads of one kv head.
  int64_t kv_heads() const { return kv_width / d; }
};

// Attention of one family: its keys and values go through the blocks of the decode cache, the prefix's once for all.
void AttendFamily(const float* q, const float* k, const float* v, const std::vector<int64_t>& ends, int64_t first, int64_t last, const Heads& heads,
                  float* out) {
  const int64_t d = heads.d, group = heads.group(), longest = LongestOf(ends, first, last);
  std::vector<int32_t> blocks((longest + kKvBlockTokens - 1) / kKvBlockTokens);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  std::vector<float> data(blocks.size() * KvHead<float>::BlockSize(d));
  std::vector<AttentionQuery> queries;
  const KvHead<float> cache{data.data(), KvHead<float>::BlockSize(d)};
  const auto attend = BestDecoderOps().attend;
  for (int64_t h = 0; h < heads.kv_heads(); ++h) {
    for (int64_t b = first; b < last; ++b) {
      int64_t position = b == first ? 0 : ends[first + 1] - ends[first];
      queries.clear();
      for (int64_t t = ends[b]; t < ends[b + 1]; ++t, ++position) {
        const int64_t from = t * heads.kv_width + h * d;
        StoreKeyValue(cache, position / kKvBlockTokens, position % kKvBlockTokens, d, k + from, v + from);
        for (int64_t at = t * heads.q_width + h * group * d, g = 0; g < group; ++g, at += d) {
          queries.push_back({q + at, out + at, WindowBegin(position, heads.window), position + 1});
        }
      }
      attend(queries.data(), static_cast<int64_t>(queries.size()), cache, blocks.data(), d);
    }
  }
}

// Rows [first, last) of one head, `width` floats apart, to or from rows side by side.
void GatherHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d, float* to) {
  for (int64_t t = first; t < last; ++t, to += d) std::copy_n(from + t * width, d, to);
}
void ScatterHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d, float* to) {
  for (int64_t t = first; t < last; ++t, from += d) std::copy_n(from, d, to + t * width);
}

struct AttentionGrads {
  float *dq, *dk, *dv;
};

// The gradients of one family. What its sequences give to the prefix's keys and values adds up in their order.
void AttendFamilyGrad(const float* q, const float* k, const float* v, const float* dout, const std::vector<int64_t>& ends, int64_t first,
                      int64_t last, const Heads& heads, const AttentionGrads& grads) {
  const int64_t d = heads.d, group = heads.group(), longest = LongestOf(ends, first, last), shared = ends[first + 1] - ends[first];
  std::vector<float> keys(longest * d), values(longest * d), dkeys(longest * d), dvalues(longest * d), scratch(2 * longest);
  const auto attention = BestDecoderGradOps().attention;
  for (int64_t h = 0; h < heads.kv_heads(); ++h) {
    const int64_t at = h * d;
    for (int64_t b = first; b < last; ++b) {
      const int64_t before = b == first ? 0 : shared, length = ends[b + 1] - ends[b];
      GatherHead(k + at, ends[b], ends[b + 1], heads.kv_width, d, keys.data() + before * d);
      GatherHead(v + at, ends[b], ends[b + 1], heads.kv_width, d, values.data() + before * d);
      std::fill_n(dkeys.data() + before * d, length * d, 0.0f);
      std::fill_n(dvalues.data() + before * d, length * d, 0.0f);
      for (int64_t g = h * group; g < (h + 1) * group; ++g) {
        const int64_t row = ends[b] * heads.q_width + g * d;
        attention(q + row, keys.data(), values.data(), dout + row, before, length, d, heads.window, heads.q_width, scratch.data(), grads.dq + row, dkeys.data(),
                  dvalues.data());
      }
      if (b == first) continue;
      ScatterHead(dkeys.data() + before * d, ends[b], ends[b + 1], heads.kv_width, d, grads.dk + at);
      ScatterHead(dvalues.data() + before * d, ends[b], ends[b + 1], heads.kv_width, d, grads.dv + at);
    }
    ScatterHead(dkeys.data(), ends[first], ends[first + 1], heads.kv_width, d, grads.dk + at);
    ScatterHead(dvalues.data(), ends[first], ends[first + 1], heads.kv_width, d, grads.dv + at);
  }
}

struct AttentionFn : Function<AttentionFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& ends, const std::vector<int64_t>& prefix, int64_t d, int64_t window) {
    const std::vector<int64_t> families = Families(ends, prefix);
    ctx->save_for_backward({q, k, v});
    ctx->saved_data["ends"] = ends;
    ctx->saved_data["families"] = families;
    ctx->saved_data["d"] = d;
    ctx->saved_data["window"] = window;
    const Heads heads{q.size(1), k.size(1), d, window};
    at::Tensor out = at::empty_like(q);
    const float *qs = In(q), *ks = In(k), *vs = In(v);
    float* to = Out(out);
    at::parallel_for(0, static_cast<int64_t>(families.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t f = begin; f < end; ++f) AttendFamily(qs, ks, vs, ends, families[f], families[f + 1], heads, to);
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], dout = grads[0].contiguous();
    const std::vector<int64_t> ends = ctx->saved_data["ends"].toIntVector(), families = ctx->saved_data["families"].toIntVector();
    const Heads heads{q.size(1), k.size(1), ctx->saved_data["d"].toInt(), ctx->saved_data["window"].toInt()};
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const float *qs = In(q), *ks = In(k), *vs = In(v), *douts = In(dout);
    const AttentionGrads to{Out(dq), Out(dk), Out(dv)};
    at::parallel_for(0, static_cast<int64_t>(families.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t f = begin; f < end; ++f) AttendFamilyGrad(qs, ks, vs, douts, ends, families[f], families[f + 1], heads, to);
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct ScoreFn : Function<ScoreFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& targets, double temperature) {
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    at::Tensor lp = at::empty({rows}, logits.options()), entropy = at::empty_like(lp), lse = at::empty_like(lp);
    const float divisor = static_cast<float>(temperature);
    const float* z = In(logits);
    const int64_t* target = targets.const_data_ptr<int64_t>();
    float *lps = Out(lp), *entropies = Out(entropy), *lses = Out(lse);
    at::parallel_for(0, rows, Grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const TokenScore score = ScoreCpu(z + r * vocab, vocab, divisor, static_cast<int32_t>(target[r]));
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
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::vector<int64_t>& ends,
                           const std::vector<int64_t>& prefix, int64_t head_dim, int64_t window) {
  return AttentionFn::apply(q, k, v, ends, prefix, head_dim, window);
}
std::vector<at::Tensor> Score(const at::Tensor& logits, const at::Tensor& targets, double temperature) {
  return ScoreFn::apply(logits, targets, temperature);
}

}  // namespace sluice::train_ops
