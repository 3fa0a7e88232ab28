#pragma once

#include <cstdint>

namespace sluice {

// The denominators of one optimizer step, over all ranks and micro-batches. They count trainable
// tokens before any rejection (by the veto, or for bad log-probs), so that leaving tokens out does
// not raise the weight of the others.
struct StepCounts {
  int64_t tokens = 0;     // N: trainable tokens.
  int64_t sequences = 0;  // B_v: sequences with at least one trainable token.
  int64_t prompts = 0;    // n_prompts: groups with at least one trainable token.
};

// The loss of a step is
//   step_scale * sum_i sequence_weight_i * sum_t l[i,t]
// where i runs over sequences and t over the trainable tokens of a sequence. The weight is known
// when the sequence's group is complete, the scale when the step is complete. A streaming trainer
// therefore accumulates gradients with the weights, and multiplies them by the scale once, before
// clipping. The modes are rows of AggregationRows() (registry.h).
struct Aggregation {
  // `tokens`: T_i > 0, the trainable tokens of the sequence. `group_tokens`: N_g, their sum over
  // its group.
  double (*sequence_weight)(int64_t tokens, int64_t group_tokens);
  // `max_response`: L_max, the configured limit of an answer in tokens, constant for the run. All
  // counts are above 0.
  double (*step_scale)(const StepCounts& counts, int64_t max_response);
};

// token_mean            1/N sum_i sum_t l
extern const Aggregation kTokenMean;
// seq_mean_token_mean   1/B_v sum_i 1/T_i sum_t l
extern const Aggregation kSeqMeanTokenMean;
// seq_mean_token_sum    1/B_v sum_i sum_t l
extern const Aggregation kSeqMeanTokenSum;
// fixed_length          1/(B_v L_max) sum_i sum_t l
extern const Aggregation kFixedLength;
// prompt_mean           1/n_prompts sum_g 1/N_g sum_{i in g} sum_t l
extern const Aggregation kPromptMean;
// pair_mean             1/n_prompts sum_pairs l, of losses that are one term per pair of answers.
// It is no row of the registry: the kind dpo takes it.
extern const Aggregation kPairMean;

}  // namespace sluice
