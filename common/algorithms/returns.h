#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// A part of a sequence's reward that the token at this position has earned.
struct TokenReward {
  uint64_t position = 0;
  double value = 0;

  bool operator==(const TokenReward&) const = default;
};

// The rewards of a sequence's trainable tokens, which are at these positions (ascending, at least
// one). `token_rewards` says what single tokens have earned of `reward`; the last token has the
// rest. What a token earned that is not trained (because it is too stale, say) goes to the last
// trained one before it, of whose return it is a part; without such a one, to none.
std::vector<double> PlaceRewards(double reward, absl::Span<const TokenReward> token_rewards,
                                 absl::Span<const uint64_t> positions);

// Turns the rewards of a sequence's trainable tokens, in their order, into discounted returns:
// G_t = r_t + gamma G_{t+1}. Tokens that the policy did not sample are not in `rewards`; so they
// neither receive a reward nor discount.
void ToReturns(double gamma, absl::Span<double> rewards);

// Moments of the tokens of a step, for whitening (REINFORCE++, arXiv 2501.03262). May be copied as
// bytes to another process.
class TokenMoments {
 public:
  void Add(double value);
  void Merge(const TokenMoments& other);

  int64_t count() const { return static_cast<int64_t>(count_); }
  double variance() const;  // With ddof 1; 0 for fewer than two tokens.
  // (value - mean) / sqrt(var + 1e-8), var with ddof 1; 0 if fewer than two tokens were added.
  double Whiten(double value) const;

 private:
  // Welford's method, and that of Chan et al. to merge two.
  double count_ = 0, mean_ = 0, squares_ = 0;
};

}  // namespace sluice
