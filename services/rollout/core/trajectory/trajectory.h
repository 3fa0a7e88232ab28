#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// One member's answer while this worker samples it: the tokens, their log-probs and stamps, and how
// far the queue has them. Positions count from the prompt's first token. Not thread-safe.
class Trajectory {
 public:
  // A run of tokens for one Put.
  struct Piece {
    uint64_t at = 0;  // Position of its first token.
    absl::Span<const int32_t> tokens;
    absl::Span<const float> logprobs;
    // [tokens, experts of a token]; empty without a mixture of experts.
    absl::Span<const uint16_t> routing;
    std::vector<VersionRun> runs;
  };

  // `prompt`: its length. The prefix: what the queue holds of earlier attempts, with the stamp of
  // each token.
  explicit Trajectory(uint32_t prompt, std::vector<int32_t> prefix_tokens = {},
                      std::vector<float> prefix_logprobs = {},
                      std::vector<PolicyVersion> prefix_versions = {});
  // Each token comes with the `experts` (layers x k) that its row went through; before the first
  // Append. Those of the prefix stay with the queue: where it wants them again, they are told as
  // unknown.
  void RecordRouting(uint32_t experts);

  // The next token, in order of positions.
  void Append(const TokenEvent& event);
  // No token follows.
  void Finish(FinishReason reason) { finish_ = reason; }

  // Tokens not yet taken for a Put.
  size_t unsent() const { return tokens_.size() - sent_; }
  // All unsent tokens, at most `limit`. The spans hold until the next Append.
  Piece TakePiece(size_t limit);
  // The queue has everything before `position` (a Put's acknowledgement).
  void Acked(uint64_t position);
  // Ends the answer behind the last token before `position`: the queue has no room for more.
  void Truncate(uint64_t position);
  // The queue has only what lies before `position`: the rest is unsent again, be it of the prefix.
  void Rewind(uint64_t position);

  size_t unacked() const { return tokens_.size() - acked_; }
  bool all_acked() const { return unacked() == 0; }
  FinishReason finish() const { return finish_; }
  uint32_t prompt() const { return prompt_; }
  // Of the next token; all tokens of the member.
  uint64_t position() const { return prompt_ + tokens_.size(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }    // The answer, prefix included.
  const std::vector<float>& logprobs() const { return logprobs_; }  // By token, as are ..
  const std::vector<PolicyVersion>& versions() const { return versions_; }  // .. the stamps.
  // CRC32C of the answer's tokens (i32) followed by its log-probs (f32), little-endian.
  uint32_t Crc32c() const;

 private:
  const uint32_t prompt_;
  const size_t prefix_;
  std::vector<int32_t> tokens_;
  std::vector<float> logprobs_;
  std::vector<PolicyVersion> versions_;
  uint32_t experts_ = 0;
  std::vector<uint16_t> routing_;  // [tokens, experts]
  size_t sent_;
  size_t acked_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace sluice
