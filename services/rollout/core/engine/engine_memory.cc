#include "services/rollout/core/engine/engine_memory.h"

#include <algorithm>

#include "services/rollout/core/kv/block_manager.h"

namespace sluice {

EngineMemory PlanEngine(const ModelConfig& config, const EngineSpec& spec) {
  EngineMemory plan;
  plan.slots = spec.slots;
  plan.max_context = static_cast<uint32_t>(config.max_context);
  if (spec.max_context > 0) plan.max_context = std::min(plan.max_context, spec.max_context);

  // A number of the keys and values takes as many bytes as one of the weights: the model keeps fp32
  // beside weights in fp32, and fp16 beside weights in bf16.
  const uint64_t number_bytes = DTypeBytes(spec.dtype);
  const uint64_t block_bytes =
      2 * number_bytes * kBlockTokens * config.num_layers * config.num_kv_heads * config.head_dim;
  const uint64_t whole = BlocksFor(plan.max_context);  // Blocks of the longest request.
  plan.blocks = spec.slots * whole;

  // With slots left open, the size of the KV cache comes first and the slots follow from it. Twice
  // as many requests may run as would fit at full length: answers seldom reach their limit, and
  // members of a group share the blocks of their prompt.
  if (spec.slots == 0) {
    plan.blocks = std::clamp(kMaxKvBytes / block_bytes, whole, kMaxSlots * whole);
    plan.slots = static_cast<uint32_t>(std::clamp<uint64_t>(2 * plan.blocks / whole, 1, kMaxSlots));
  }
  plan.kv_bytes = plan.blocks * block_bytes;
  plan.version_bytes = static_cast<uint64_t>(config.NumParameters()) * number_bytes;
  return plan;
}

}  // namespace sluice
