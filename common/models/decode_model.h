#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// The decode execution of a model: raw pointers, fp32 arithmetic, a KV cache with one contiguous slot per request. Weights in
// bf16 or fp16 are widened. Each number depends on its own sequence alone: neither the other rows, nor how a prompt was cut
// into steps, nor the number of threads changes a bit.
//
// One thread calls it. Owns `threads - 1` worker threads, named sluice-decode, which run only inside Step().
// V vocabulary.
class DecodeModel {
 public:
  struct Options {
    int slots = 0;        // Requests that can hold KV at once.
    int max_context = 0;  // Tokens per slot; at most config.max_context.
    int threads = 1;
  };

  // One token to compute: `token` stands at `position` of the request in `slot`, whose positions 0 .. position - 1 are computed
  // already or come earlier in the same step.
  struct Row {
    int32_t slot = 0, position = 0, token = 0;
    bool want_logits = false;
  };

  // `weights` has the parameters of `config`; it outlives the model, which reads it. INVALID_ARGUMENT: it has not, or an option is
  // out of range. RESOURCE_EXHAUSTED: no memory for the KV cache.
  static absl::StatusOr<std::unique_ptr<DecodeModel>> Create(const ModelConfig& config, const TensorSet* weights,
                                                             const Options& options);
  virtual ~DecodeModel() = default;

  // To be called after each change of the weights' elements, between steps: renews the packed copies. The KV cache stays.
  virtual void OnWeightsChanged() = 0;

  // Computes `rows` (decode rows and pieces of prompts, mixed): writes their keys and values to the cache, and for each row that
  // wants them its logits to the next V floats of `logits`, in the order of the rows. Slot, position and token must be in
  // range (checked: a caller's bug).
  virtual void Step(absl::Span<const Row> rows, float* logits) = 0;

  // Makes the first `tokens` positions of slot `to` those of slot `from`: a group's members fork their prompt.
  virtual void CopySlot(int from, int to, int tokens) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Options& options() const = 0;
  // Of the KV cache and the packed weights.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace sluice
