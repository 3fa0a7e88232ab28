#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>

#include "common/base/status.h"
#include "common/models/parallel.h"
#include "common/models/train_function.h"
#include "common/models/train_ops.h"
#include "kernels/decoder/op.h"
#include "kernels/decoder_grad/op.h"

namespace sluice::train_ops {
namespace {

// Splits the sequences into families. A family is a sequence without a prefix, followed by the
// sequences whose prefix it is. Returns `starts`: family f has the sequences starts[f] .. starts[f
// + 1] - 1.
std::vector<int64_t> FindFamilies(const std::vector<int64_t>& cu_seqlens,
                                  const std::vector<int64_t>& prefix) {
  const int64_t sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < sequences; ++b) {
    if (prefix.empty() || prefix[b] < 0) starts.push_back(b);
  }
  starts.push_back(sequences);

  // Rows of a sequence outside every family would never be written.
  SLUICE_CHECK(starts.front() == 0);
  return starts;
}

// The number of tokens of the longest sequence of the family [first, last), its prefix included.
int64_t LongestSequence(const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last) {
  int64_t longest = 0;
  for (int64_t b = first + 1; b < last; ++b)
    longest = std::max(longest, cu_seqlens[b + 1] - cu_seqlens[b]);
  return cu_seqlens[first + 1] - cu_seqlens[first] + longest;
}

// The shapes of the heads. A row of q has q_width numbers, a row of k or v has kv_width, and a head
// has d.
struct Heads {
  int64_t q_width, kv_width, d;
  int64_t window;                                       // 0: none.
  int64_t group() const { return q_width / kv_width; }  // Query heads of one kv head.
  int64_t kv_heads() const { return kv_width / d; }
};

// Calls work(first, last, h) in parallel for each family [first, last) and each KV head h. No two
// calls write to the same memory.
template <typename Work>
void ForEachFamilyHead(const std::vector<int64_t>& families, const Heads& heads, const Work& work) {
  const int64_t kv_heads = heads.kv_heads();
  ParallelEach((static_cast<int64_t>(families.size()) - 1) * kv_heads, [&](int64_t i) {
    const int64_t family = i / kv_heads;
    work(families[family], families[family + 1], i % kv_heads);
  });
}

void Attend(const AttentionQuery* queries, int64_t count, const KvHead<float>& cache,
            const int32_t* blocks, int64_t d) {
  BestDecoderOps().attend(queries, count, cache, blocks, d);
}
void Attend(const AttentionQuery* queries, int64_t count, const KvHead<uint16_t>& cache,
            const int32_t* blocks, int64_t d) {
  BestDecoderOps().attend_f16(queries, count, cache, blocks, d);
}

// Computes the attention of one family in KV head h with the kernels of the decode execution. Keys
// and values are stored in the blocks of a KV cache of type T; those of the prefix are stored once
// for all sequences of the family.
template <typename T>
void AttendFamily(const float* q, const float* k, const float* v,
                  const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last,
                  const Heads& heads, int64_t h, float* out) {
  const int64_t d = heads.d, group = heads.group(),
                longest = LongestSequence(cu_seqlens, first, last);
  std::vector<int32_t> blocks((longest + kKvBlockTokens - 1) / kKvBlockTokens);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  std::vector<T> data(blocks.size() * KvHead<T>::BlockSize(d));
  std::vector<AttentionQuery> queries;
  const KvHead<T> cache{data.data(), KvHead<T>::BlockSize(d)};

  for (int64_t b = first; b < last; ++b) {
    // Each later sequence begins behind the prefix, and overwrites the one before it.
    int64_t position = b == first ? 0 : cu_seqlens[first + 1] - cu_seqlens[first];
    queries.clear();
    for (int64_t t = cu_seqlens[b]; t < cu_seqlens[b + 1]; ++t, ++position) {
      const int64_t from = t * heads.kv_width + h * d;
      StoreKeyValue(cache, position / kKvBlockTokens, position % kKvBlockTokens, d, k + from,
                    v + from);
      for (int64_t at = t * heads.q_width + h * group * d, g = 0; g < group; ++g, at += d) {
        queries.push_back({q + at, out + at, WindowBegin(position, heads.window), position + 1});
      }
    }
    Attend(queries.data(), static_cast<int64_t>(queries.size()), cache, blocks.data(), d);
  }
}

// GatherHead() copies the rows [first, last) of one head, which are `width` floats apart, into rows
// of d floats without gaps. ScatterHead() copies them back.
void GatherHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d,
                float* to) {
  for (int64_t t = first; t < last; ++t, to += d) std::copy_n(from + t * width, d, to);
}
void ScatterHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d,
                 float* to) {
  for (int64_t t = first; t < last; ++t, from += d) std::copy_n(from, d, to + t * width);
}

struct AttentionGrads {
  float *dq, *dk, *dv;
};

