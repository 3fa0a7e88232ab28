#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Sequences end to end. T tokens in all, B sequences, N rows to score, V vocabulary.
//
// Answers to one prompt need it once: where prefix[b] = a >= 0, sequence b is what follows sequence
// a, and sees a's tokens before its own. Its rows have the bits they would have behind a copy of a;
// the gradients of all that follow a add up in a's rows.
struct PackedBatch {
  std::vector<int64_t> tokens;  // [T]
  // [T]; usually 0, 1, .. in each sequence, going on behind a prefix.
  std::vector<int64_t> positions;
  // [B + 1]: sequence b is tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Starts at 0, ends at T.
  std::vector<int64_t> cu_seqlens;
  // [B], or empty: none. -1, or the last sequence before b whose own prefix is -1.
  std::vector<int64_t> prefix;
  // [T, layers, k], or empty: the experts that each token went through when it was sampled (moe.h),
  // rising in each layer, or kAnyExpert where the router shall choose.
  std::vector<uint16_t> routing;
  // [N], indices into the T tokens: where logits are wanted. Row t predicts token t + 1.
  std::vector<int64_t> score_rows;
};

// The training execution of a model on LibTorch: fp32 parameters as autograd leaves, causal
// attention within each sequence of a packed batch, no padding. The only place where a model meets
// torch; its exceptions end here, as statuses.
//
// In bf16 the parameters stay fp32, and the forward pass runs on their values rounded to bf16, with
// the roundings of the decode execution (decode_model.h): logits have the bits that it gives on the
// rounded weights. Gradients are fp32, of the rounded numbers, and pass each rounding as if there
// were none.
//
// Used by one thread at a time; torch's own intra-op threads work inside.
class TrainModel {
 public:
  struct Parameter {
    std::string name;   // As in Hugging Face checkpoints.
    at::Tensor tensor;  // fp32, a leaf that requires gradients; the optimizer writes it in place.
  };

  // UNIMPLEMENTED: a dtype other than F32 and BF16.
  static absl::StatusOr<std::unique_ptr<TrainModel>> Create(const ModelConfig& config, DType dtype);
  virtual ~TrainModel() = default;

  // Copies all parameters from a set with the config's names and shapes (F32, F16 or BF16), or to
  // one (rounding to nearest even). INVALID_ARGUMENT: names or shapes differ.
  virtual absl::Status Load(const TensorSet& weights) = 0;
  virtual absl::Status Store(TensorSet* weights) const = 0;

  // In the order of their names, as in a TensorSet. A tied head occurs once, as
  // model.embed_tokens.weight.
  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual void ZeroGrad() = 0;  // Drops the gradients.

  // Logits [N, V], fp32, of batch.score_rows. Differentiable unless c10::NoGradGuard is in force.
  // INVALID_ARGUMENT: a token, position, row or prefix out of range, or sequence ends that do not
  // rise to T.
  virtual absl::StatusOr<at::Tensor> Forward(const PackedBatch& batch) = 0;

  virtual const ModelConfig& config() const = 0;
};

struct TokenScores {
  at::Tensor logprobs;  // [N] fp32: natural-log probability of each row's target.
  at::Tensor entropy;   // [N] fp32: of the row's distribution, in nats.
};

// Scores of `targets` [N] under softmax(logits / temperature), logits [N, V] fp32: log-probs in the
// bits that a sampler gives them (kernels/sample). Both outputs are differentiable.
// INVALID_ARGUMENT: shapes differ, a target is out of range, or temperature <= 0.
absl::StatusOr<TokenScores> ScoreTokens(const at::Tensor& logits, absl::Span<const int64_t> targets,
                                        double temperature);

// loss.backward(), with torch's exceptions as a status. With `keep_graph`, another term of the same
// forward pass can be propagated afterwards.
absl::Status Backward(const at::Tensor& loss, bool keep_graph = false);

}  // namespace sluice
