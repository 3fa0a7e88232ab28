#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/weights/version_health.h"

namespace sluice::trainer {

// Whether a version that is on trial at one rollout, the canary, goes to the others. All of it is
// plain computation: times are passed in.

// The block `weights.canary` of the job file.
struct CanaryRules {
  uint64_t tokens = 256;
  absl::Duration wait = absl::Seconds(10);
  double max_gap = 2;                     // Nats.
  std::optional<double> max_reward_drop;  // Standard deviations. Unset: rewards do not matter.
};

// Mean rewards of groups.
struct RewardSample {
  int64_t groups = 0;
  double mean = 0, variance = 0;  // The variance divides by groups - 1.
};

// The mean rewards of the newest groups, each with the versions that sampled it.
class GroupRewards {
 public:
  static constexpr size_t kMost = 256;

  // `oldest` and `newest`: numbers of the versions that sampled the group's trained tokens.
  void Add(int64_t oldest, int64_t newest, double mean_reward);
  // Of the groups that were sampled with `version` alone, and of those with older versions alone.
  RewardSample SampleOf(int64_t version) const;
  RewardSample SampleBefore(int64_t version) const;

 private:
  struct Group {
    int64_t oldest = 0, newest = 0;
    double reward = 0;
  };
  std::deque<Group> groups_;
};

// What is known of a version on trial.
struct CanaryEvidence {
  // For how long the canary has computed with it. Nullopt: it does not yet.
  std::optional<absl::Duration> served;
  absl::Duration idle;  // For how long it has computed no row.
  VersionHealth health;
  RewardSample canary, others;
};

struct CanaryVerdict {
  enum class Kind { kWait, kPromote, kWithdraw };
  Kind kind = Kind::kWait;
  std::string reason;  // In words: what is missing, what was found, or what is at fault.
  // Set with kPromote if the time was over before all was known: what is not known.
  std::string not_known;
};

// Withdraws if more than 1 % of the rows are not finite, at least two of them before the end; if
// the log-probs of earlier answers have moved by more than `max_gap`; or if rewards have dropped by
// more than `max_reward_drop` and by more than three standard errors. What is not known is not held
// against the version: it is promoted without it after `rules.wait`, or once the canary that has
// computed some rows has no work for 2 s.
CanaryVerdict JudgeCanary(const CanaryRules& rules, const CanaryEvidence& evidence);

}  // namespace sluice::trainer