// Computes the gradients of one family in KV head h. The sequences add to the gradients of the
// prefix's keys and values one after the other, so that the order of these sums is fixed.
void AttendFamilyGrad(const float* q, const float* k, const float* v, const float* dout,
                      const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last,
                      const Heads& heads, int64_t h, const AttentionGrads& grads) {
  const int64_t d = heads.d, group = heads.group(),
                longest = LongestSequence(cu_seqlens, first, last),
                shared = cu_seqlens[first + 1] - cu_seqlens[first];
  std::vector<float> keys(longest * d), values(longest * d), dkeys(longest * d),
      dvalues(longest * d), scratch(2 * longest);
  const auto attention = BestDecoderGradOps().attention;
  const int64_t at = h * d;
  for (int64_t b = first; b < last; ++b) {
    const int64_t before = b == first ? 0 : shared, length = cu_seqlens[b + 1] - cu_seqlens[b];
    GatherHead(k + at, cu_seqlens[b], cu_seqlens[b + 1], heads.kv_width, d,
               keys.data() + before * d);
    GatherHead(v + at, cu_seqlens[b], cu_seqlens[b + 1], heads.kv_width, d,
               values.data() + before * d);
    std::fill_n(dkeys.data() + before * d, length * d, 0.0f);
    std::fill_n(dvalues.data() + before * d, length * d, 0.0f);
    for (int64_t g = h * group; g < (h + 1) * group; ++g) {
      const int64_t row = cu_seqlens[b] * heads.q_width + g * d;
      attention(q + row, keys.data(), values.data(), dout + row, before, length, d, heads.window,
                heads.q_width, scratch.data(), grads.dq + row, dkeys.data(), dvalues.data());
    }
    if (b == first) continue;
    ScatterHead(dkeys.data() + before * d, cu_seqlens[b], cu_seqlens[b + 1], heads.kv_width, d,
                grads.dk + at);
    ScatterHead(dvalues.data() + before * d, cu_seqlens[b], cu_seqlens[b + 1], heads.kv_width, d,
                grads.dv + at);
  }
  ScatterHead(dkeys.data(), cu_seqlens[first], cu_seqlens[first + 1], heads.kv_width, d,
              grads.dk + at);
  ScatterHead(dvalues.data(), cu_seqlens[first], cu_seqlens[first + 1], heads.kv_width, d,
              grads.dv + at);
}

// Returns a copy of x, rounded to fp16.
at::Tensor Fp16Copy(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  std::vector<uint16_t> halves(x.numel());
  BestDecoderOps().to_f16(ConstData(x), x.numel(), halves.data());
  float* to = MutableData(y);
  for (const uint16_t h : halves) *to++ = static_cast<float>(std::bit_cast<_Float16>(h));
  return y;
}

struct AttentionFn : Function<AttentionFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& all_k,
                            const at::Tensor& all_v, const std::vector<int64_t>& cu_seqlens,
                            const std::vector<int64_t>& prefix, int64_t d, int64_t window,
                            bool halves) {
    const std::vector<int64_t> families = FindFamilies(cu_seqlens, prefix);
    const at::Tensor k = halves ? Fp16Copy(all_k) : all_k, v = halves ? Fp16Copy(all_v) : all_v;

    ctx->save_for_backward({q, k, v});
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    ctx->saved_data["families"] = families;
    ctx->saved_data["d"] = d;
    ctx->saved_data["window"] = window;

    const Heads heads{q.size(1), k.size(1), d, window};
    at::Tensor out = at::empty_like(q);
    const float *qs = ConstData(q), *ks = ConstData(k), *vs = ConstData(v);
    float* to = MutableData(out);
    ForEachFamilyHead(families, heads, [&](int64_t first, int64_t last, int64_t h) {
      if (halves) AttendFamily<uint16_t>(qs, ks, vs, cu_seqlens, first, last, heads, h, to);
      else AttendFamily<float>(qs, ks, vs, cu_seqlens, first, last, heads, h, to);
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], dout = grads[0].contiguous();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector(),
                               families = ctx->saved_data["families"].toIntVector();

    const Heads heads{q.size(1), k.size(1), ctx->saved_data["d"].toInt(),
                      ctx->saved_data["window"].toInt()};
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const float *qs = ConstData(q), *ks = ConstData(k), *vs = ConstData(v),
                *douts = ConstData(dout);
    const AttentionGrads to{MutableData(dq), MutableData(dk), MutableData(dv)};
    ForEachFamilyHead(families, heads, [&](int64_t first, int64_t last, int64_t h) {
      AttendFamilyGrad(qs, ks, vs, douts, cu_seqlens, first, last, heads, h, to);
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<int64_t>& cu_seqlens,
                           const std::vector<int64_t>& prefix, int64_t head_dim, int64_t window,
                           bool halves) {
  return AttentionFn::apply(q, k, v, cu_seqlens, prefix, head_dim, window, halves);
}

}  // namespace sluice::train_ops
