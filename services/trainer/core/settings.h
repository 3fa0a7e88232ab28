#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/algorithms/spec.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice::trainer {

struct OptimizerSettings {
  std::string name = "adamw";
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;         // On tensors of two dimensions and more.
  double max_grad_norm = 1.0;         // 0: no clipping.
  std::string schedule = "constant";  // A row of common/optim/schedule.h.
  int64_t warmup = 0;                 // Updates, of which a step has `minibatches`.
  int64_t total = 0;  // Updates in the whole run; 0: not limited, for schedules without an end.
};

// What a job file says about training, names as there; defaults are the job file's.
struct Settings {
  enum class Kind { kRl, kSft };
  Kind kind = Kind::kRl;
  AlgorithmSpec algorithm;
  OptimizerSettings optimizer;
  // What the policy computes in, F32 or BF16; parameters and optimizer are fp32.
  DType dtype = DType::kF32;
  uint32_t minibatches = 1;            // Optimizer updates per batch.
  uint32_t micro_batch_tokens = 9216;  // Of one forward pass.
  bool stream = true;                  // Train on groups while the batch fills, at max_staleness 0.
  int64_t max_staleness = 4;           // Versions.
  uint32_t group_size = 8;
  double temperature = 1.0;      // Of sampling; log-probs are taken at it.
  uint32_t max_response = 8192;  // Tokens; L_max of aggregation fixed_length.
  bool reference = false;        // The initial weights are kept as the reference policy.
  int64_t skip_limit = 3;        // Skipped steps in a row that end the job.
};

// INVALID_ARGUMENT names the key, the value and what is allowed: a combination that the algorithms
// exclude, or a name that the registries do not have.
absl::Status Validate(const Settings& settings);

// Whether slices of a batch are trained on as they come: only where no token's coefficient depends
// on what is not there yet, but for factors of the whole step.
bool Streams(const Settings& settings);

}  // namespace sluice::trainer
