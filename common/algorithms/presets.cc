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
  };
  return rows;
}

}  // namespace sluice
