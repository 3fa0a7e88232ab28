#include "services/trainer/core/settings.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/validate.h"
#include "common/checkpoint/layer_matrices.h"
#include "common/optim/schedule.h"

namespace sluice::trainer {
namespace {

absl::Status Invalid(absl::string_view key, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", value, ", but ", rule));
}

absl::Status ValidateOptimizer(const OptimizerSettings& optimizer) {
  bool known = false;
  for (absl::string_view name : OptimizerNames()) known |= name == optimizer.name;
  if (!known)
    return Invalid("trainer.optimizer.name", optimizer.name,
                   absl::StrCat("must be ", absl::StrJoin(OptimizerNames(), " | ")));
  if (FindSchedule(optimizer.schedule) == nullptr) {
    std::string names;
    for (const ScheduleRow& row : ScheduleRows())
      absl::StrAppend(&names, names.empty() ? "" : " | ", row.name);
    return Invalid("trainer.optimizer.schedule", optimizer.schedule,
                   absl::StrCat("must be ", names));
  }
  if (FindSchedule(optimizer.schedule)->needs_total() && optimizer.total <= 0) {
    return Invalid("trainer.optimizer.schedule", optimizer.schedule,
                   "needs limits.max_steps above 0, where the learning rate reaches 0; set it, or "
                   "use constant");
  }
  if (optimizer.moments != DType::kF32 && optimizer.moments != DType::kBF16)
    return Invalid("trainer.optimizer.moments", DTypeName(optimizer.moments),
                   "must be float32 or bfloat16");
  if (!(optimizer.lr >= 0))
    return Invalid("trainer.optimizer.lr", absl::StrCat(optimizer.lr), "must be 0 or more");
  for (double beta : {optimizer.beta1, optimizer.beta2}) {
    if (!(beta >= 0 && beta < 1))
      return Invalid("trainer.optimizer.betas", absl::StrCat(beta), "must be in [0, 1)");
  }
  if (!(optimizer.eps >= 0))
    return Invalid("trainer.optimizer.eps", absl::StrCat(optimizer.eps), "must be 0 or more");
  if (!(optimizer.weight_decay >= 0)) {
    return Invalid("trainer.optimizer.weight_decay", absl::StrCat(optimizer.weight_decay),
                   "must be 0 or more");
  }
  if (!(optimizer.max_grad_norm >= 0)) {
    return Invalid("trainer.optimizer.max_grad_norm", absl::StrCat(optimizer.max_grad_norm),
                   "must be 0 (off) or more");
  }
  return absl::OkStatus();
}

absl::Status ValidateLora(const Settings& settings) {
  const LoraSettings& lora = settings.lora;
  if (lora.rank == 0) return absl::OkStatus();
  if (lora.rank < 0 || lora.rank > LoraSettings::kMaxRank) {
    return Invalid("trainer.lora.rank", absl::StrCat(lora.rank),
                   absl::StrCat("must be in 1..", LoraSettings::kMaxRank));
  }
  if (!(lora.alpha > 0))
    return Invalid("trainer.lora.alpha", absl::StrCat(lora.alpha), "must be above 0");
  for (const std::string& target : lora.targets) {
    if (!absl::c_linear_search(kLayerMatrices, target)) {
      return Invalid("trainer.lora.targets", target,
                     absl::StrCat("must be of ", absl::StrJoin(kLayerMatrices, ", ")));
    }
  }
  if (settings.algorithm.loss.router_balance != 0)
    return Invalid("algorithm.loss.router_balance",
                   absl::StrCat(settings.algorithm.loss.router_balance),
                   "trainer.lora never changes the routers");
  if (settings.kind != Settings::Kind::kRl) return absl::OkStatus();
  // Both work on the gradients or weights of the whole model.
  if (settings.algorithm.advantage.kind == "min_variance")
    return Invalid("algorithm.advantage.kind", "min_variance", "trainer.lora excludes it");
  if (settings.algorithm.loss.prox == "ewma")
    return Invalid("algorithm.loss.prox", "ewma", "trainer.lora excludes it");
  return absl::OkStatus();
}

absl::Status ValidateShard(const Settings& settings) {
  if (settings.shard < Shard::kGradients) return absl::OkStatus();
  const bool parameters = settings.shard == Shard::kParameters;
  const char* const word = parameters ? "parameters" : "gradients";
  // Gradients of all ranks are added up before one rank has a whole one.
  if (settings.lora.rank > 0)
    return Invalid("trainer.shard", word, "trainer.lora needs whole gradients");
  if (settings.kind == Settings::Kind::kRl && settings.algorithm.advantage.kind == "min_variance")
    return Invalid("trainer.shard", word,
                   "algorithm.advantage.kind: min_variance needs the gradient of each answer");
  if (parameters && settings.kind == Settings::Kind::kRl && settings.algorithm.loss.prox == "exact")
    return Invalid("trainer.shard", word,
                   "algorithm.loss.prox: exact keeps whole versions of the weights on each rank");
  return absl::OkStatus();
}

absl::Status ValidateContext(const Settings& settings) {
  if (!settings.context) return absl::OkStatus();
  if (settings.recompute == Recompute::kNone)
    return Invalid("trainer.batching.recompute_activations", "none",
                   "trainer.parallel.context computes long sequences in parts, whose activations "
                   "are computed again; use auto or layer");
  if (settings.kind == Settings::Kind::kRl && settings.algorithm.advantage.kind == "min_variance")
    return Invalid("algorithm.advantage.kind", "min_variance",
                   "it needs the gradient of each answer on one rank, and trainer.parallel.context "
                   "shares out the gradients of long answers");
  return absl::OkStatus();
}

absl::Status ValidateCritic(const CriticSettings& critic) {
  if (!(critic.lr >= 0))
    return Invalid("trainer.critic.lr", absl::StrCat(critic.lr), "must be 0 or more");
  if (!(critic.max_grad_norm >= 0)) {
    return Invalid("trainer.critic.max_grad_norm", absl::StrCat(critic.max_grad_norm),
                   "must be 0 (off) or more");
  }
  if (critic.clip.has_value() && !(*critic.clip > 0)) {
    return Invalid("trainer.critic.clip", absl::StrCat(*critic.clip),
                   "must be above 0; none turns the clip off");
  }
  if (critic.warmup < 0)
    return Invalid("trainer.critic.warmup", absl::StrCat(critic.warmup), "must be 0 or more");
  return absl::OkStatus();
}

absl::Status ValidateDpo(const Settings& settings) {
  if (!settings.reference)
    return Invalid("model.reference", "none",
                   "dpo compares with the reference policy: use initial");
  if (!(settings.dpo.beta > 0))
    return Invalid("trainer.dpo.beta", absl::StrCat(settings.dpo.beta), "must be above 0");
  if (!(settings.dpo.label_smoothing >= 0 && settings.dpo.label_smoothing < 0.5)) {
    return Invalid("trainer.dpo.label_smoothing", absl::StrCat(settings.dpo.label_smoothing),
                   "must be in [0, 0.5)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Settings& settings) {
  if (absl::Status status = ValidateOptimizer(settings.optimizer); !status.ok()) return status;
  if (absl::Status status = ValidateLora(settings); !status.ok()) return status;
  if (absl::Status status = ValidateShard(settings); !status.ok()) return status;
  if (absl::Status status = ValidateContext(settings); !status.ok()) return status;
  if (settings.minibatches < 1)
    return Invalid("trainer.batching.minibatches", "0", "must be at least 1");
  if (settings.micro_batch_tokens < 1)
    return Invalid("trainer.batching.micro_batch_tokens", "0", "must be at least 1");
  if (!(settings.temperature > 0)) {
    return Invalid("rollout.sampling.temperature", absl::StrCat(settings.temperature),
                   "must be above 0, because sampled tokens are trained on");
  }
  if (settings.kind == Settings::Kind::kDpo) return ValidateDpo(settings);
  if (settings.kind == Settings::Kind::kSft) return absl::OkStatus();
  if (HasCritic(settings)) {
    if (absl::Status status = ValidateCritic(settings.critic); !status.ok()) return status;
  }

  const AlgorithmContext context{.group_size = settings.group_size,
                                 .minibatches = settings.minibatches,
                                 .has_reference = settings.reference,
                                 .has_teacher = settings.teacher};
  std::string problems;
  for (const AlgorithmProblem& problem : ValidateAlgorithm(settings.algorithm, context)) {
    absl::StrAppend(&problems, problems.empty() ? "" : "; ", "algorithm.", problem.field, ": ",
                    problem.message);
  }
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problems);
}

bool IsLoraTarget(const LoraSettings& lora, absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  if (parts.size() < 2 || parts.back() != "weight") return false;
  const absl::string_view matrix = parts[parts.size() - 2];
  return lora.targets.empty() ? absl::c_linear_search(kLayerMatrices, matrix)
                              : absl::c_linear_search(lora.targets, matrix);
}

bool HasCritic(const Settings& settings) {
  if (settings.kind != Settings::Kind::kRl) return false;
  const auto* row = FindRow(AdvantageRows(), settings.algorithm.advantage.kind);
  return row != nullptr && NeedsCritic(row->value);
}

bool AdaptsRewardKl(const Settings& settings) {
  return settings.kind == Settings::Kind::kRl && settings.algorithm.advantage.kl_target.has_value();
}

bool KeepsInitialWeights(const Settings& settings) {
  return settings.lora.rank > 0 || (settings.reference && settings.kind != Settings::Kind::kSft);
}

bool Streams(const Settings& settings) {
  if (settings.kind != Settings::Kind::kRl || !settings.stream) return false;
  // Several updates need the whole batch first.
  if (settings.max_staleness != 0 || settings.minibatches != 1) return false;
  const absl::StatusOr<AdvantageRule> rule = ResolveAdvantage(settings.algorithm.advantage);
  if (!rule.ok() || !IsGroupWise(*rule)) return false;
  // These are computed from a pass over the whole step, before its gradients.
  const AlgorithmSpec& algorithm = settings.algorithm;
  const auto* loss = FindRow(LossRows(), algorithm.loss.kind);
  if (algorithm.advantage.kl != 0 || algorithm.loss.m2po.has_value() || loss == nullptr ||
      loss->value.entropy_factors || algorithm.loss.router_balance != 0) {
    return false;
  }
  if (settings.teacher) {
    const auto* distill = FindRow(DistillRows(), algorithm.distill.kind);
    if (distill == nullptr) return false;
    // The late factor of the advantages does not multiply the teacher's part of them, and a mean
    // over tokens needs their number early where the aggregation is another one.
    if (distill->value == DistillKind::kSampled ? IsStepWide(*rule)
                                                : algorithm.loss.aggregation != "token_mean")
      return false;
  }
  // A factor of the advantages that is known late must multiply the whole policy term.
  return loss->value.proportional || !IsStepWide(*rule);
}

}  // namespace sluice::trainer
