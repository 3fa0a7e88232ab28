#include "services/trainer/plan_input.h"

#include <algorithm>

#include "common/base/status.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice::trainer {

absl::StatusOr<MemoryPlanInput> PlanInputOf(const job::v1::JobSpec& spec) {
  const job::v1::Batching& batching = spec.trainer().batching();
  MemoryPlanInput in;
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(in.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  in.reference = spec.kind() == "rl" && spec.model().has_reference();
  const job::v1::Loss& loss = spec.algorithm().loss();
  // The factor of the policy term is not known while a batch is trained that still fills.
  in.separate_gradients = spec.kind() == "rl" && batching.stream() &&
                          spec.queue().max_staleness() == 0 &&
                          (loss.kl() != 0 || loss.entropy() != 0);
  in.retain_versions = static_cast<int>(spec.weights().retain_versions());
  in.longest = static_cast<uint32_t>(spec.model().max_context());
  if (spec.kind() == "rl") {
    in.longest =
        std::min(in.longest, spec.data().order().max_prompt() + spec.rollout().max_response());
  }
  const uint64_t sequences =
      spec.queue().groups_per_step() *
      (spec.kind() == "rl" ? uint64_t{spec.rollout().group().size()} : uint64_t{1});
  in.micro_batch_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(batching.micro_batch_tokens(), sequences * in.longest));
  in.recompute = RecomputeOf(spec);
  return in;
}

Recompute RecomputeOf(const job::v1::JobSpec& spec) {
  const std::string& name = spec.trainer().batching().recompute_activations();
  return name == "none" ? Recompute::kNone : name == "layer" ? Recompute::kLayer : Recompute::kAuto;
}

}  // namespace sluice::trainer
