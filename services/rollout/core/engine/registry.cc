#include "services/rollout/core/engine/registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "services/rollout/core/engine/engine_memory.h"
#include "services/rollout/core/engine/native/native_engine.h"

namespace sluice {
namespace {

absl::StatusOr<MadeEngine> MakeNative(const EngineSpec& spec, ModelDir model) {
  const ModelConfig& config = model.config;
  absl::StatusOr<TensorSet> weights = spec.random_init
                                          ? InitWeights(config, spec.init_seed, spec.dtype)
                                          : ReadWeights(model, spec.dtype);
  if (!weights.ok()) return weights.status();

  const EngineMemory plan = PlanEngine(config, spec);
  const NativeEngine::Options options{
      .slots = plan.slots,
      .adapt = spec.slots == 0,
      // NativeEngine checks a number that was asked for, and computes the blocks from it.
      .blocks = spec.slots == 0 ? static_cast<uint32_t>(plan.blocks) : 0,
      .max_context = plan.max_context,
      .max_batch_tokens = spec.max_batch_tokens,
      .threads = spec.threads,
      .max_versions = spec.max_versions,
      .job = spec.job};
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
