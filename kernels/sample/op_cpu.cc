#include "kernels/sample/op.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/sample/math.h"

namespace sluice {
namespace {

using sample::kChunk;
using sample::kLanes;

constexpr float kNoiseSlack = 1e-4f;  // Larger than the rounding error of a noise of at most 23.
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SampleDraw DrawGreedy(const float* z, int64_t vocab) {
  int64_t best = 0;
  for (int64_t v = 1; v < vocab; ++v) {
    if (z[v] > z[best]) best = v;
  }
  return {static_cast<int32_t>(best), 0.0f};
}

// Returns the largest of n numbers, none of them NaN. It uses several lanes, because in a single
// chain each comparison would wait for the one before.
SLUICE_SAMPLE_INLINE float Largest(const float* x, int64_t n) {
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = -kInfinity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  for (int l = 0; i + l < n; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (int l = 1; l < kLanes; ++l) lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

// Computes z [V] of one row: scaled logits, with banned tokens at -inf, and their maximum. Returns
// false if a logit is NaN or +inf, or none is finite.
SLUICE_SAMPLE_INLINE bool ScaleLogits(const SampleRow& row, int64_t vocab, float* z, float* max) {
  const float temperature = row.temperature > 0 ? row.temperature : 1.0f;
  int bad = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float scaled = row.logits[v] / temperature;
    bad |= !(scaled < kInfinity);  // Also true for NaN.
    z[v] = scaled;
  }
  if (bad) return false;
  for (int32_t i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] >= 0 && row.banned[i] < vocab) z[row.banned[i]] = -kInfinity;
  }
  *max = Largest(z, vocab);
  return *max > -kInfinity;
}

// Finds the shortest prefix of the tokens, in the order of op.h, whose weights add up to at least
// `wanted`, which is > 0 and at most the sum of all. A token weighs Mass(e), or 1 if e is null.
sample::Cut Select(const float* z, const float* e, int64_t vocab, uint64_t wanted) {
  uint64_t buckets[sample::kMostBuckets];
  uint64_t above = 0;  // Weight of the tokens before the bucket.
  uint64_t inside = 0, ties = 0;
  uint32_t key = 0;
  // Narrow the key down: in each round only tokens with the digits found so far are counted.
  for (int digit = 0; digit < sample::kDigits; ++digit) {
    const int shift = sample::DigitShift(digit), bits = sample::DigitBits(digit);
    const uint32_t mask = (1u << bits) - 1;
    std::fill(buckets, buckets + (1 << bits), 0);
    for (int64_t v = 0; v < vocab; ++v) {
      const uint32_t k = sample::OrderKey(z[v]);
      if (digit > 0 && (k ^ key) >> (shift + bits) != 0) continue;
      buckets[(k >> shift) & mask] += e != nullptr ? sample::Mass(e[v]) : 1;
    }
    uint32_t bucket = mask;
    while (bucket > 0 && above + buckets[bucket] < wanted) above += buckets[bucket--];
    inside = buckets[bucket];
    key |= bucket << shift;
  }

  // All tokens in the last bucket have the same z, so the same weight. Keep as many of them as
  // needed, lowest ids first.
  sample::Cut cut{.key = key, .last = -1};
  for (int64_t v = 0; v < vocab; ++v) ties += sample::OrderKey(z[v]) == key;
  const uint64_t each = inside / ties;
  uint64_t left = (wanted - above + each - 1) / each;
  for (int64_t v = 0; v < vocab && left > 0; ++v) {
    if (sample::OrderKey(z[v]) != key) continue;
    cut.last = static_cast<int32_t>(v);
    --left;
  }
  return cut;
}

void ApplyCut(const sample::Cut& cut, int64_t vocab, float* z) {
  for (int64_t v = 0; v < vocab; ++v) z[v] = sample::Keeps(cut, z[v], v) ? z[v] : -kInfinity;
}

SLUICE_SAMPLE_INLINE void ComputeExps(const float* z, int64_t vocab, float max, float* e) {
  for (int64_t v = 0; v < vocab; ++v) e[v] = sample::Exp(z[v] - max);
}

// Sets the tokens that are not in S to -inf. `e` [V] is scratch memory.
SLUICE_SAMPLE_INLINE void ApplyCuts(const SampleRow& row, int64_t vocab, float max, float* z,
                                    float* e) {
  // top-k, then top-p, then min-p: each one cuts what the one before has left.
  if (row.top_k > 0) {
    int64_t finite = 0;
    for (int64_t v = 0; v < vocab; ++v) finite += z[v] > -kInfinity;
    if (row.top_k < finite)
      ApplyCut(Select(z, nullptr, vocab, static_cast<uint64_t>(row.top_k)), vocab, z);
  }
  if (row.top_p < 1) {
    ComputeExps(z, vocab, max, e);
    uint64_t total = 0;
    for (int64_t v = 0; v < vocab; ++v) total += sample::Mass(e[v]);
    ApplyCut(Select(z, e, vocab, sample::MassWanted(row.top_p, total)), vocab, z);
  }
  if (row.min_p > 0) {
    ComputeExps(z, vocab, max, e);
    for (int64_t v = 0; v < vocab; ++v) z[v] = e[v] >= row.min_p ? z[v] : -kInfinity;
  }
}

template <bool kMean>
SLUICE_SAMPLE_INLINE void AddExp(float below, float* sum, float* weighted) {
  const float e = sample::Exp(below);
  *sum = *sum + e;
  if (kMean) *weighted = *weighted + (e > 0 ? e * below : 0.0f);  // A token at -inf adds nothing.
}

// Returns the sum over v of e_v = exp(z_v - max). With kMean, adds the sum of e_v (z_v - max) to
// `weighted`.
template <bool kMean>
SLUICE_SAMPLE_INLINE float SumExp(const float* z, int64_t vocab, float max, float* weighted) {
  float total = 0;
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t end = std::min<int64_t>(begin + kChunk, vocab);
    float lanes[kLanes] = {}, products[kLanes] = {};
    for (int64_t v = begin; v < end; v += kLanes) {
      const int count = static_cast<int>(std::min<int64_t>(kLanes, end - v));
      if (count == kLanes) {
        for (int l = 0; l < kLanes; ++l) AddExp<kMean>(z[v + l] - max, &lanes[l], &products[l]);
      } else {
        for (int l = 0; l < count; ++l) AddExp<kMean>(z[v + l] - max, &lanes[l], &products[l]);
      }
    }
    total = total + sample::SumLanes(lanes);
    if (kMean) *weighted = *weighted + sample::SumLanes(products);
  }
  return total;
}
SLUICE_SAMPLE_INLINE float SumExp(const float* z, int64_t vocab, float max) {
  return SumExp<false>(z, vocab, max, nullptr);
}

