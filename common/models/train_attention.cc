#include <ATen/ops/empty_like.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/f16.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/models/attention_grad_products.h"
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

// Keys and values of one KV head in the blocks of a KV cache of type T, for the kernels of the
// decode execution.
template <typename T>
class HeadCache {
 public:
  HeadCache(const Heads& heads, int64_t h, int64_t tokens)
      : heads_(heads),
        h_(h),
        blocks_((tokens + kKvBlockTokens - 1) / kKvBlockTokens),
        data_(blocks_.size() * KvHead<T>::BlockSize(heads.d)),
        cache_{data_.data(), KvHead<T>::BlockSize(heads.d)} {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i);
  }

  // Stores row t of k and v as the token at `position`.
  void Store(const float* k, const float* v, int64_t t, int64_t position) {
    const int64_t from = t * heads_.kv_width + h_ * heads_.d;
    StoreKeyValue(cache_, position / kKvBlockTokens, position % kKvBlockTokens, heads_.d, k + from,
                  v + from);
  }

  // Adds the query heads of row t of q, whose token has `position`.
  void AddQueries(const float* q, int64_t t, int64_t position, float* out) {
    const int64_t d = heads_.d, group = heads_.group();
    for (int64_t at = t * heads_.q_width + h_ * group * d, g = 0; g < group; ++g, at += d) {
      queries_.push_back({q + at, out + at, WindowBegin(position, heads_.window), position + 1});
    }
  }

  // Computes the added queries, and forgets them.
  void Run() {
    Attend(queries_.data(), static_cast<int64_t>(queries_.size()), cache_, blocks_.data(),
           heads_.d);
    queries_.clear();
  }

 private:
  const Heads heads_;
  const int64_t h_;
  std::vector<int32_t> blocks_;
  std::vector<T> data_;
  const KvHead<T> cache_;
  std::vector<AttentionQuery> queries_;
};

// Computes the attention of one family in KV head h. The keys and values of the prefix are stored
// once for all sequences of the family.
template <typename T>
void AttendFamily(const float* q, const float* k, const float* v,
                  const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last,
                  const Heads& heads, int64_t h, float* out) {
  HeadCache<T> cache(heads, h, LongestSequence(cu_seqlens, first, last));
  for (int64_t b = first; b < last; ++b) {
    // Each later sequence begins behind the prefix, and overwrites the one before it.
    int64_t position = b == first ? 0 : cu_seqlens[first + 1] - cu_seqlens[first];
    for (int64_t t = cu_seqlens[b]; t < cu_seqlens[b + 1]; ++t, ++position) {
      cache.Store(k, v, t, position);
      cache.AddQueries(q, t, position, out);
    }
    cache.Run();
  }
}

// Computes the attention of the rows of one part of a sequence in KV head h: q has `count` rows, of
// which the first has position `begin`.
template <typename T>
void AttendPart(const float* q, const float* k, const float* v, int64_t begin, int64_t count,
                const Heads& heads, int64_t h, float* out) {
  HeadCache<T> cache(heads, h, begin + count);
  for (int64_t t = WindowBegin(begin, heads.window); t < begin + count; ++t)
    cache.Store(k, v, t, t);
  for (int64_t i = 0; i < count; ++i) cache.AddQueries(q, i, begin + i, out);
  cache.Run();
}

// The queries of a long sequence are divided into ranges, so that more threads than it has KV heads
// can work on it: up to about as many as it has query heads. The gradients of the keys are sums
// over the ranges, so the ranges depend on the shapes alone, and not on the number of threads.
struct QueryRanges {
  QueryRanges(int64_t queries, const Heads& heads)
      : queries(queries), ranges(AttentionRanges(queries, heads.group())) {}
  int64_t Begin(int64_t range) const { return queries * range / ranges; }

  const int64_t queries, ranges;
};

