#include "common/models/moe_decode.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/models/moe.h"
#include "kernels/decoder/op.h"

namespace sluice {

template <typename T>
MoeMlp<T>::MoeMlp(const ModelConfig& config)
    : experts_(config.num_experts),
      k_(config.experts_per_token),
      hidden_(config.hidden_size),
      width_(config.expert_size),
      in_stride_(RoundUpToPairs(hidden_)),
      act_stride_(RoundUpToPairs(width_)),
      normalize_(config.norm_topk_prob) {}

template <typename T>
void MoeMlp<T>::Allocate(int64_t m, Scratch* scratch) const {
  scratch->logits.resize(m * experts_);
  scratch->ids.resize(m * k_);
  scratch->weights.resize(m * k_);

  scratch->ends.resize(experts_ + 1);
  scratch->rows.resize(m * k_);
  scratch->slots.resize(m * k_);

  scratch->in.resize(m * k_ * in_stride_);
  scratch->act.resize(m * k_ * act_stride_);
  scratch->out.resize(m * k_ * hidden_);
}

template <typename T>
void MoeMlp<T>::AddTo(const Crew& crew, const Layer& layer, const float* normed, int64_t m,
                      float* x, Scratch* scratch) const {
  crew.ForEach(m, [&](int64_t r) { RouteRow(layer, normed + r * in_stride_, r, scratch); });
  crew.ForEach(1, [&](int64_t) { AssignSlots(m, scratch); });

  const std::vector<int32_t>& ends = scratch->ends;
  crew.ForEach(experts_, [&](int64_t e) {
    ComputeExpert(layer.experts[e], normed, ends[e], ends[e + 1], scratch);
  });
  crew.ForEach(m, [&](int64_t r) { AddMixture(r, x + r * hidden_, scratch); });
}

template <typename T>
void MoeMlp<T>::RouteRow(const Layer& layer, const float* normed, int64_t row, Scratch* s) const {
  const absl::Span<float> logits(&s->logits[row * experts_], experts_);
  const absl::Span<uint16_t> ids(&s->ids[row * k_], k_);

  ops_.Multiply(Product<float, T>{.x = normed,
                                  .x_stride = in_stride_,
                                  .weight = layer.router,
                                  .m = 1,
                                  .n = experts_,
                                  .k = hidden_,
                                  .y = logits.data(),
                                  .y_stride = experts_,
                                  .add = false});
  PickExperts(logits, ids);
  WeighExperts(logits, ids, normalize_, &s->weights[row * k_]);
}

// A counting sort of all (row, expert) pairs by expert; rows keep their order within an expert.
template <typename T>
void MoeMlp<T>::AssignSlots(int64_t m, Scratch* s) const {
  // First ends[e + 1] is the end of expert e's slots.
  std::fill(s->ends.begin(), s->ends.end(), 0);
  for (int64_t i = 0; i < m * k_; ++i) ++s->ends[s->ids[i] + 1];
  for (int64_t e = 0; e < experts_; ++e) s->ends[e + 1] += s->ends[e];

  // Going backwards, each pair takes the last free slot of its expert. This moves ends[e + 1] from
  // the end of the expert's slots to their begin.
  for (int64_t i = m * k_ - 1; i >= 0; --i) {
    const int32_t slot = --s->ends[s->ids[i] + 1];
    s->slots[i] = slot;
    s->rows[slot] = static_cast<int32_t>(i / k_);
  }

  // Now ends[e + 1] is the begin of expert e. Shift by one, so that ends[e] is.
  std::copy(s->ends.begin() + 1, s->ends.end(), s->ends.begin());
  s->ends[experts_] = static_cast<int32_t>(m * k_);
}

template <typename T>
void MoeMlp<T>::ComputeExpert(const Expert& expert, const float* normed, int64_t first, int64_t end,
                              Scratch* s) const {
  const int64_t m = end - first;
  if (m == 0) return;

  T* const in = &s->in[first * in_stride_];
  T* const act = &s->act[first * act_stride_];
  for (int64_t i = 0; i < m; ++i)
    ops_.Round(normed + s->rows[first + i] * in_stride_, hidden_, in + i * in_stride_);

  ops_.GateUp(in, in_stride_, expert.gate_up, m, width_, hidden_, act, act_stride_);
  ops_.Multiply(Product<T, T>{.x = act,
                              .x_stride = act_stride_,
                              .weight = expert.down,
                              .m = m,
                              .n = hidden_,
                              .k = width_,
                              .y = &s->out[first * hidden_],
                              .y_stride = hidden_,
                              .add = false});
}

template <typename T>
void MoeMlp<T>::AddMixture(int64_t row, float* x, Scratch* s) const {
  const int32_t* slots = &s->slots[row * k_];

  // The sum is built in the output of the row's first expert, which no other row reads. It is added
  // to x at the end only, because the order of the additions is part of the result.
  float* sum = &s->out[slots[0] * hidden_];
  for (int64_t j = 0; j < k_; ++j) {
    const float weight = s->weights[row * k_ + j];
    const float* out = &s->out[slots[j] * hidden_];
    for (int64_t i = 0; i < hidden_; ++i) sum[i] = (j == 0 ? 0 : sum[i]) + weight * out[i];
  }
  for (int64_t i = 0; i < hidden_; ++i) x[i] += sum[i];
}

template class MoeMlp<float>;
template class MoeMlp<uint16_t>;

}  // namespace sluice
