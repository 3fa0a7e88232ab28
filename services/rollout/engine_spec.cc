#include "services/rollout/engine_spec.h"

#include <algorithm>

#include "common/base/status.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice::rollout {

absl::StatusOr<EngineSpec> EngineSpecOf(const job::v1::JobSpec& spec) {
  const job::v1::Rollout& rollout = spec.rollout();
  EngineSpec engine;
  engine.kind = rollout.engine().kind().empty() ? "native" : rollout.engine().kind();
  engine.random_init = spec.model().has_init();
  engine.model_path = engine.random_init ? spec.model().init().config() : spec.model().path();
  engine.init_seed = spec.model().init().seed();
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(engine.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  engine.slots = rollout.engine().has_max_running() ? rollout.engine().max_running() : 0;
  engine.max_context = std::min(spec.model().max_context(),
                                spec.data().order().max_prompt() + rollout.max_response());

  const job::v1::Weights& weights = spec.weights();
  if (weights.inflight() == "finish")
    engine.max_versions = weights.has_resident_versions() ? weights.resident_versions() : 2;
  return engine;
}

}  // namespace sluice::rollout
