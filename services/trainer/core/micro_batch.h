#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/models/train_model.h"
#include "services/trainer/core/sequences.h"

namespace sluice::trainer {

// The input of one forward pass. B sequences, N trained tokens.
struct MicroBatch {
  PackedBatch packed;
  // [B + 1] sequence b has trained tokens [offsets[b], offsets[b + 1]).
  std::vector<int64_t> offsets;
  std::vector<uint32_t> sequences;  // [B] index of the sequence among those that were divided.
  std::vector<int64_t> targets;     // [N]
  // Each is [N], and empty in supervised data.
  std::vector<float> behavior;  // Behaviour log-probs.
  std::vector<int32_t> staleness;
  std::vector<float> advantage;
  std::vector<float> value, value_target;  // [N] of a job with a critic, else empty.
  std::vector<double> weight;              // [B] Sequence::weight.
  // [N] log-probs of the proximal and the reference policy and of the teacher, once computed; else
  // empty.
  std::vector<float> prox, ref, teacher;
  // [N] log-probs of tokens of older versions under the weights that sampled them, NaN for all
  // others; empty unless prox is exact.
  std::vector<float> older;
  // Factor of a term that is a mean over the tokens of the update, whatever the aggregation: its
  // step_scale() for a mean over tokens over that of the aggregation.
  double token_weight = 1;
  std::vector<uint8_t> allowed;  // [N] PolicyTokens::allowed.
  // The load-balancing loss. A token counts once, and one with which all n sequences of a group
  // begin counts once in the group: a micro-batch that holds m of the n counts m / n of it. So the
  // weights of the tokens of a step do not depend on how it is divided. `expert_weights` are empty
  // unless the loss has that term.
  RouterBalance balance;
  double balance_factor = 0;  // Coefficient of the term, over the step_scale() of the update.
};

// Returns what `pass` returns for the batch without the experts that were recorded for the policy:
// another model chooses its own.
template <typename Pass>
auto WithoutRouting(MicroBatch& batch, const Pass& pass) {
  std::vector<uint16_t> routing = std::exchange(batch.packed.routing, {});
  auto result = pass();
  batch.packed.routing = std::move(routing);
  return result;
}

// Divides the sequences of a step into micro-batches of at most `max_tokens` tokens. The sequences
// of a group must be adjacent. The tokens with which all sequences of a group begin (the prompt)
// are stored once per micro-batch.
std::vector<MicroBatch> MakeMicroBatches(absl::Span<const Sequence> sequences, uint32_t max_tokens);

}  // namespace sluice::trainer
