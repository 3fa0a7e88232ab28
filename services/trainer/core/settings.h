#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/algorithms/spec.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/recompute.h"

namespace sluice::trainer {

struct OptimizerSettings {
  std::string name = "adamw";
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;         // Only for tensors with two or more dimensions.
  double max_grad_norm = 1.0;         // 0: no clipping.
  std::string schedule = "constant";  // Name of a row of common/optim/schedule.h.
  int64_t warmup = 0;                 // In updates; a step has `minibatches` of them.
  // Updates of the whole run; 0 if it has no limit, for schedules without an end.
  int64_t total = 0;
  DType moments = DType::kF32;  // Type in which the two moments are kept, F32 or BF16.
};

// The critic of jobs whose advantages need one (HasCritic). What is not here of its AdamW is as in
// OptimizerSettings, with a constant learning rate.
struct CriticSettings {
  double lr = 1e-5;
  double max_grad_norm = 1.0;        // 0: no clipping.
  std::optional<double> clip = 0.2;  // See ValueLoss(). Unset: no clip.
  int64_t warmup = 0;  // First steps of the job, in which the critic alone is trained.
};

// Low-rank training; see Lora.
struct LoraSettings {
  static constexpr int64_t kMaxRank = 512;

  int64_t rank = 0;  // 0: all weights are trained.
  double alpha = 32;
  // Of kLayerMatrices: names of the matrices that get factors. Empty: all of them.
  std::vector<std::string> targets;
  uint64_t seed = 1;
};
// Whether the weight with this Hugging Face name gets factors.
bool IsLoraTarget(const LoraSettings& lora, absl::string_view name);

// What the ranks share out instead of each keeping all of it (ZeRO, arXiv:1910.02054): nothing; the
// moments; these and the gradients; these and the parameters.
enum class Shard { kNone, kOptimizer, kGradients, kParameters };

// What a job file says about training. The names are those of the job file. The job file's defaults
// are in sluice/job/v1/spec.proto; those below may differ from them.
struct Settings {
  enum class Kind { kRl, kSft, kDpo };
  Kind kind = Kind::kRl;
  struct Dpo {
    double beta = 0.1;           // See DpoLoss().
    double label_smoothing = 0;  // In [0, 0.5).
  } dpo;
  LoraSettings lora;
  CriticSettings critic;
  AlgorithmSpec algorithm;
  OptimizerSettings optimizer;
  // The type of the forward and backward pass, F32 or BF16. Parameters and optimizer are fp32.
  DType dtype = DType::kF32;
  uint32_t minibatches = 1;            // Optimizer updates per batch.
  uint32_t micro_batch_tokens = 9216;  // Most tokens of one forward pass.
  Recompute recompute = Recompute::kAuto;
  int64_t most_kept_bytes = MostKeptBytes();  // The limit of Recompute::kAuto.
  bool stream = true;  // Train on groups while the batch fills, at max_staleness 0; see Streams().
  int64_t max_staleness = 4;  // Versions.
  uint32_t group_size = 8;
  double temperature = 1.0;      // Sampling temperature, by which log-probs divide the logits too.
  uint32_t max_response = 8192;  // In tokens; L_max of the aggregation fixed_length.
  Shard shard = Shard::kNone;
  // Whether all ranks together compute each sequence that is longer than a micro-batch; see
  // ContextParallel.
  bool context = false;
  bool reference = false;  // Keep the initial weights as the reference policy.
  bool teacher = false;    // Learn from a teacher, as algorithm.distill says.
  bool rewards = true;     // Of the kind rl: answers have rewards.
  int64_t skip_limit = 3;  // The job fails after this many skipped steps in a row. 0: never.
};

// INVALID_ARGUMENT: a value is out of range, a name is in no registry, or the algorithms exclude
// the combination. The message names the key, the value and what is allowed.
absl::Status Validate(const Settings& settings);

// Whether a critic is trained beside the policy.
bool HasCritic(const Settings& settings);

// Whether the coefficient of the KL in the reward changes from step to step.
bool AdaptsRewardKl(const Settings& settings);

// Whether the trainer keeps the initial weights: as the reference policy, or as the frozen part of
// low-rank training.
bool KeepsInitialWeights(const Settings& settings);

// Whether slices of a batch are trained on as they come. This needs that a token's coefficient does
// not depend on groups that have not come yet, except by a factor that is common to the whole step.
bool Streams(const Settings& settings);

}  // namespace sluice::trainer
