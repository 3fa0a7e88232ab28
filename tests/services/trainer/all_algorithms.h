#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "services/trainer/core/settings.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {

// The settings of each preset, advantage and loss, and of the options that need a whole step.
inline std::vector<std::pair<std::string, Settings>> AllAlgorithms() {
  std::vector<std::pair<std::string, Settings>> all;
  const auto add = [&](std::string name, const AlgorithmSpec& algorithm) {
    Settings settings = BaseSettings();
    settings.algorithm = algorithm;
    settings.optimizer.eps = 1e-3;
    settings.critic.lr = 1e-2;
    settings.reference = algorithm.advantage.kl > 0 || algorithm.loss.kl > 0;
    settings.teacher = algorithm.advantage.kind == "none" || algorithm.distill != DistillSpec();
    all.emplace_back(std::move(name), settings);
  };
  for (const auto& row : PresetRows()) add(std::string(row.name), row.value);
  for (const auto& row : AdvantageRows()) {
    AlgorithmSpec spec;
    spec.advantage.kind = std::string(row.name);
    if (row.value.min_variance) spec.loss.kind = "reinforce";
    add(absl::StrCat("advantage ", row.name), spec);
  }
  for (const auto& row : LossRows()) {
    AlgorithmSpec spec;
    spec.loss.kind = std::string(row.name);
    if (row.value.defaults != nullptr) row.value.defaults(spec.loss);
    add(absl::StrCat("loss ", row.name), spec);
  }
  AlgorithmSpec spec;
  spec.loss.tis_normalize = true, spec.loss.entropy = 0.05, spec.loss.m2po = 0.02;
  add("normalized weights and m2po", spec);
  spec = {};
  spec.loss.prox = "exact", spec.loss.m2po = 0.02;
  add("prox exact", spec);
  spec = {};
  spec.advantage.kl = 0.1;
  add("kl in the reward", spec);
  spec = {};
  spec.advantage.kind = "dr_grpo", spec.distill.coef = 0.5, spec.distill.trust_region = 0.01;
  add("distillation beside rewards", spec);
  spec.advantage.kind = "pool_loo", spec.distill = {.kind = "full"};
  add("distillation over the vocabulary", spec);
  spec.loss.aggregation = "seq_mean_token_mean";
  spec.distill = {.kind = "full", .coef = 0.5, .top_k = 5, .trust_region = 0.01};
  add("distillation over the teacher's most likely tokens", spec);
  spec = {};
  spec.advantage = {.kind = "gae", .kl = 0.1, .lam_value = 1.0, .raw = true, .kl_target = 0.05};
  spec.advantage.kl_horizon = 40;
  add("gae with a lambda for each, and a kl that is held", spec);
  spec = {};
  spec.advantage.duration_aware = true;
  add("the times of turns", spec);
  spec.advantage.kind = "gae";
  add("the times of turns with gae", spec);
  return all;
}

}  // namespace sluice::trainer
