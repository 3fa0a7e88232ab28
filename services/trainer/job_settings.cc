#include "services/trainer/job_settings.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "services/trainer/core/rules.h"
#include "sluice/job/v1/spec.pb.h"

namespace sluice::trainer {
namespace {

OptimizerSettings OptimizerOf(const job::v1::JobSpec& spec) {
  const job::v1::Optimizer& from = spec.trainer().optimizer();
  OptimizerSettings to;
  to.name = from.name();
  to.lr = from.lr();
  if (from.betas_size() == 2) {
    to.beta1 = from.betas(0);
    to.beta2 = from.betas(1);
  }
  to.eps = from.eps();
  to.weight_decay = from.weight_decay();
  to.max_grad_norm = from.max_grad_norm();
  to.schedule = from.schedule();
  if (from.moments() == "bfloat16") to.moments = DType::kBF16;

  // The job file counts steps, the optimizer counts updates.
  const int64_t updates_per_step = std::max<int64_t>(1, spec.trainer().batching().minibatches());
  to.warmup = from.warmup() * updates_per_step;
  to.total = spec.limits().max_steps() * updates_per_step;
  return to;
}

Recompute RecomputeOf(const job::v1::JobSpec& spec) {
  const std::string& name = spec.trainer().batching().recompute_activations();
  return name == "none" ? Recompute::kNone : name == "layer" ? Recompute::kLayer : Recompute::kAuto;
}

Shard ShardOf(absl::string_view word) {
  return word == "optimizer"    ? Shard::kOptimizer
         : word == "gradients"  ? Shard::kGradients
         : word == "parameters" ? Shard::kParameters
                                : Shard::kNone;
}

}  // namespace

absl::StatusOr<Settings> SettingsOf(const job::v1::JobSpec& spec) {
  Settings settings;
  settings.kind = spec.kind() == "sft"   ? Settings::Kind::kSft
                  : spec.kind() == "dpo" ? Settings::Kind::kDpo
                                         : Settings::Kind::kRl;
  settings.dpo = {spec.trainer().dpo().beta(), spec.trainer().dpo().label_smoothing()};
  settings.algorithm = AlgorithmSpecOf(spec);
  settings.optimizer = OptimizerOf(spec);
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(settings.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  settings.minibatches = spec.trainer().batching().minibatches();
  settings.micro_batch_tokens = spec.trainer().batching().micro_batch_tokens();
  settings.recompute = RecomputeOf(spec);
  if (spec.trainer().has_memory()) {
    settings.most_kept_bytes =
        MostKeptBytes(std::min<uint64_t>(spec.trainer().memory(), MachineMemory()));
  }
  // How a batch is cut into slices depends on time, and changes sums by rounding.
  settings.stream = spec.trainer().batching().stream() && !spec.run().deterministic();
  settings.max_staleness = spec.queue().max_staleness();
  settings.skip_limit = spec.limits().skipped_steps();
  settings.reference = spec.model().has_reference();
  settings.teacher = spec.model().has_teacher();
  settings.rewards = !spec.reward().rewards().empty();
  settings.shard = ShardOf(spec.trainer().shard());
  settings.context = spec.trainer().parallel().context() > 1;
  if (spec.trainer().has_lora()) {
    const job::v1::Lora& lora = spec.trainer().lora();
    settings.lora = {.rank = lora.rank(),
                     .alpha = lora.alpha(),
                     .targets = {lora.targets().begin(), lora.targets().end()},
                     .seed = spec.run().seed()};
  }
  if (HasCritic(settings)) {
    const job::v1::Critic& critic = spec.trainer().critic();
    settings.critic = {.lr = critic.lr(),
                       .max_grad_norm = critic.max_grad_norm(),
                       .clip = std::nullopt,
                       .warmup = critic.warmup()};
    if (critic.has_clip()) settings.critic.clip = critic.clip();
  }
  if (settings.kind == Settings::Kind::kRl) {
    settings.group_size = spec.rollout().group().size();
    settings.temperature = spec.rollout().sampling().temperature();
    settings.max_response = spec.rollout().max_response();
  }
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  return settings;
}

absl::StatusOr<MemoryPlanInput> PlanInputOf(const job::v1::JobSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(const Settings settings, SettingsOf(spec));
  SLUICE_ASSIGN_OR_RETURN(const Rules rules, ResolveRules(settings));
  MemoryPlanInput in;
  in.dtype = settings.dtype;
  in.reference = KeepsInitialWeights(settings);
  in.lora = settings.lora;
  in.ranks = static_cast<int>(std::max<uint32_t>(1, spec.resources().trainer()));
  in.shard = settings.shard;
  in.context = settings.context && SharesLongSequences(rules);
  in.moments = settings.optimizer.moments;
  in.critic = HasCritic(settings);
  in.average = rules.loss.prox == ProxMode::kEwma;
  in.distill = rules.loss.distill;
  in.kept_versions = KeptVersions(settings, rules);
  in.gradient_buffers = GradientBuffers(settings, rules);
  in.retain_versions = static_cast<int>(spec.weights().retain_versions());
  in.deltas = spec.weights().encoding() != "full";
  in.micro_batch_tokens = settings.micro_batch_tokens;
  in.recompute = settings.recompute;
  in.most_kept_bytes = settings.most_kept_bytes;
  in.memory = spec.trainer().memory();
  const uint32_t context = spec.model().max_context();
  if (settings.kind != Settings::Kind::kRl) {
    // How long the rows are is known only when they are read. Up to what the job file gives a
    // micro-batch, they may be as long as the context.
    in.longest = std::min(context, settings.micro_batch_tokens);
    return in;
  }

  in.longest = std::min(context, spec.data().order().max_prompt() + spec.rollout().max_response());
  const uint64_t sequences = uint64_t{spec.queue().groups_per_step()} * settings.group_size;
  in.micro_batch_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(settings.micro_batch_tokens, sequences * in.longest));
  return in;
}

}  // namespace sluice::trainer
