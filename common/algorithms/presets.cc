#include "common/algorithms/presets.h"

#include <optional>

namespace sluice {

absl::Span<const Row<AlgorithmSpec>> PresetRows() {
  static const Row<AlgorithmSpec> rows[] = {
      {"sync_grpo",
       "GRPO with PPO's clip, for one optimizer step per batch",
       {.advantage = {.kind = "grpo"},
        .loss = {.kind = "ppo",
                 .prox = "self",
                 .clip_low = 0.2,
                 .clip_high = 0.2,
                 .dual = std::nullopt,
                 .tis = 2.0,
                 .veto = std::nullopt}}},
      {"sync_dapo",
       "GRPO advantages, DAPO's clip, dynamic sampling and overlong penalty",
       {.advantage = {.kind = "grpo", .signal_filter = true, .truncated = "penalty"},
        .loss = {.kind = "dapo",
                 .prox = "recompute",
                 .clip_low = 0.2,
                 .clip_high = 0.28,
                 .dual = std::nullopt,
                 .tis = 2.0,
                 .veto = std::nullopt}}},
      {"async_decoupled",
       "decoupled PPO with POOL-LOO advantages, for data up to about 4 versions old",
       {.advantage = {.kind = "pool_loo"},
        .loss = {.kind = "dapo",
                 .prox = "recompute",
                 .clip_low = 0.2,
                 .clip_high = 0.28,
                 .dual = 3.0,
                 .tis = 2.0,
                 .veto = 1e-4}}},
      {"async_vcpo",
       "VCPO (arXiv 2602.17616), for data up to about 128 versions old: sequence weights, baseline "
       "of minimum variance, learning rate by effective sample size. The paper trains with a "
       "weight_decay of 0.1",
       {.advantage = {.kind = "min_variance"},
        .loss = {.kind = "reinforce",
                 .prox = "none",
                 .dual = std::nullopt,
                 .tis = 8.0,
                 .tis_level = "sequence",
                 .veto = std::nullopt,
                 .aggregation = "seq_mean_token_mean",
                 .ess_lr = "sqrt"}}},
      {"async_cispo",
       "CISPO (arXiv 2506.13585) against the behaviour policy with the bounds of ScaleRL (arXiv "
       "2510.13786), and with M2PO's mask (arXiv 2510.01161), which leaves out the few old tokens "
       "that have moved furthest",
       {.advantage = {.kind = "lite_ppo"},
        .loss = {.kind = "cispo",
                 .prox = "none",
                 .dual = std::nullopt,
                 .cispo_low = 0,
                 .cispo_high = 5,
                 .tis = std::nullopt,
                 .veto = std::nullopt,
                 .m2po = 0.04}}},
      {"moe_gspo",
       "GSPO (arXiv 2507.18071) with IcePop's mask (arXiv 2510.18855), for mixtures of experts, "
       "and for data that is at most one version old. For older data set prox: exact, so that the "
       "mask leaves out what rollout and trainer disagree about, and not what is old",
       {.advantage = {.kind = "grpo"},
        .loss = {.kind = "gspo",
                 .prox = "recompute",
                 .clip_low = 3e-4,
                 .clip_high = 4e-4,
                 .dual = std::nullopt,
                 .tis = 5.0,
                 .tis_low = 0.5,
                 .tis_outside = "drop",
                 .veto = std::nullopt,
                 .aggregation = "seq_mean_token_mean"}}},
      {"opd",
       "on-policy distillation (arXiv 2601.02780): the policy learns from a teacher's "
       "probabilities "
       "of the tokens that it samples, and from no reward. Needs model.teacher",
       {.advantage = {.kind = "none"},
        .loss = {.kind = "reinforce",
                 .prox = "recompute",
                 .dual = std::nullopt,
                 .tis = 2.0,
                 .veto = std::nullopt}}},
      {"ppo_critic",
       "PPO (arXiv 1707.06347) with a critic: GAE (arXiv 1506.02438), and a KL to the reference in "
       "the reward, so that it needs model.reference",
       {.advantage = {.kind = "gae", .kl = 0.001},
        .loss = {.kind = "ppo",
                 .prox = "recompute",
                 .clip_low = 0.2,
                 .clip_high = 0.2,
                 .dual = std::nullopt,
                 .tis = 2.0,
                 .veto = std::nullopt}}},
  };
  return rows;
}

}  // namespace sluice
