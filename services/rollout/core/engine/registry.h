#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/fingerprint.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// What an engine is made from: a model directory with its weights, or the configuration of a model
// directory and random weights.
struct EngineSpec {
  std::string kind = "native";
  std::string model_path;  // Hugging Face directory.
  // The weights are drawn from `init_seed`, and `model_path` may be without weights.
  bool random_init = false;
  uint64_t init_seed = 0;
  // Type of the weights that it holds and computes with: F32 or BF16.
  DType dtype = DType::kF32;
  // Requests at once. 0: the limit follows the use of a KV cache of about kMaxKvBytes, and is at
  // most kMaxSlots.
  uint32_t slots = 0;
  // Most tokens of prompt and answer together. 0 means the model's own limit, which also applies if
  // this value is above it.
  uint32_t max_context = 0;
  uint32_t max_batch_tokens = 2048;  // Most tokens that are computed in one step.
  int threads = 1;
  uint32_t max_versions = 1;  // See NativeEngine::Options.
  std::string job;            // Requests never use keys and values of another job.
};

// Limits that apply if EngineSpec::slots is 0.
inline constexpr uint64_t kMaxKvBytes = 2ull << 30;
inline constexpr uint64_t kMaxSlots = 256;

struct MadeEngine {
  ModelDir model;
  std::unique_ptr<Engine> engine;
  Fingerprint fingerprint;         // Fingerprint of the weights that the engine starts with.
  std::vector<TensorSpec> layout;  // The tensors of the weights, in the order of their names.
};

// Loads the model and makes the engine.
// UNIMPLEMENTED: this build does not have `kind`; the message names the kinds that it has.
// Other errors are those of ReadModelDir(), ReadWeights() and InitWeights().
absl::StatusOr<MadeEngine> MakeEngine(const EngineSpec& spec);

}  // namespace sluice