// Computes the attention of `count` rows of q, of which the first has position `begin` in the
// sequence of k and v.
template <typename T>
void AttendRows(const float* q, const float* k, const float* v, int64_t begin, int64_t count,
                const Heads& heads, float* out) {
  const QueryRanges ranges(count, heads);
  // The last range takes longest, because its queries attend to the most keys; it is begun first.
  ParallelEach(heads.kv_heads() * ranges.ranges, [&](int64_t i) {
    const int64_t h = i % heads.kv_heads(), range = ranges.ranges - 1 - i / heads.kv_heads(),
                  first = ranges.Begin(range), at = first * heads.q_width;
    AttendPart<T>(q + at, k, v, begin + first, ranges.Begin(range + 1) - first, heads, h, out + at);
  });
}

// Whether the family [first, last) is one sequence whose queries are divided.
bool IsDivided(const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last,
               const Heads& heads) {
  return last == first + 1 && QueryRanges(cu_seqlens[last] - cu_seqlens[first], heads).ranges > 1;
}

// GatherHead() copies the rows [first, last) of one head, which are `width` floats apart, into rows
// of d floats without gaps, and multiplies them by `scale`. ScatterHead() copies them back.
void GatherHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d,
                float scale, float* to) {
  for (int64_t t = first; t < last; ++t, to += d) {
    for (int64_t i = 0; i < d; ++i) to[i] = scale * from[t * width + i];
  }
}
void ScatterHead(const float* from, int64_t first, int64_t last, int64_t width, int64_t d,
                 float* to) {
  for (int64_t t = first; t < last; ++t, from += d) std::copy_n(from, d, to + t * width);
}

struct AttentionGrads {
  float *dq, *dk, *dv;
};

// Computes the gradients of one family in KV head h, for tiles of queries:
//   s = q k^T / sqrt(d),  p = softmax(s),  dp = dout v^T,  ds = p (dp - sum(p dp))
//   dq = ds k / sqrt(d),  dk += ds^T q / sqrt(d),  dv += p^T dout
// The probabilities are computed again, for one tile at a time (as in FlashAttention-2,
// arXiv:2307.08691). All query heads of the KV head share a tile. The order of the sums is fixed:
// tiles of a sequence one after the other, and the sequences of the family, which all add to the
// keys and values of the prefix, too.
class FamilyGrad {
 public:
  // With `halves`, most products are in bf16.
  FamilyGrad(const float* q, const float* k, const float* v, const float* dout, const Heads& heads,
             int64_t h, bool halves, const AttentionGrads& grads)
      : q_(q),
        k_(k + h * heads.d),
        v_(v + h * heads.d),
        dout_(dout),
        heads_(heads),
        h_(h),
        grads_(grads),
        scale_(1.0f / std::sqrt(static_cast<float>(heads.d))),
        products_(halves ? MakeBf16Products(heads.d) : MakeF32Products(heads.d)) {}

  void Compute(const std::vector<int64_t>& cu_seqlens, int64_t first, int64_t last) {
    const int64_t shared = cu_seqlens[first + 1] - cu_seqlens[first];
    products_->Reserve(LongestSequence(cu_seqlens, first, last));
    for (int64_t b = first; b < last; ++b) {
      const int64_t before = b == first ? 0 : shared, begin = cu_seqlens[b],
                    length = cu_seqlens[b + 1] - begin;
      LoadKeys(begin, length, before);
      AddTiles(begin, length, before);
      if (b > first) StoreKeyGrads(begin, length, before);
    }
    StoreKeyGrads(cu_seqlens[first], shared, 0);
  }

