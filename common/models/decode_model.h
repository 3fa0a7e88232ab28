#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/decode_weights.h"
#include "common/weights/fingerprint.h"
#include "kernels/sample/op.h"

namespace sluice {
class Adapter;  // common/models/adapter.h

// A model that computes the logits of next tokens, on raw pointers, with packed weights and a paged
// KV cache. V is the size of the vocabulary.
//
// If every matrix of the weights is bf16, products take bf16 inputs: activations are rounded to
// bf16 after the second norm of a layer, the last norm, attention and SwiGLU. The inputs of q, k
// and v stay fp32, because errors there go through a softmax. Keys and values are held in fp16,
// which has three more bits of precision than bf16. All sums, the residual stream, queries and
// logits are fp32. If some matrix is not bf16, everything is fp32, and weights of other types are
// widened.
//
// In both cases logits have the same bits as those of the training forward. Each number depends on
// its own sequence alone: the other rows, how a prompt is cut into steps, where its blocks lie and
// the number of threads do not change a bit.
//
// One thread calls it. It owns `threads - 1` helper threads, named sluice-decode, which run only
// inside calls.
class DecodeModel {
 public:
  static constexpr int kBlockTokens = 32;  // Positions in a block of the KV cache.
  static constexpr int kMaxThreads = 1024;

  struct Options {
    int blocks = 0;       // Of the KV cache; at least 1.
    int max_context = 0;  // Tokens of a sequence: 1 to config.max_context.
    int threads = 1;      // 1 to kMaxThreads.
  };

  // One token to compute. It stands at `position` of the sequence whose blocks are tables[table].
  // The positions 0 .. position - 1 of the sequence were computed by earlier steps, or by earlier
  // rows of this step.
  struct Row {
    int32_t table = 0, position = 0, token = 0;
    bool want_logits = false;
    const Adapter* adapter = nullptr;  // Read for this model's config; null: the model alone.
  };

  // `weights` has exactly the parameters of `config`. They are packed, and not needed afterwards.
  // INVALID_ARGUMENT: the weights do not fit, or an option is out of range.
  // RESOURCE_EXHAUSTED: there is no memory for the KV cache or the packed weights.
  static absl::StatusOr<std::unique_ptr<DecodeModel>> Create(const ModelConfig& config,
                                                             const TensorSet* weights,
                                                             const Options& options);
  virtual ~DecodeModel() = default;

  // From now on computes with `threads` threads, 1 to kMaxThreads. Call it between steps.
  virtual void SetThreads(int threads) = 0;

  // The weights that steps compute with.
  virtual const DecodeWeights& weights() const = 0;
  // Packs other weights of the same layout, on this thread, beside those that are computed with.
  // May be called on another thread during Step(). RESOURCE_EXHAUSTED: there is not enough memory.
  virtual absl::StatusOr<std::unique_ptr<DecodeWeights>> Pack(const TensorSet& weights) const = 0;
  // From now on computes with *weights, which Pack() or weights().Copy() has made, and puts those
  // from before there. The KV cache stays. Call it between steps.
  virtual void SwapWeights(std::unique_ptr<DecodeWeights>* weights) = 0;

  // DecodeWeights::Apply() and Fingerprints() for the weights that steps compute with, on all
  // threads. Call them between steps.
  virtual std::vector<Fingerprint> ApplyDelta(const WeightDelta& delta, int sign) = 0;
  std::vector<Fingerprint> Fingerprints(absl::Span<const int64_t> tensors) {
    return FingerprintsOf(weights(), tensors);
  }
  virtual std::vector<Fingerprint> Fingerprints() = 0;  // Of all tensors.
  // Those of other weights, which Pack() or weights().Copy() has made, or SwapWeights() has given.
  virtual std::vector<Fingerprint> FingerprintsOf(const DecodeWeights& weights,
                                                  absl::Span<const int64_t> tensors) = 0;
  // Changes a bit of the weights; see DecodeWeights.
  virtual void FlipBit() = 0;

  // Computes `rows`, which may mix rows of single tokens and pieces of prompts. Writes their keys
  // and values to their blocks. For each row that wants logits, in the order of the rows, writes
  // the next V floats of `logits`.
  //
  // tables[i][j] is the block of positions 32 j .. 32 j + 31 of sequence i. A table goes at least
  // as far as its last row. Several tables may name the same block, but a row writes only to a
  // block that no other sequence uses. Tables, blocks, positions and tokens must be in range; this
  // is checked, and a violation aborts.
  void Step(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables,
            float* logits) {
    StepWith(weights(), rows, tables, logits);
  }
  // The same with other weights; see FingerprintsOf().
  virtual void StepWith(const DecodeWeights& weights, absl::Span<const Row> rows,
                        absl::Span<const absl::Span<const int32_t>> tables, float* logits) = 0;

  // Does what SampleCpu() does, with all threads, for rows of V logits. Each row's draw is the same
  // for any number of threads.
  virtual void Draw(absl::Span<const SampleRow> rows, SampleDraw* draws) = 0;

  // In a mixture of experts, the experts of each row that wanted logits in the last call of Step()
  // or StepWith(): [those rows, layers, experts_per_token], rising in each layer. Else empty.
  virtual absl::Span<const uint16_t> routing() const = 0;

  // Makes block `to` a copy of block `from`, in all layers. A sequence that shares its last block
  // with another needs its own copy before it goes on.
  virtual void CopyBlock(int from, int to) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Options& options() const = 0;
  // Bytes of the KV cache and the packed weights.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace sluice
