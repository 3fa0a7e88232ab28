#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/models/moe.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {

// Layers, experts of a layer, and experts of a token in TinyExpertsDir().
inline constexpr int kLayers = 2, kExperts = 4, kChosen = 2;

// Gives the members of a batch recorded experts, as an engine would: none for the prompt, but for
// its last token, and none for the last token of an answer.
inline std::vector<Group> WithRouting(std::vector<Group> batch, uint64_t seed) {
  SplitMix64 random(seed);
  for (Group& group : batch) {
    for (Trajectory& trajectory : group.members) {
      const size_t tokens = trajectory.tokens.size(), row = kLayers * kChosen;
      trajectory.routing.assign(tokens * row, kAnyExpert);
      for (size_t t = 0; t + 1 < tokens; ++t) {
        if (!trajectory.mask[t + 1]) continue;
        for (size_t at = t * row; at < (t + 1) * row; at += kChosen) {
          const uint16_t first = static_cast<uint16_t>(random.Below(kExperts - 1));
          const uint16_t above = static_cast<uint16_t>(random.Below(kExperts - 1 - first));
          trajectory.routing[at] = first;
          trajectory.routing[at + 1] = static_cast<uint16_t>(first + 1 + above);
        }
      }
    }
  }
  return batch;
}

// The batch as demonstrations: one answer to a prompt, without what only sampled answers have.
inline std::vector<Group> AsDemonstrations(std::vector<Group> batch) {
  for (Group& row : batch) {
    row.members.resize(1);
    row.members[0].logprobs.clear();
    row.members[0].versions.clear();
    row.members[0].routing.clear();
  }
  return batch;
}

}  // namespace sluice::trainer
