#pragma once

#include <cstdint>
#include <vector>

#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {

inline constexpr double kBeta = 0.4;

inline Settings DpoSettings() {
  Settings settings;
  settings.kind = Settings::Kind::kDpo;
  settings.reference = true;
  settings.dpo.beta = kBeta;
  settings.optimizer.lr = 1e-2;
  settings.optimizer.max_grad_norm = 0;
  return settings;
}

// Rows of supervised data, with `answers` answers each: two are a pair.
inline std::vector<Group> Pairs(uint64_t seed, int pairs = 6, int answers = 2) {
  SplitMix64 random(seed);
  std::vector<Group> batch;
  for (int g = 0; g < pairs; ++g) {
    Group& group = batch.emplace_back(RandomGroup(random, 0, answers));
    for (Trajectory& trajectory : group.members) {
      trajectory.logprobs.clear();
      trajectory.versions.clear();
    }
  }
  return batch;
}

}  // namespace sluice::trainer
