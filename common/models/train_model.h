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
#include "common/models/recompute.h"
#include "common/models/sequence_share.h"
#include "common/models/teacher_rows.h"
#include "common/models/unit_memory.h"

namespace sluice {

// Sequences that are stored one after the other, without padding. Legend: T tokens in all, B
// sequences, N rows to score, V vocabulary.
//
// Several answers to one prompt can share one copy of the prompt. If prefix[b] = a >= 0, sequence b
// continues sequence a, and its tokens attend to the tokens of a before their own. The rows of b
// have the same bits as if a copy of a stood in front of b. The gradients of all sequences that
// continue a are added up in the rows of a.
struct PackedBatch {
  std::vector<int64_t> tokens;  // [T]
  // [T]. Usually the positions count from 0 in each sequence, or go on from the end of its prefix.
  std::vector<int64_t> positions;
  // [B + 1], rising from 0 to T: sequence b has the tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1.
  std::vector<int64_t> cu_seqlens;
  // [B], or empty if no sequence has a prefix. prefix[b] is -1 (none), or the last sequence before
  // b that has no prefix itself.
  std::vector<int64_t> prefix;
  // [T, layers, k], or empty: the experts that each token went through when it was sampled (moe.h),
  // in rising order within a layer. If the first of the k is kAnyExpert, the router chooses.
  std::vector<uint16_t> routing;
  // [N], indices into the T tokens: where logits are wanted. Row t predicts token t + 1.
  std::vector<int64_t> score_rows;
};

// The weights with which the load-balancing loss of a mixture of experts adds up the probabilities
// of the routers. Legend: E experts.
struct RouterBalance {
  std::vector<float> token_weights;    // [T]
  std::vector<double> expert_weights;  // [layers, E]
};

struct TokenScores {
  at::Tensor logprobs;  // [N] fp32: natural-log probability of each row's target.
  at::Tensor entropy;   // [N] fp32: entropy of each row's distribution, in nats.
  // [N] fp32: KL of each row's distribution from that of the teacher, in nats; undefined if there
  // is no teacher.
  at::Tensor teacher_kl;
  // [] fp64: sum over tokens t, layers l and experts e of token_weights[t] expert_weights[l, e]
  // p_tle, where p_tl is the softmax over all logits of the router of layer l. Undefined if no
  // RouterBalance was given.
  at::Tensor router_balance;
};

// The training execution of a model, on LibTorch. Parameters are fp32 autograd leaves, and
// attention is causal within each sequence of a packed batch. This is the only place where a model
// uses torch. Torch's exceptions are caught here and returned as statuses.
//
// In bf16 the parameters stay fp32. The forward pass rounds them to bf16, and rounds in the same
// places as the decode execution (decode_model.h). The logits therefore have the same bits as those
// of the decode execution on the rounded weights. Gradients are fp32 and are computed from the
// rounded numbers; the gradient of a rounding is 1 (straight-through).
//
// May be used by one thread at a time. Inside, it uses the threads of torch and of ParallelFor()
// (parallel.h).
class TrainModel {
 public:
  struct Parameter {
    std::string name;   // As in Hugging Face checkpoints.
    at::Tensor tensor;  // fp32, a leaf that requires gradients; the optimizer writes it in place.
  };

  // With `lent`, the parameters have no memory of their own: a UnitMemory lends it (LendMemory),
  // and neither Load() nor Store() may be called.
  // UNIMPLEMENTED: a dtype other than F32 and BF16.
  static absl::StatusOr<std::unique_ptr<TrainModel>> Create(const ModelConfig& config, DType dtype,
                                                            const ActivationMemory& memory = {},
                                                            bool lent = false);
  virtual ~TrainModel() = default;

  // Load() copies all parameters from a set with the config's names and shapes, in F32, F16 or
  // BF16. Store() copies them to such a set, and rounds to nearest, ties to even. INVALID_ARGUMENT:
  // names or shapes differ.
  virtual absl::Status Load(const TensorSet& weights) = 0;
  virtual absl::Status Store(TensorSet* weights) const = 0;
  // INVALID_ARGUMENT: names or shapes of the weights are not those of the parameters.
  virtual absl::Status CheckLayout(const TensorSet& weights) const = 0;

