#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/algorithms/returns.h"
#include "common/base/id.h"

namespace sluice::trainer {

// Tokens [first, first + count) of a trajectory.
struct TokenRun {
  uint64_t first = 0;
  uint64_t count = 0;

  auto operator<=>(const TokenRun&) const = default;
};

// Tokens of one turn of the policy, from its first sampled token to its last.
struct Turn {
  uint64_t first = 0, count = 0;
  double seconds = 0;  // Wall time of the turn; 0 if it is not known.

  bool operator==(const Turn&) const = default;
};

// One sampled completion with its prompt, as the queue delivered it. All columns have length T,
// which includes the prompt. A row of supervised data is a trajectory too: its mask is 1 on the
// answer, and it has no log-probs, versions or reward.
struct Trajectory {
  uint32_t member = 0;   // Index in its group.
  uint32_t attempt = 0;  // Number of the attempt that finished it, from 1.
  // CRC32C of its own tokens (without the prompt) followed by its log-probs. It is part of the
  // ledger's hash.
  uint32_t crc32c = 0;
  std::vector<int32_t> tokens;  // [T]
  // [T] 1 where the policy sampled the token and the queue allows its training, else 0.
  std::vector<uint8_t> mask;
  std::vector<float> logprobs;  // [T] behaviour log-probs in nats; any value where mask is 0.
  // [T] number of the version that sampled the token; -1 where mask is 0.
  std::vector<int64_t> versions;
  // [T, layers, experts per token] in a mixture-of-experts model, else empty. Row t has the experts
  // that token t went through when token t + 1 was sampled; kAnyExpert if it was not sampled.
  std::vector<uint16_t> routing;
  // Runs of tokens that the queue left out as too stale. Their `mask` is 0 already.
  std::vector<TokenRun> masked;
  std::vector<Turn> turns;  // In order.
  double reward = 0;        // Task reward, before any shaping.
  // What single tokens have earned of it, by ascending position. Empty if the reward does not say.
  std::vector<TokenReward> token_rewards;
  bool truncated = false;  // The answer was cut at the length limit.
  // Log-probs of the trained tokens, in their order, under the anchor less those under the
  // reference. The trainer sets it if the KL enters the reward; else it is empty.
  std::vector<float> kl;
  // Values of the states before the trained tokens, in their order, as a critic predicts them. If
  // the answer was cut and the job bootstraps such ones, the value of the state after the last
  // token follows. The trainer sets them if the job has a critic; else it is empty.
  std::vector<float> values;
};

// The trajectories of one prompt that train together.
struct Group {
  Id16 id;
  // Task rewards of other finished members of this prompt, which are not trained here. They only
  // enter the group's statistics.
  std::vector<double> pool;
  std::vector<Trajectory> members;
};

}  // namespace sluice::trainer
