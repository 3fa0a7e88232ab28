#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/models/moe.h"
#include "common/models/packed_weights.h"
#include "kernels/decoder/op.h"

namespace sluice {

// The mixture of experts of a layer in the decode execution. A token's result is the sum over its
// experts, in rising order of their ids, of weight times output; it depends on no other token. T is
// what products take in: float, or uint16_t for bf16, where the router still takes fp32, since a
// rounding there can change the choice.
//
// M rows (tokens), E experts, k of them for a row, H hidden, F width of an expert.
template <typename T>
class MoeMlp {
 public:
  struct Scratch {
    std::vector<float> logits;   // [M, E]
    std::vector<uint16_t> ids;   // [M, k]
    std::vector<float> weights;  // [M, k]
    std::vector<int32_t> ends;   // [E + 1]: expert e computes slots ends[e] .. ends[e + 1] - 1.
    std::vector<int32_t> rows;   // [M k], by slot: the row.
    std::vector<int32_t> slots;  // [M, k]: where a row's experts compute it.
    std::vector<T> in;           // [M k, H], by slot
    std::vector<T> act;          // [M k, F]
    std::vector<float> out;      // [M k, H]
  };

  explicit MoeMlp(const ModelConfig& config)
      : ops_(BestDecoderOps()),
        experts_(config.num_experts),
        k_(config.experts_per_token),
        hidden_(config.hidden_size),
        width_(config.expert_size),
        normalize_(config.norm_topk_prob) {}

  void Allocate(int64_t m, Scratch* s) const {
    s->logits.resize(m * experts_), s->ids.resize(m * k_), s->weights.resize(m * k_),
        s->ends.resize(experts_ + 1);
    s->rows.resize(m * k_), s->slots.resize(m * k_), s->in.resize(m * k_ * RoundUpToPairs(hidden_));
    s->act.resize(m * k_ * RoundUpToPairs(width_)), s->out.resize(m * k_ * hidden_);
  }

  // x [m, H] += the mixture of normed [m, H] (fp32, rows RoundUpToPairs(H) apart). For all threads
  // of `crew` alike.
  template <typename Crew>
  void Add(const Crew& crew, const typename PackedWeights<T>::Layer& layer, const float* normed,
           int64_t m, float* x, Scratch* s) const {
    crew.Each(m, [&](int64_t r) { Route(layer, normed + r * RoundUpToPairs(hidden_), r, s); });
    crew.Each(1, [&](int64_t) { Group(m, s); });
    crew.Each(experts_,
              [&](int64_t e) { Compute(layer.experts[e], normed, s->ends[e], s->ends[e + 1], s); });
    crew.Each(m, [&](int64_t r) { Mix(r, x + r * hidden_, s); });
  }

 private:
  void Route(const typename PackedWeights<T>::Layer& layer, const float* normed, int64_t r,
             Scratch* s) const {
    float* logits = &s->logits[r * experts_];
    if constexpr (std::is_same_v<T, float>)
      ops_.gemm(normed, hidden_, layer.router, 1, experts_, hidden_, logits, experts_, false);
    else
      ops_.gemm_mixed(normed, hidden_, layer.router, 1, experts_, hidden_, logits, experts_, false);
    const absl::Span<const float> row(logits, experts_);
    const absl::Span<uint16_t> ids(&s->ids[r * k_], k_);
    PickExperts(row, ids);
    WeighExperts(row, ids, normalize_, &s->weights[r * k_]);
  }

  // Gives each expert's rows neighbouring slots.
  void Group(int64_t m, Scratch* s) const {
    std::fill(s->ends.begin(), s->ends.end(), 0);
    for (int64_t i = 0; i < m * k_; ++i) ++s->ends[s->ids[i] + 1];
    for (int64_t e = 0; e < experts_; ++e) s->ends[e + 1] += s->ends[e];
    // Backwards, each to the end of its expert's slots, which become their begin.
    for (int64_t i = m * k_ - 1; i >= 0; --i) {
      const int32_t slot = --s->ends[s->ids[i] + 1];
      s->slots[i] = slot, s->rows[slot] = static_cast<int32_t>(i / k_);
    }
    std::copy(s->ends.begin() + 1, s->ends.end(), s->ends.begin());
    s->ends[experts_] = static_cast<int32_t>(m * k_);
  }

  void Compute(const typename PackedWeights<T>::Expert& expert, const float* normed, int64_t first,
               int64_t end, Scratch* s) const {
    if (first == end) return;
    const int64_t ld = RoundUpToPairs(hidden_), act_ld = RoundUpToPairs(width_), m = end - first;
    T *in = &s->in[first * ld], *act = &s->act[first * act_ld];
    float* out = &s->out[first * hidden_];
    for (int64_t i = 0; i < m; ++i) {
      const float* from = normed + s->rows[first + i] * ld;
      if constexpr (std::is_same_v<T, float>) std::copy_n(from, hidden_, in + i * ld);
      else ops_.to_bf16(from, hidden_, in + i * ld);
    }
    if constexpr (std::is_same_v<T, float>) {
      ops_.gate_up(in, ld, expert.gate_up, m, width_, hidden_, act, act_ld);
      ops_.gemm(act, act_ld, expert.down, m, hidden_, width_, out, hidden_, false);
    } else {
      ops_.gate_up_bf16(in, ld, expert.gate_up, m, width_, hidden_, act, act_ld);
      ops_.gemm_bf16(act, act_ld, expert.down, m, hidden_, width_, out, hidden_, false);
    }
  }

  void Mix(int64_t r, float* x, Scratch* s) const {
    // That of its first expert, which no other row reads.
    float* sum = &s->out[s->slots[r * k_] * hidden_];
    for (int64_t j = 0; j < k_; ++j) {
      const float weight = s->weights[r * k_ + j];
      const float* out = &s->out[s->slots[r * k_ + j] * hidden_];
      for (int64_t i = 0; i < hidden_; ++i) sum[i] = (j == 0 ? 0 : sum[i]) + weight * out[i];
    }
    for (int64_t i = 0; i < hidden_; ++i) x[i] += sum[i];
  }

  const DecoderOps& ops_;
  const int64_t experts_, k_, hidden_, width_;
  const bool normalize_;
};

}  // namespace sluice
