#pragma once

#include <cstdint>

#include "common/checkpoint/model_config.h"
#include "services/rollout/core/engine/registry.h"

namespace sluice {

// What a native engine holds in memory, beside some megabytes that a step needs.
struct EngineMemory {
  uint32_t slots = 0;          // Requests at once.
  uint32_t max_context = 0;    // Tokens of a request.
  uint64_t blocks = 0;         // Of the KV cache.
  uint64_t kv_bytes = 0;       // Of all blocks.
  uint64_t version_bytes = 0;  // Of the weights of one version.
};

EngineMemory PlanEngine(const ModelConfig& config, const EngineSpec& spec);

}  // namespace sluice
