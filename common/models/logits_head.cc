#include "common/models/logits_head.h"

#include "common/models/tile_ops.h"

namespace sluice {

template <typename T>
LogitsHead<T>::LogitsHead(const ModelConfig& config)
    : hidden_(config.hidden_size), vocab_(config.vocab_size), eps_(config.rms_norm_eps) {}

template <typename T>
void LogitsHead<T>::Compute(const Crew& crew, const PackedWeights<T>& weights,
                            Tile<T>* tile) const {
  // The wanted rows come together at the beginning of `normed`.
  const int64_t wanted = static_cast<int64_t>(tile->wanted.size());
  crew.ForEach(wanted, [&](int64_t i) {
    ops_.NormAndRound(&tile->x[tile->wanted[i] * hidden_], weights.final_norm(), eps_,
                      tile->normed.rounded(i));
  });

  // Rows whose results are neighbours share one product. There is a gap between two results if rows
  // that another thread computes lie between them in the step.
  const auto output_row = [&](int64_t i) {
    return tile->step->output_row[tile->rows[tile->wanted[i]]];
  };
  for (int64_t first = 0, end; first < wanted; first = end) {
    for (end = first + 1; end < wanted && output_row(end) == output_row(first) + end - first;)
      ++end;
    Multiply(crew, ops_,
             Product<T, T>{.x = tile->normed.rounded(first),
                           .x_stride = tile->normed.stride(),
                           .weight = weights.head(),
                           .m = end - first,
                           .n = vocab_,
                           .k = hidden_,
                           .y = tile->step->logits + output_row(first) * vocab_,
                           .y_stride = vocab_,
                           .add = false});
  }
}

template class LogitsHead<float>;
template class LogitsHead<uint16_t>;

}  // namespace sluice
