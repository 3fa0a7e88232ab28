#include "services/rollout/core/engine/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {
namespace {

absl::StatusOr<MadeEngine> MakeNative(const EngineSpec& spec, ModelDir model) {
  const ModelConfig& config = model.config;
  absl::StatusOr<TensorSet> weights = spec.random_init
                                          ? InitWeights(config, spec.init_seed, spec.dtype)
                                          : ReadWeights(model, spec.dtype);
  if (!weights.ok()) return weights.status();

  NativeEngine::Options options{.slots = spec.slots,
                                .max_batch_tokens = spec.max_batch_tokens,
                                .threads = spec.threads,
                                .job = spec.job};
  options.max_context = static_cast<uint32_t>(config.max_context);
  if (spec.max_context > 0) options.max_context = std::min(options.max_context, spec.max_context);

  // With slots left open, the size of the KV cache comes first and the slots follow from it.
  if (options.slots == 0) {
    // A number of the keys and values takes as many bytes as one of the weights: the model keeps
    // fp32 beside weights in fp32, and fp16 beside weights in bf16.
    const uint64_t number_bytes = DTypeBytes(spec.dtype);
    const uint64_t block_bytes =
        2 * number_bytes * kBlockTokens * config.num_layers * config.num_kv_heads * config.head_dim;
    const uint64_t whole = BlocksFor(options.max_context);  // Blocks of the longest request.
    const uint64_t blocks = std::clamp(kMaxKvBytes / block_bytes, whole, kMaxSlots * whole);

    // Twice as many requests may run as would fit at full length: answers seldom reach their limit,
    // and members of a group share the blocks of their prompt.
    options.slots = static_cast<uint32_t>(std::clamp<uint64_t>(2 * blocks / whole, 1, kMaxSlots));
    options.blocks = static_cast<uint32_t>(blocks);
    options.adapt = true;
  }

  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<NativeEngine> engine,
      NativeEngine::Create(config, *std::move(weights), PolicyVersion{}, model.stop_ids, options));
  MadeEngine made;
  made.fingerprint = engine->fingerprint();
  const absl::Span<const TensorSpec> layout = engine->weights().specs();
  made.layout.assign(layout.begin(), layout.end());
  made.engine = std::move(engine);
  made.model = std::move(model);
  return made;
}

struct Row {
  const char* kind;
  absl::StatusOr<MadeEngine> (*make)(const EngineSpec&, ModelDir);
};
constexpr Row kRows[] = {{"native", MakeNative}};

}  // namespace

absl::StatusOr<MadeEngine> MakeEngine(const EngineSpec& spec) {
  for (const Row& row : kRows) {
    if (spec.kind != row.kind) continue;
    SLUICE_ASSIGN_OR_RETURN(ModelDir model, ReadModelDir(spec.model_path));
    return row.make(spec, std::move(model));
  }
  return absl::UnimplementedError(
      absl::StrCat("rollout.engine.kind ", spec.kind, " is not in this build; it has native"));
}

}  // namespace sluice