  // Gradients of the keys and values [keys, d] of one head.
  struct KeyGrads {
    std::vector<float> dk, dv;
  };
  // The same for `count` queries of a sequence, of which the first is row `token` of q and dout and
  // has position `begin`. Stores dq, and returns what they add to dk and dv of the keys up to
  // theirs.
  KeyGrads ComputeRange(int64_t token, int64_t begin, int64_t count) {
    const int64_t total = begin + count;
    products_->Reserve(total);
    LoadKeys(0, total, 0);
    AddTiles(token, count, begin);
    KeyGrads sums{std::vector<float>(total * heads_.d), std::vector<float>(total * heads_.d)};
    products_->CopySums(0, total, heads_.d, sums.dk.data(), sums.dv.data());
    return sums;
  }

 private:
  static constexpr int64_t kQueries = 32;
  static constexpr int64_t kKeys = AttentionGradProducts::kKeys;

  // Takes the keys and values of `length` rows, of which the first is `begin`, behind the first
  // `before`.
  void LoadKeys(int64_t begin, int64_t length, int64_t before) {
    const int64_t at = begin * heads_.kv_width;
    products_->Load(k_ + at, v_ + at, heads_.kv_width, length, before);
  }

  void StoreKeyGrads(int64_t begin, int64_t length, int64_t before) {
    const int64_t at = begin * heads_.kv_width + h_ * heads_.d;
    products_->CopySums(before, length, heads_.kv_width, grads_.dk + at, grads_.dv + at);
  }

  // Adds the gradients of `length` queries, whose first is row `token` and has position `position`.
  void AddTiles(int64_t token, int64_t length, int64_t position) {
    for (int64_t i = 0; i < length; i += kQueries)
      AddTile(token + i, std::min(kQueries, length - i), position + i);
  }

  // Adds the gradients of `count` queries, whose first is row `token` and has position `position`.
  // Row g * count + i of the tile is query i in the g-th head.
  void AddTile(int64_t token, int64_t count, int64_t position) {
    const int64_t d = heads_.d, rows = heads_.group() * count, end = position + count,
                  begin = WindowBegin(position, heads_.window) / kKeys * kKeys, width = end - begin;
    q_tile_.resize(rows * d), dout_tile_.resize(rows * d), dq_tile_.resize(rows * d);
    for (int64_t g = 0; g < heads_.group(); ++g) {
      const int64_t at = (h_ * heads_.group() + g) * d, to = g * count * d;
      GatherHead(q_ + at, token, token + count, heads_.q_width, d, scale_, &q_tile_[to]);
      GatherHead(dout_ + at, token, token + count, heads_.q_width, d, 1, &dout_tile_[to]);
    }
    const AttentionTile tile{q_tile_.data(), dout_tile_.data(), rows, begin, end};
    p_.resize(rows * width), ds_.resize(rows * width);
    products_->Scores(tile, p_.data(), ds_.data());
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = position + r % count, row_end = at + 1 - begin,
                    row_begin = WindowBegin(at, heads_.window) - begin;
      float *const p = &p_[r * width], *const ds = &ds_[r * width];
      BestDecoderGradOps().softmax(p + row_begin, ds + row_begin, row_end - row_begin);
      for (float* const row : {p, ds}) {
        std::fill_n(row, row_begin, 0.0f);
        std::fill_n(row + row_end, width - row_end, 0.0f);
      }
    }
    products_->Grads(tile, p_.data(), ds_.data(), dq_tile_.data());
    for (int64_t g = 0; g < heads_.group(); ++g) {
      float* from = &dq_tile_[g * count * d];
      for (int64_t i = 0; i < count * d; ++i) from[i] *= scale_;
      ScatterHead(from, token, token + count, heads_.q_width, d,
                  grads_.dq + (h_ * heads_.group() + g) * d);
    }
  }

  const float *const q_, *const k_, *const v_, *const dout_;
  const Heads heads_;
  const int64_t h_;
  const AttentionGrads grads_;
  const float scale_;
  const std::unique_ptr<AttentionGradProducts> products_;
  std::vector<float> q_tile_, dout_tile_, dq_tile_, p_, ds_;  // [rows, d] and [rows, keys].
};

