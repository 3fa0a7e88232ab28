#include "services/trainer/core/canary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice::trainer {
namespace {

// Fewer bad rows may be a fault of the canary's memory.
constexpr uint64_t kFewestBadRows = 2, kOneBadIn = 100;
// Fewer tokens may be of one odd answer.
constexpr uint64_t kFewestGapTokens = 32;
constexpr int64_t kFewestGroups = 8;
constexpr double kStandardErrors = 3;
// A canary that has computed nothing for so long has no work: the queue admits none before the
// version is promoted.
constexpr absl::Duration kIdle = absl::Seconds(2);

template <typename Groups, typename Counts>
RewardSample SampleIf(const Groups& groups, Counts counts) {
  // Welford's recurrence.
  RewardSample sample;
  double squares = 0;
  for (const auto& group : groups) {
    if (!counts(group)) continue;
    ++sample.groups;
    const double before = group.reward - sample.mean;
    sample.mean += before / static_cast<double>(sample.groups);
    squares += before * (group.reward - sample.mean);
  }
  if (sample.groups > 1) sample.variance = squares / static_cast<double>(sample.groups - 1);
  return sample;
}

bool RewardsAreKnown(const CanaryEvidence& evidence) {
  return evidence.canary.groups >= kFewestGroups && evidence.others.groups >= kFewestGroups;
}

// What is at fault with the version; empty if nothing is known to be. At the end of the trial a
// single bad row counts, since no more will be known.
std::string FindFault(const CanaryRules& rules, const CanaryEvidence& evidence, bool at_end) {
  const VersionHealth& health = evidence.health;
  const uint64_t fewest = at_end ? 1 : kFewestBadRows;
  if (health.bad_rows >= fewest && health.bad_rows * kOneBadIn > health.rows) {
    return absl::StrCat(health.bad_rows, " of ", health.rows,
                        " rows of logits are not finite; the limit is 1 %");
  }
  // A gap that is not a number is no small one.
  if (health.gap_tokens >= kFewestGapTokens && !(health.gap <= rules.max_gap)) {
    return absl::StrFormat(
        "it changes the log-probs of the canary's last answers by %.3g nats, over %d tokens; "
        "weights.canary.max_gap is %.3g",
        health.gap, health.gap_tokens, rules.max_gap);
  }

  if (!rules.max_reward_drop.has_value() || !RewardsAreKnown(evidence)) return "";
  const RewardSample &canary = evidence.canary, &others = evidence.others;
  const double drop = others.mean - canary.mean;
  const double error = std::sqrt(canary.variance / static_cast<double>(canary.groups) +
                                 others.variance / static_cast<double>(others.groups));
  const double limit = *rules.max_reward_drop * std::sqrt(others.variance);
  if (!(drop > limit && drop > kStandardErrors * error)) return "";
  return absl::StrFormat(
      "the mean reward of its %d groups is %.4g, but that of %d groups of earlier versions is "
      "%.4g, with standard deviation %.4g; weights.canary.max_reward_drop is %.3g",
      canary.groups, canary.mean, others.groups, others.mean, std::sqrt(others.variance),
      *rules.max_reward_drop);
}

// What is not known of a version, in words.
struct Unknown {
  std::vector<std::string> coming;  // It is worth to wait for.
  std::vector<std::string> missing;
};

Unknown ListUnknown(const CanaryRules& rules, const CanaryEvidence& evidence) {
  const VersionHealth& health = evidence.health;
  Unknown unknown;
  if (health.rows < rules.tokens) {
    const bool has_no_work = health.rows > 0 && evidence.idle >= kIdle;
    (has_no_work ? unknown.missing : unknown.coming)
        .push_back(absl::StrCat("it has computed ", health.rows, " of ", rules.tokens,
                                " tokens (weights.canary.tokens)"));
  }
  // Answers that the canary did not have when the trial began do not help any more.
  if (!health.probed) {
    unknown.coming.push_back("its earlier answers are still being computed again");
  } else if (health.gap_tokens < kFewestGapTokens) {
    unknown.missing.push_back(
        absl::StrCat("it had only ", health.gap_tokens, " tokens of earlier answers to compare"));
  }
  if (rules.max_reward_drop.has_value() && !RewardsAreKnown(evidence))
    unknown.coming.push_back(absl::StrCat(
        "the rewards of ", evidence.canary.groups, " groups of it and of ", evidence.others.groups,
        " others are known, and ", kFewestGroups, " of each are wanted"));
  return unknown;
}

}  // namespace

void GroupRewards::Add(int64_t oldest, int64_t newest, double mean_reward) {
  groups_.push_back({oldest, newest, mean_reward});
  if (groups_.size() > kMost) groups_.pop_front();
}

RewardSample GroupRewards::SampleOf(int64_t version) const {
  return SampleIf(groups_, [version](const Group& group) {
    return group.oldest == version && group.newest == version;
  });
}

RewardSample GroupRewards::SampleBefore(int64_t version) const {
  return SampleIf(groups_, [version](const Group& group) { return group.newest < version; });
}

CanaryVerdict JudgeCanary(const CanaryRules& rules, const CanaryEvidence& evidence) {
  using Kind = CanaryVerdict::Kind;
  if (!evidence.served.has_value()) return {Kind::kWait, "the canary has not loaded it yet", ""};
  if (std::string fault = FindFault(rules, evidence, /*at_end=*/false); !fault.empty())
    return {Kind::kWithdraw, std::move(fault), ""};

  const VersionHealth& health = evidence.health;
  Unknown unknown = ListUnknown(rules, evidence);
  if (!unknown.coming.empty() && *evidence.served < rules.wait)
    return {Kind::kWait, absl::StrJoin(unknown.coming, "; "), ""};
  if (std::string fault = FindFault(rules, evidence, /*at_end=*/true); !fault.empty())
    return {Kind::kWithdraw, std::move(fault), ""};
  std::move(unknown.coming.begin(), unknown.coming.end(), std::back_inserter(unknown.missing));
  return {
      Kind::kPromote,
      absl::StrFormat("%d of %d rows of logits are finite, and the log-probs of earlier answers "
                      "differ by %.3g nats over %d tokens",
                      health.rows - health.bad_rows, health.rows, health.gap, health.gap_tokens),
      absl::StrJoin(unknown.missing, "; ")};
}

}  // namespace sluice::trainer
