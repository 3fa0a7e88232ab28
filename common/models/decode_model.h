#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/fingerprint.h"
#include "kernels/sample/op.h"

namespace sluice {
class Adapter;  // common/models/adapter.h

// The decode execution of a model: raw pointers, packed weights, a paged KV cache.
//
// Where every matrix of the weights is bf16, products take bf16 numbers: activations are rounded to
// it where a product takes them in, after the second norm of a layer, the last norm, attention and
// SwiGLU. What q, k and v are made of stays fp32, since errors there go through a softmax, and keys
// and values are held in fp16, which has three digits more. All sums, the residual stream, queries
// and logits are fp32. Else all is fp32, and weights of other types are widened. Either way logits
// have the bits of the training forward. Each number depends on its own sequence alone: neither the
// other rows, nor how a prompt was cut into steps, nor where its blocks lie, nor the number of
// threads changes a bit.
//
// One thread calls it. Owns `threads - 1` helper threads, named sluice-decode, which run only
// inside calls. V vocabulary.
class DecodeModel {
 public:
  static constexpr int kBlockTokens = 32;  // Positions whose keys and values lie together.

  struct Options {
    int blocks = 0;       // Of the KV cache.
    int max_context = 0;  // Tokens of a sequence; at most config.max_context.
    int threads = 1;
  };

  // One token to compute: `token` stands at `position` of the sequence whose blocks are
  // tables[table]. Its positions 0 .. position - 1 were computed by earlier steps or come earlier
  // in this one, by rows of the same table. `adapter`: changes the model for this row, null: none;
  // read for this model's config.
  struct Row {
    int32_t table = 0, position = 0, token = 0;
    bool want_logits = false;
    const Adapter* adapter = nullptr;
  };

  // `weights` has the parameters of `config` and no others; the model reads it until it ends or the
  // next SetWeights() has returned. INVALID_ARGUMENT: other weights, or an option out of range.
  // RESOURCE_EXHAUSTED: no memory for the KV cache or the packed weights.
  static absl::StatusOr<std::unique_ptr<DecodeModel>> Create(const ModelConfig& config,
                                                             const TensorSet* weights,
                                                             const Options& options);
  virtual ~DecodeModel() = default;

  // Computes with so many threads from here on, 1 to 1024; between steps.
  virtual void SetThreads(int threads) = 0;
  // Takes other weights of the same layout from here on, between steps; they live as long as those
  // above. The KV cache stays.
  virtual void SetWeights(const TensorSet* weights) = 0;
  // Of each tensor, in the weights' order, read back from the very numbers that Step() computes
  // with. Between steps.
  virtual std::vector<Fingerprint> Fingerprints() = 0;

  // Computes `rows` (decode rows and pieces of prompts, mixed): writes their keys and values to
  // their blocks, and for each row that wants them its logits to the next V floats of `logits`, in
  // the order of the rows. tables[i][j] is the block of positions 32 j .. 32 j + 31 of sequence i,
  // given up to its last row; several tables may name a block, of which a row writes one that no
  // other row uses. Table, block, position and token must be in range (checked: a caller's bug).
  virtual void Step(absl::Span<const Row> rows, absl::Span<const absl::Span<const int32_t>> tables,
                    float* logits) = 0;
  // SampleCpu() of rows of V logits, which all threads share: each row's draw is the same for any
  // number of them.
  virtual void Draw(absl::Span<const SampleRow> rows, SampleDraw* draws) = 0;
  // In a mixture of experts: [rows that wanted logits in the last step, layers, experts_per_token],
  // the experts that each went through, rising in each layer. Else empty.
  virtual absl::Span<const uint16_t> routing() const = 0;

  // Makes block `to` a copy of block `from`: a sequence goes on alone where another shares its last
  // block.
  virtual void CopyBlock(int from, int to) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Options& options() const = 0;
  // Of the KV cache and the packed weights.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace sluice