// Adds rows of d floats without gaps to rows of one head, which are `width` floats apart.
void AddToHead(const std::vector<float>& rows, int64_t width, int64_t d, float* to) {
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(d), to += width) {
    for (int64_t i = 0; i < d; ++i) to[i] += rows[at + i];
  }
}

// Computes the gradients of AttendRows(), and adds those of the keys and values to grads.dk and
// grads.dv, range by range.
void AddRowGrads(const float* q, const float* k, const float* v, const float* dout, int64_t begin,
                 int64_t count, const Heads& heads, bool halves, const AttentionGrads& grads) {
  const QueryRanges ranges(count, heads);
  // The ranges of a head are added in their order, each as soon as those before it are there.
  struct Head {
    Mutex mu;
    int64_t next ABSL_GUARDED_BY(mu) = 0;
    std::map<int64_t, FamilyGrad::KeyGrads> waiting ABSL_GUARDED_BY(mu);
  };
  std::vector<Head> of_head(heads.kv_heads());
  // Ranges are begun in that order too, so that few of them wait.
  ParallelEach(heads.kv_heads() * ranges.ranges, [&](int64_t i) {
    const int64_t h = i % heads.kv_heads(), range = i / heads.kv_heads(),
                  first = ranges.Begin(range);
    FamilyGrad::KeyGrads part =
        FamilyGrad(q, k, v, dout, heads, h, halves, grads)
            .ComputeRange(first, begin + first, ranges.Begin(range + 1) - first);
    Head& head = of_head[h];
    MutexLock lock(&head.mu);
    head.waiting[range] = std::move(part);
    for (auto it = head.waiting.begin(); it != head.waiting.end() && it->first == head.next;
         it = head.waiting.erase(it)) {
      AddToHead(it->second.dk, heads.kv_width, heads.d, grads.dk + h * heads.d);
      AddToHead(it->second.dv, heads.kv_width, heads.d, grads.dv + h * heads.d);
      ++head.next;
    }
  });
}

