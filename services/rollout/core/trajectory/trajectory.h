#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// The answer of one group member while this worker samples it: the tokens with their log-probs and
// versions, and how much of it was sent to the queue and acknowledged. Positions count from the
// prompt's first token. Not thread-safe.
class Trajectory {
 public:
  // Consecutive tokens that go to the queue in one Put.
  struct Piece {
    uint64_t at = 0;  // Position of the first token.
    absl::Span<const int32_t> tokens;
    absl::Span<const float> logprobs;
    // [tokens, experts of a token]; empty unless routing is recorded.
    absl::Span<const uint16_t> routing;
    std::vector<VersionRun> runs;
  };

  // `prompt` is the prompt's number of tokens. The prefix is the part of the answer that an earlier
  // attempt sampled and the queue holds.
  explicit Trajectory(uint32_t prompt, std::vector<int32_t> prefix_tokens = {},
                      std::vector<float> prefix_logprobs = {},
                      std::vector<PolicyVersion> prefix_versions = {});
  // Records routing: each token appended from now on comes with `experts` (layers x k) experts.
  // Call it before the first Append(). The experts of the prefix are only in the queue; if the
  // prefix has to be sent again, its tokens get kAnyExpert.
  void RecordRouting(uint32_t experts);

  // Appends the next token; its position must be position().
  void Append(const TokenEvent& event);
  // Says that no token follows.
  void Finish(FinishReason reason) { finish_ = reason; }

  // Number of tokens that no TakePiece() has taken.
  size_t unsent() const { return tokens_.size() - sent_; }
  // Takes the first unsent tokens, at most `limit`. The spans are valid until the next Append(),
  // Truncate() or end of this object.
  Piece TakePiece(size_t limit);
  // Says that the queue has acknowledged all positions below `position`.
  void Acknowledge(uint64_t position);
  // Drops the tokens from `position` on, but none of the prefix, and finishes the answer with
  // kLength. Called if the queue has no room for more.
  void Truncate(uint64_t position);
  // Says that the queue holds only positions below `position`. All tokens from there on are unsent
  // again, also those of the prefix.
  void Rewind(uint64_t position);

  size_t unacked() const { return tokens_.size() - acked_; }
  bool all_acked() const { return unacked() == 0; }
  FinishReason finish() const { return finish_; }
  uint32_t prompt() const { return prompt_; }
  // Position of the next token, which is the number of tokens of prompt and answer so far.
  uint64_t position() const { return prompt_ + tokens_.size(); }
  // The answer, prefix included: tokens, and by token the log-prob and the version.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<float>& logprobs() const { return logprobs_; }
  const std::vector<PolicyVersion>& versions() const { return versions_; }
  // CRC32C of the answer's tokens (i32) followed by its log-probs (f32), little-endian.
  uint32_t Crc32c() const;

 private:
  // prefix_, sent_ and acked_ count tokens of the answer. sent_ and acked_ start at prefix_ and
  // never exceed tokens_.size(). routing_ has experts_ numbers for each token.
  const uint32_t prompt_;
  const size_t prefix_;
  std::vector<int32_t> tokens_;
  std::vector<float> logprobs_;
  std::vector<PolicyVersion> versions_;
  uint32_t experts_ = 0;           // Per token; 0: routing is not recorded.
  std::vector<uint16_t> routing_;  // [tokens, experts]
  size_t sent_;
  size_t acked_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace sluice