  // In the order of their names, as in a TensorSet. A tied head occurs once, as
  // model.embed_tokens.weight.
  virtual const std::vector<Parameter>& parameters() const = 0;
  virtual void ZeroGrad() = 0;  // Drops the gradients.

  // Makes all later passes ask `memory`, which outlives the model, for the units that they use.
  virtual void SetUnitMemory(UnitMemory* memory) = 0;

  // Returns the logits [N, V] of batch.score_rows, in fp32. They are differentiable unless a
  // c10::NoGradGuard exists. INVALID_ARGUMENT: a size is wrong; a token, position, row, prefix or
  // expert is out of range; or cu_seqlens does not rise from 0 to T.
  virtual absl::StatusOr<at::Tensor> Logits(const PackedBatch& batch) = 0;

  // Scores targets[i], for each i < N, as the token after row batch.score_rows[i], under
  // softmax(logits / temperature). The log-probs have the same bits as those of the sampler
  // (kernels/sample). Both outputs are differentiable unless a c10::NoGradGuard exists. The logits
  // are never in memory as a whole.
  // INVALID_ARGUMENT: the same as in Logits(), a target is out of range, or temperature <= 0.
  //
  // With a teacher (HeadInput() of another model, of the same vocabulary and dtype), the result has
  // teacher_kl too, differentiable with respect to this model. With `balance`, which only a model
  // with experts may get, it has router_balance too, differentiable as well.
  virtual absl::StatusOr<TokenScores> Score(const PackedBatch& batch,
                                            absl::Span<const int64_t> targets, double temperature,
                                            const TeacherRows* teacher = nullptr,
                                            const RouterBalance* balance = nullptr) = 0;

  // Score() of a batch of one sequence that several processes compute together (context
  // parallelism), each with its own copy of the model. Sets *scored to those of the N rows that lie
  // in the parts of this process, in rising order, and returns the scores of these. The backward
  // passes of all processes are made together too, and the gradient is the sum of theirs. If no row
  // lies here, the result has one row without a meaning, so that there is a backward pass.
  // INVALID_ARGUMENT: the same as in Score(), or CanShare() is false.
  virtual absl::StatusOr<TokenScores> ScoreShare(const PackedBatch& batch,
                                                 absl::Span<const int64_t> targets,
                                                 double temperature, const SequenceShare& share,
                                                 std::vector<size_t>* scored) = 0;
  // Whether the batch is one sequence that is computed in parts, of which each of `world` processes
  // gets at least one.
  virtual bool CanShare(const PackedBatch& batch, int world) const = 0;

  // Returns, for each layer and expert, the sum of the weights of the tokens that go through it:
  // [layers, E]. `token_weights` are [T]. Computes no gradients. INVALID_ARGUMENT: the same as in
  // Logits(), a weight is missing, or the model has no experts.
  virtual absl::StatusOr<std::vector<double>> CountExperts(
      const PackedBatch& batch, absl::Span<const float> token_weights) = 0;

  // Returns what the output head is applied to in batch.score_rows, and the head, for Score() of
  // another model. Needs a c10::NoGradGuard. INVALID_ARGUMENT: the same as in Logits().
  virtual absl::StatusOr<TeacherRows> HeadInput(const PackedBatch& batch) = 0;

  // Returns one number [N] for each of batch.score_rows: the hidden state that the output head
  // would take, times `weight` [1, hidden size] plus `bias` [1], in fp32. Differentiable as the
  // logits are. INVALID_ARGUMENT: the same as in Logits().
  virtual absl::StatusOr<at::Tensor> Project(const PackedBatch& batch, const at::Tensor& weight,
                                             const at::Tensor& bias) = 0;

  // Runs the backward pass of a loss that was computed from scores of this model. With
  // `keep_graph`, another term of the same forward pass can be back-propagated afterwards.
  virtual absl::Status Backward(const at::Tensor& loss, bool keep_graph = false) = 0;

  virtual const ModelConfig& config() const = 0;
};

// Makes `data` the memory of a parameter of a model whose memory is lent; null: it has none.
void LendMemory(const at::Tensor& parameter, float* data);

// The same as TrainModel::Backward(), for a loss of any tensors whose memory is not lent.
absl::Status Backward(const at::Tensor& loss, bool keep_graph = false);

}  // namespace sluice