// Returns a copy of x, rounded to fp16.
at::Tensor Fp16Copy(const at::Tensor& x) {
  return RoundedCopy(x, BestDecoderOps().to_f16, FloatFromF16);
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
    ctx->saved_data["halves"] = halves;

    const Heads heads{q.size(1), k.size(1), d, window};
    at::Tensor out = at::empty_like(q);
    const float *qs = ConstData(q), *ks = ConstData(k), *vs = ConstData(v);
    float* to = MutableData(out);
    for (size_t f = 0; f + 1 < families.size(); ++f) {
      const int64_t first = families[f], at = cu_seqlens[first];
      if (!IsDivided(cu_seqlens, first, families[f + 1], heads)) continue;
      const int64_t count = cu_seqlens[first + 1] - at;
      const float *const fq = qs + at * heads.q_width, *const fk = ks + at * heads.kv_width,
                         *const fv = vs + at * heads.kv_width;
      if (halves) AttendRows<uint16_t>(fq, fk, fv, 0, count, heads, to + at * heads.q_width);
      else AttendRows<float>(fq, fk, fv, 0, count, heads, to + at * heads.q_width);
    }
    ForEachFamilyHead(families, heads, [&](int64_t first, int64_t last, int64_t h) {
      if (IsDivided(cu_seqlens, first, last, heads)) return;
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
    const bool halves = ctx->saved_data["halves"].toBool();
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const float *qs = ConstData(q), *ks = ConstData(k), *vs = ConstData(v),
                *douts = ConstData(dout);
    const AttentionGrads to{MutableData(dq), MutableData(dk), MutableData(dv)};
    for (size_t f = 0; f + 1 < families.size(); ++f) {
      const int64_t first = families[f], at = cu_seqlens[first];
      if (!IsDivided(cu_seqlens, first, families[f + 1], heads)) continue;
      const int64_t count = cu_seqlens[first + 1] - at, q_at = at * heads.q_width,
                    k_at = at * heads.kv_width;
      std::fill_n(to.dk + k_at, count * heads.kv_width, 0.0f);
      std::fill_n(to.dv + k_at, count * heads.kv_width, 0.0f);
      AddRowGrads(qs + q_at, ks + k_at, vs + k_at, douts + q_at, 0, count, heads, halves,
                  {to.dq + q_at, to.dk + k_at, to.dv + k_at});
    }
    ForEachFamilyHead(families, heads, [&](int64_t first, int64_t last, int64_t h) {
      if (IsDivided(cu_seqlens, first, last, heads)) return;
      FamilyGrad(qs, ks, vs, douts, heads, h, halves, to).Compute(cu_seqlens, first, last);
    });
    return {dq, dk, dv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// CarriedKeys that an AutogradContext can hold.
struct HeldKeys : torch::CustomClassHolder {
  explicit HeldKeys(std::shared_ptr<CarriedKeys> k) : keys(std::move(k)) {}
  const std::shared_ptr<CarriedKeys> keys;
};

struct CarriedAttentionFn : Function<CarriedAttentionFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q,
                            const c10::intrusive_ptr<HeldKeys>& held, int64_t begin, int64_t d,
                            int64_t window, bool halves) {
    ctx->save_for_backward({q});
    ctx->saved_data["keys"] = c10::IValue::make_capsule(held);
    ctx->saved_data["begin"] = begin;
    ctx->saved_data["d"] = d;
    ctx->saved_data["window"] = window;
    ctx->saved_data["halves"] = halves;

    const CarriedKeys& keys = *held->keys;
    const Heads heads{q.size(1), keys.k.size(1), d, window};
    at::Tensor out = at::empty_like(q);
    const float *qs = ConstData(q), *ks = ConstData(keys.k), *vs = ConstData(keys.v);
    float* to = MutableData(out);
    if (halves) AttendRows<uint16_t>(qs, ks, vs, begin, q.size(0), heads, to);
    else AttendRows<float>(qs, ks, vs, begin, q.size(0), heads, to);
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor q = ctx->get_saved_variables()[0], dout = grads[0].contiguous();
    CarriedKeys& keys =
        *c10::static_intrusive_pointer_cast<HeldKeys>(ctx->saved_data["keys"].toCapsule())->keys;
    const int64_t begin = ctx->saved_data["begin"].toInt();
    const Heads heads{q.size(1), keys.k.size(1), ctx->saved_data["d"].toInt(),
                      ctx->saved_data["window"].toInt()};
    const bool halves = ctx->saved_data["halves"].toBool();
    at::Tensor dq = at::empty_like(q);
    const float *qs = ConstData(q), *ks = ConstData(keys.k), *vs = ConstData(keys.v),
                *douts = ConstData(dout);
    const AttentionGrads to{MutableData(dq), MutableData(keys.dk), MutableData(keys.dv)};
    AddRowGrads(qs, ks, vs, douts, begin, q.size(0), heads, halves, to);
    return {dq, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct RoundToFp16Fn : Function<RoundToFp16Fn> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return Fp16Copy(x); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

}  // namespace

at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<int64_t>& cu_seqlens,
                           const std::vector<int64_t>& prefix, int64_t head_dim, int64_t window,
                           bool halves) {
  return AttentionFn::apply(q, k, v, cu_seqlens, prefix, head_dim, window, halves);
}

at::Tensor AttendToCarried(const at::Tensor& q, const std::shared_ptr<CarriedKeys>& carried,
                           int64_t begin, int64_t head_dim, int64_t window, bool halves) {
  return CarriedAttentionFn::apply(q, c10::make_intrusive<HeldKeys>(carried), begin, head_dim,
                                   window, halves);
}

at::Tensor RoundToFp16(const at::Tensor& x) { return RoundToFp16Fn::apply(x); }

}  // namespace sluice::train_ops
