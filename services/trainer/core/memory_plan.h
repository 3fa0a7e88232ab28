#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/algorithms/distill.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/models/recompute.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// What a trainer holds in memory, by what it is for.
struct MemoryPlan {
  struct Row {
    std::string name;
    uint64_t bytes;
    std::string how;  // How the number comes about, for people.
  };
  std::vector<Row> rows;

  uint64_t total() const;
};

struct MemoryPlanInput {
  ModelConfig config;
  DType dtype = DType::kF32;  // Of the forward pass, and of what is published.
  bool reference = false;     // Whether the initial weights are kept.
  LoraSettings lora;
  int rank = 0, ranks = 1;
  Shard shard = Shard::kNone;
  DType moments = DType::kF32;
  DistillRule distill;
  ModelConfig teacher;       // If distill.kind is not kNone.
  bool critic = false;       // Whether a critic is trained beside the policy.
  bool average = false;      // Whether a running average of the weights is kept (prox ewma).
  int kept_versions = 0;     // See KeptVersions() in rules.h.
  int gradient_buffers = 1;  // See GradientBuffers() in rules.h.
  int retain_versions = 2;
  bool deltas = true;  // Whether versions may be sent as deltas (weights.encoding).
  uint32_t micro_batch_tokens = 0;
  // Tokens of the longest sequence, which may have more than a micro-batch, as far as it is known.
  uint32_t longest = 0;
  // Whether all ranks share the passes of sequences that are longer than a micro-batch.
  bool context = false;
  Recompute recompute = Recompute::kAuto;
  int64_t most_kept_bytes = MostKeptBytes();  // The limit of Recompute::kAuto.
  uint64_t memory = 0;  // What the job lets a rank plan with; 0: all that the machine has.
};

// Returns the plan of a job. Versions that an evaluation or a slow rollout still reads come on top.
// A checkpoint is written from live memory; what the next update overwrites before it is on disk
// takes memory on top of the plan too, at most 12 bytes a parameter of the policy, 16 with an
// average, and 12 bytes a parameter of the critic, and less by 4 bytes with moments in bf16.
MemoryPlan PlanMemory(const MemoryPlanInput& input);

// What a rank may plan with on a machine that has `machine` bytes.
uint64_t AvailableMemory(const MemoryPlanInput& input, uint64_t machine);

// Returns the tokens of the micro-batches with which the plan needs at most `available` bytes:
// input.micro_batch_tokens, or the first smaller number, in steps of a sixteenth, that fits. If
// none of at least 256 fits, because of the longest sequence or of what does not depend on
// micro-batches, they stay as they are.
uint32_t FitMicroBatch(MemoryPlanInput input, uint64_t available);

// RESOURCE_EXHAUSTED TRAINER_MEMORY: the plan needs more than `available` bytes. The message names
// all rows, and the hint the keys that lower them.
absl::Status CheckFits(const MemoryPlan& plan, uint64_t available);

// For example "2.22 GiB".
std::string GibText(uint64_t bytes);

}  // namespace sluice::trainer
