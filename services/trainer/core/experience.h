#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/id.h"

namespace sluice::trainer {

// Tokens [first, first + count) of a trajectory.
struct TokenRun {
  uint64_t first = 0;
  uint64_t count = 0;

  auto operator<=>(const TokenRun&) const = default;
};

// One sampled completion with its prompt, as the queue delivered it. All columns have length T,
// prompt included. A row of supervised data is one too: its mask is 1 on the answer, and it has
// neither log-probs, versions nor reward.
struct Trajectory {
  uint32_t member = 0;
  uint32_t attempt = 0;
  // Of its own tokens followed by its log-probs; goes into the ledger's hash.
  uint32_t crc32c = 0;
  std::vector<int32_t> tokens;  // [T]
  // [T] base mask: 1 where the policy sampled the token and the queue lets it train.
  std::vector<uint8_t> mask;
  std::vector<float> logprobs;  // [T] behaviour log-prob in nats; anything where mask is 0.
  // [T] number of the version that sampled the token; -1 where mask is 0.
  std::vector<int64_t> versions;
  // [T, layers, k] in a mixture of experts, else empty: what row t went through when token t + 1
  // was drawn from it; kAnyExpert where the policy drew none.
  std::vector<uint16_t> routing;
  // Tokens that the queue took out as too stale; already out of `mask`.
  std::vector<TokenRun> masked;
  double reward = 0;       // Unshaped task reward.
  bool truncated = false;  // Ended by the length cap.
};

// The trajectories of one prompt that train together.
struct Group {
  Id16 id;
  // Task rewards of further finished members of this prompt: statistics only.
  std::vector<double> pool;
  std::vector<Trajectory> members;
};

// A whole batch, or the next slice of one.
struct Experience {
  int64_t k = 0;
  std::vector<Group> groups;
};

}  // namespace sluice::trainer