// Returns the argmax of z_v + g_v. Blocks of tokens whose noise could not make them win are
// skipped.
SLUICE_SAMPLE_INLINE int32_t RunRace(const SampleRow& row, const float* z, int64_t vocab,
                                     float max) {
  constexpr int kBlock = 256;  // Vocabulary entries per block: 64 counters.
  const uint32_t k0 = static_cast<uint32_t>(row.key);
  const uint32_t k1 = static_cast<uint32_t>(row.key >> 32);
  const float least = max + sample::kLeastNoise;  // The winner's score is at least this.
  float best = -kInfinity;
  int32_t winner = 0;
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, vocab - begin));
    const float block_max = Largest(z + begin, count);
    // Even the largest noise could not win here.
    if (!(block_max + sample::kMaxNoise > best) || block_max + sample::kMaxNoise < least) continue;

    uint32_t words[4][kBlock / 4];
    const uint32_t base = static_cast<uint32_t>(begin / 4);
    const int counters = (count + 3) / 4;
    for (int c = 0; c < counters; ++c) {
      const sample::Words x =
          sample::Philox(base + c, row.position, row.member, row.stream, k0, k1);
      for (int w = 0; w < 4; ++w) words[w][c] = x.c[w];
    }
    // Noise falls as its word rises, up to rounding. So if the block's best logit would lose even
    // with the block's largest noise, every token of the block loses.
    uint32_t lowest = words[0][0];
    for (int w = 0; w < 4; ++w) {
      for (int c = 0; c < counters; ++c) lowest = words[w][c] < lowest ? words[w][c] : lowest;
    }
    if (!(block_max + (sample::Gumbel(lowest) + kNoiseSlack) > best)) continue;

    float noise[4][kBlock / 4];
    for (int w = 0; w < 4; ++w) {
      for (int c = 0; c < counters; ++c) noise[w][c] = sample::Gumbel(words[w][c]);
    }
    float scores[kBlock];
    for (int c = 0; c < counters; ++c) {
      for (int w = 0; w < 4; ++w) scores[4 * c + w] = noise[w][c];
    }
    for (int i = 0; i < count; ++i) scores[i] = z[begin + i] + scores[i];
    const float highest = Largest(scores, count);
    if (!(highest > best)) continue;
    best = highest;
    winner = static_cast<int32_t>(begin + (std::find(scores, scores + count, highest) - scores));
  }
  return winner;
}

SLUICE_SAMPLE_INLINE void SampleRows(const SampleRow* rows, int64_t row_count, int64_t vocab,
                                     float* z, SampleDraw* draws) {
  for (int64_t r = 0; r < row_count; ++r) {
    const SampleRow& row = rows[r];
    float max;
    if (!ScaleLogits(row, vocab, z, &max)) {
      draws[r] = {};
    } else if (row.temperature == 0) {
      draws[r] = DrawGreedy(z, vocab);
    } else {
      ApplyCuts(row, vocab, max, z, z + vocab);
      const int32_t token = RunRace(row, z, vocab, max);
      draws[r] = {token, (z[token] - max) - sample::Log(SumExp(z, vocab, max))};
      if (row.kept != nullptr) {
        for (int64_t v = 0; v < vocab; ++v) {
          if (z[v] > -kInfinity) row.kept[draws[r].kept++] = static_cast<int32_t>(v);
        }
      }
    }
  }
}

