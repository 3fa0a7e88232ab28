#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/fingerprint.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// What an engine is made of: a model directory with its weights, or a random start from a
// directory's configuration.
struct EngineSpec {
  std::string kind = "native";
  std::string model_path;  // Hugging Face directory.
  // The weights are drawn from `init_seed`; `model_path` need not hold any.
  bool random_init = false;
  uint64_t init_seed = 0;
  // Of the weights it holds: F32, or BF16, and then it computes in it.
  DType dtype = DType::kF32;
  // Requests at once. 0: by use of a KV cache of kMaxKvBytes, at most kMaxSlots.
  uint32_t slots = 0;
  uint32_t max_context = 0;  // Tokens; 0, or above the model's own limit: that.
  uint32_t max_batch_tokens = 2048;
  int threads = 1;
  std::string job;  // Keys and values of different jobs never meet.
};

// Of keys and values, where the number of slots is left open.
inline constexpr uint64_t kMaxKvBytes = 2ull << 30;
inline constexpr uint64_t kMaxSlots = 256;  // Then.

struct MadeEngine {
  ModelDir model;
  std::unique_ptr<Engine> engine;
  Fingerprint fingerprint;  // Of the weights it starts with.
  // Names, types and shapes of its weights; there until its first activation.
  const TensorSet* layout = nullptr;
};

// Loads the model and makes the engine. UNIMPLEMENTED: a kind that this build lacks, with those it
// has. Else as ReadModelDir, ReadWeights and InitWeights.
absl::StatusOr<MadeEngine> MakeEngine(const EngineSpec& spec);

}  // namespace sluice