SLUICE_SAMPLE_INLINE TokenScore ScoreRow(const float* logits, int64_t vocab, float temperature,
                                         int32_t target, float* z) {
  float max, weighted = 0;
  if (!ScaleLogits({.logits = logits, .temperature = temperature}, vocab, z, &max)) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    return {kNan, kNan, kNan};
  }
  const float sum = SumExp<true>(z, vocab, max, &weighted), log_sum = sample::Log(sum);
  return {.logprob = (z[target] - max) - log_sum,
          .entropy = log_sum - weighted / sum,
          .logsumexp = max + log_sum};
}

// The functions for one instruction set. The target attribute is on the outer functions only. The
// functions with SLUICE_SAMPLE_INLINE are inlined into them, and so use this instruction set too.
struct Kind {
  void (*sample)(const SampleRow*, int64_t, int64_t, float*, SampleDraw*);
  TokenScore (*score)(const float*, int64_t, float, int32_t, float*);
};
#define SLUICE_SAMPLE_KIND(name, attributes)                                                \
  attributes void SampleRows##name(const SampleRow* rows, int64_t row_count, int64_t vocab, \
                                   float* z, SampleDraw* draws) {                           \
    SampleRows(rows, row_count, vocab, z, draws);                                           \
  }                                                                                         \
  attributes TokenScore Score##name(const float* logits, int64_t vocab, float temperature,  \
                                    int32_t target, float* z) {                             \
    return ScoreRow(logits, vocab, temperature, target, z);                                 \
  }                                                                                         \
  constexpr Kind k##name = {SampleRows##name, Score##name};

SLUICE_SAMPLE_KIND(Base, )
#if defined(__x86_64__) && defined(__GNUC__)
SLUICE_SAMPLE_KIND(Avx2, __attribute__((target("avx2"))))
SLUICE_SAMPLE_KIND(
    Avx512, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512"))))

Kind PickKind() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    return kAvx512;
  }
  return __builtin_cpu_supports("avx2") ? kAvx2 : kBase;
}
#else
Kind PickKind() { return kBase; }
#endif
#undef SLUICE_SAMPLE_KIND

const Kind& BestKind() {
  static const Kind kind = PickKind();
  return kind;
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const sample::Words x =
      sample::Philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
  return {x.c[0], x.c[1], x.c[2], x.c[3]};
}

namespace {

// Returns [2 V] floats of scratch memory of this thread: z' of a row, and working space.
float* Scratch(int64_t vocab) {
  thread_local std::vector<float> scratch;
  if (scratch.size() < static_cast<size_t>(2 * vocab)) scratch.resize(2 * vocab);
  return scratch.data();
}

// Computes the distribution of a row: z' [V] with the tokens outside S at -inf, its maximum, and
// its logsumexp minus the maximum. Returns false if the row is invalid.
bool ComputeDistribution(const SampleRow& row, int64_t vocab, float* z, float* max,
                         float* log_sum) {
  if (!ScaleLogits(row, vocab, z, max)) return false;
  ApplyCuts(row, vocab, *max, z, z + vocab);
  *log_sum = sample::Log(SumExp(z, vocab, *max));
  return true;
}

}  // namespace

void SampleCpu(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws) {
  BestKind().sample(rows, row_count, vocab, Scratch(vocab), draws);
}

void SampleCpuPortable(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws) {
  SampleRowsBase(rows, row_count, vocab, Scratch(vocab), draws);
}

int32_t TopLogprobsCpu(const SampleRow& row, int64_t vocab, int32_t count, int32_t* ids,
                       float* logprobs) {
  float* z = Scratch(vocab);
  float max, log_sum;
  if (!ComputeDistribution(row, vocab, z, &max, &log_sum)) return -1;
  if (row.temperature == 0) {
    if (count < 1) return 0;
    ids[0] = DrawGreedy(z, vocab).token;
    logprobs[0] = 0;
    return 1;
  }
  const auto before = [z](int32_t a, int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); };

  // Insertion into a sorted list of at most `count` tokens.
  int32_t found = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    if (z[v] == -kInfinity || (found == count && (count == 0 || !(z[v] > z[ids[count - 1]]))))
      continue;
    int32_t place = found < count ? found++ : count - 1;
    for (; place > 0 && before(static_cast<int32_t>(v), ids[place - 1]); --place)
      ids[place] = ids[place - 1];
    ids[place] = static_cast<int32_t>(v);
  }
  for (int32_t i = 0; i < found; ++i) logprobs[i] = (z[ids[i]] - max) - log_sum;
  return found;
}

float LogprobCpu(const SampleRow& row, int64_t vocab, int32_t token) {
  float* z = Scratch(vocab);
  float max, log_sum;
  if (!ComputeDistribution(row, vocab, z, &max, &log_sum))
    return std::numeric_limits<float>::quiet_NaN();
  return row.temperature == 0 ? 0.0f : (z[token] - max) - log_sum;
}

TokenScore ScoreCpu(const float* logits, int64_t vocab, float temperature, int32_t target) {
  return BestKind().score(logits, vocab, temperature, target, Scratch(vocab));
}

}  // namespace sluice
