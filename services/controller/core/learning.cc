#include "services/controller/core/learning.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace sluice::controller {
namespace {

constexpr double kNoGradient = 1e-12;  // A gradient norm up to this counts as 0.
// Shares of the early entropy: a collapse begins below the first and ends above the second.
constexpr double kEntropyFraction = 0.05;
constexpr double kEntropyBack = 0.1;
constexpr double kFlatShare = 0.98;  // Share of groups without a spread of rewards.
// Share of the way from the lowest to the highest reward of any answer, from which on the task
// counts as learned.
constexpr double kLearnedShare = 0.75;
constexpr double kHeightLost = 0.5;   // Share of the best height whose loss begins a collapse.
constexpr double kHeightBack = 0.75;  // Share of the best height above which a collapse ends.
constexpr double kStandardErrors = 10;
// Least loss, as a share of the range of rewards. It is needed because the estimate of the noise is
// poor if rewards are rare.
constexpr double kLeastLoss = 0.1;

// Limits of the distance between the policy and the one that sampled.
constexpr double kMostKl = 0.1, kLeastEss = 0.3, kLeastKept = 0.5;
// Limit of the mean difference of two log-probs of a token under the same weights.
constexpr double kMostMismatch = 0.05;

// Least number of steps of a mean that may become best_; a mean over fewer is too noisy.
constexpr size_t kLeastMean = 3;
// Least number of differences between steps from which the noise is estimated.
constexpr size_t kLeastDifferences = 20;

LearningWatch::Silence SilenceOf(const StepSignal& step) {
  if (step.skipped) return LearningWatch::Silence::kSkipped;
  if (step.lr == 0) return LearningWatch::Silence::kZeroLr;
  if (step.flat_share >= 1) return LearningWatch::Silence::kFlat;
  const bool moves = !step.grad_norm.has_value() || *step.grad_norm > kNoGradient;
  return moves ? LearningWatch::Silence::kNone : LearningWatch::Silence::kZeroGradient;
}

}  // namespace

StepSignal SignalOf(const StepReport& step) {
  StepSignal signal;
  signal.k = step.k;
  signal.reward_mean = step.Find("reward_mean");
  signal.reward_min = step.Find("reward_min");
  signal.reward_max = step.Find("reward_max");
  signal.flat_share = step.Find("flat_share");
  signal.entropy = step.Find("entropy");
  signal.grad_norm = step.Find("grad_norm");
  signal.lr = step.Find("lr");
  signal.skipped = step.Find("skipped").value_or(0) != 0;
  if (!step.Find("ess_lr_factor").has_value()) {
    signal.kl = step.Find("kl_behav_theta_k3");
    signal.ess = step.Find("ess");
    signal.kept = step.Find("kept");
  }
  signal.mismatch = step.Find("logprob_mismatch");
  return signal;
}

absl::string_view ConditionName(Finding finding) {
  switch (finding) {
    case Finding::kNoSignal: return "NoSignal";
    case Finding::kEntropyCollapse: return "EntropyCollapsed";
    case Finding::kRewardCollapse: return "RewardCollapsed";
    case Finding::kOffPolicy: return "OffPolicy";
    case Finding::kMismatch: return "LogProbMismatch";
  }
  return "";
}

absl::string_view EventCode(Finding finding) {
  switch (finding) {
    case Finding::kNoSignal: return "no_signal";
    case Finding::kEntropyCollapse: return "entropy_collapsed";
    case Finding::kRewardCollapse: return "reward_collapsed";
    case Finding::kOffPolicy: return "off_policy";
    case Finding::kMismatch: return "logprob_mismatch";
  }
  return "";
}

Severity SeverityOf(Finding finding) {
  const bool warning = finding == Finding::kNoSignal || finding == Finding::kOffPolicy;
  return warning ? Severity::kWarning : Severity::kAlarm;
}

void LearningWatch::Window::Add(double value) {
  values_.push_back(value);
  if (values_.size() > limit_) values_.pop_front();
}

// The sum is computed anew each time, because a running sum would keep the rounding errors of
// values that have left.
double LearningWatch::Window::mean() const {
  double sum = 0;
  for (const double value : values_) sum += value;
  return values_.empty() ? 0 : sum / static_cast<double>(values_.size());
}

bool LearningWatch::HoldsNoSignal(const StepSignal& step) {
  const Silence silence = SilenceOf(step);
  if (silence == Silence::kNone) {
    silent_ = 0;
    return false;
  }

  if (silent_ == 0) stretch_ = {.first = step.k};
  ++silent_;
  stretch_.last = step.k;
  stretch_.to = last_reward_;
  stretch_.silence = silence;
  return silent_ >= kSilentSteps;
}

bool LearningWatch::HoldsEntropyCollapse(const StepSignal& step) {
  if (step.entropy.has_value()) {
    if (++entropies_ <= kEarly) early_entropy_ = std::max(early_entropy_, *step.entropy);
    entropy_.Add(*step.entropy);
  }
  if (step.flat_share.has_value()) flat_share_.Add(*step.flat_share);
  if (!entropy_.full() || !flat_share_.full() || !reward_long_.full()) return false;

  // The spell ends at a higher threshold than the one at which it began, so that noise does not end
  // it and begin it again.
  if (holds(Finding::kEntropyCollapse)) return entropy_.mean() < kEntropyBack * early_entropy_;

  // A policy that solves its task has low entropy and flat groups too; it is not collapsed.
  const double range = highest_ - lowest_;
  const bool learned = range > 0 && reward_long_.mean() >= lowest_ + kLearnedShare * range;
  return entropy_.mean() < kEntropyFraction * early_entropy_ && flat_share_.mean() >= kFlatShare &&
         !learned;
}

bool LearningWatch::HoldsRewardCollapse(const StepSignal& step) {
  if (!step.reward_mean.has_value()) return holds(Finding::kRewardCollapse);

  const double reward = *step.reward_mean;
  if (rewards_seen_) squared_differences_.Add((reward - last_reward_) * (reward - last_reward_));

  const double lowest = std::min(reward, step.reward_min.value_or(reward));
  const double highest = std::max(reward, step.reward_max.value_or(reward));
  lowest_ = rewards_seen_ ? std::min(lowest_, lowest) : lowest;
  highest_ = rewards_seen_ ? std::max(highest_, highest) : highest;
  last_reward_ = reward;
  rewards_seen_ = true;
  reward_long_.Add(reward);

  const double mean = reward_long_.mean();
  // best_ starts with the first mean over enough steps, which may be negative.
  if (reward_long_.size() == kLeastMean) best_ = mean;
  if (reward_long_.size() > kLeastMean) best_ = std::max(best_, mean);
  if (squared_differences_.size() < kLeastDifferences) return false;

  // The difference of two steps has twice the variance of one step.
  noise_ = std::max(noise_, squared_differences_.mean() / 2);

  const double height = best_ - lowest_, left = mean - lowest_;
  if (holds(Finding::kRewardCollapse)) return left < kHeightBack * height;

  const double standard_error = std::sqrt(noise_ / kLong), lost = height - left;
  return lost > kHeightLost * height && lost > kStandardErrors * standard_error &&
         lost > kLeastLoss * (highest_ - lowest_);
}

bool LearningWatch::HoldsOffPolicy(const StepSignal& step, Spell* now) {
  if (step.kl.has_value()) kl_.Add(*step.kl);
  if (step.ess.has_value()) ess_.Add(*step.ess);
  if (step.kept.has_value()) kept_.Add(*step.kept);
  if (!kl_.full() || !ess_.full() || !kept_.full()) return false;
  const auto beyond = [&](const char* value, double limit, double mean) {
    now->value = value, now->from = limit, now->to = mean;
    return true;
  };
  if (kl_.mean() > kMostKl) return beyond("kl_behav_theta_k3", kMostKl, kl_.mean());
  if (ess_.mean() < kLeastEss) return beyond("ess", kLeastEss, ess_.mean());
  return kept_.mean() < kLeastKept && beyond("kept", kLeastKept, kept_.mean());
}

bool LearningWatch::HoldsMismatch(const StepSignal& step, Spell* now) {
  if (!step.mismatch.has_value()) return holds(Finding::kMismatch);
  mismatched_ = *step.mismatch > kMostMismatch ? mismatched_ + 1 : 0;
  now->from = kMostMismatch, now->to = *step.mismatch;
  return mismatched_ >= kFresh;
}

bool LearningWatch::UpdateSpell(Finding finding, bool holds_now, const Spell& now) {
  std::optional<Spell>& spell = spells_[static_cast<size_t>(finding)];
  const bool begins = holds_now && !holds(finding);
  if (begins) {
    spell = now;
  } else if (holds_now) {
    spell->last = now.last;
    spell->to = now.to;
    spell->silence = now.silence;
    spell->from = now.from;
    spell->value = now.value;
  }
  if (spell.has_value()) spell->open = holds_now;
  return begins;
}

std::vector<Finding> LearningWatch::Add(const StepSignal& step) {
  ++steps_;
  // This comes first, because the others read the rewards that it keeps.
  const bool reward = HoldsRewardCollapse(step);
  const bool entropy = HoldsEntropyCollapse(step);
  const bool silent = HoldsNoSignal(step);
  SLUICE_CHECK(silent_ <= steps_);
  SLUICE_CHECK(!rewards_seen_ || (lowest_ <= last_reward_ && last_reward_ <= highest_));

  const Spell certain{
      .first = step.k, .last = step.k, .from = early_entropy_, .to = entropy_.mean()};
  const Spell fallen{.first = step.k, .last = step.k, .from = best_, .to = reward_long_.mean()};

  Spell far{.first = step.k, .last = step.k}, apart = far;
  const bool off_policy = HoldsOffPolicy(step, &far), mismatch = HoldsMismatch(step, &apart);

  std::vector<Finding> begins;
  const auto update = [&](Finding finding, bool holds_now, const Spell& now) {
    if (UpdateSpell(finding, holds_now, now)) begins.push_back(finding);
  };
  update(Finding::kNoSignal, silent, stretch_);
  update(Finding::kEntropyCollapse, entropy, certain);
  update(Finding::kRewardCollapse, reward, fallen);
  update(Finding::kOffPolicy, off_policy, far);
  update(Finding::kMismatch, mismatch, apart);
  return begins;
}

std::string LearningWatch::SilenceText(const Spell& spell) const {
  switch (spell.silence) {
    case Silence::kNone: break;
    case Silence::kSkipped: return "they were skipped. The events step_skipped name the reasons";
    case Silence::kZeroLr:
      return "the learning rate is 0. That is right for a control run; to train, set "
             "trainer.optimizer.lr above 0";
    case Silence::kZeroGradient:
      return "the gradient is 0. Most likely the weights have diverged, so that the policy no "
             "longer depends on them: go on from an earlier checkpoint with a lower "
             "trainer.optimizer.lr. "
             "Else look at kept, clip_high and clip_low of the steps: all tokens may be rejected "
             "or "
             "clipped";
    case Silence::kFlat: {
      const bool solved = highest_ > lowest_ && spell.to >= highest_;
      if (solved) {
        return absl::StrFormat(
            "all answers get %.4g, the highest reward so far. The data is learned: end the run, or "
            "give harder prompts",
            spell.to);
      }
      return absl::StrFormat(
          "the answers to a prompt all get the same reward (mean %.4g). Look at answers (`sluice "
          "queue peek JOB GROUP --show-text`), the verifier and the gold answers. If those are "
          "right, give easier prompts, start from a better model, or vary the answers "
          "(rollout.sampling.temperature, rollout.group.size)",
          spell.to);
    }
  }
  return "";
}

std::string LearningWatch::Text(Finding finding) const {
  if (!spell(finding).has_value()) return "";
  const Spell& it = *spell(finding);
  const char* end = it.open ? "" : ". It was over later in the run";
  switch (finding) {
    case Finding::kNoSignal:
      return absl::StrFormat("nothing could be learned in steps %d to %d: %s%s", it.first, it.last,
                             SilenceText(it), end);
    case Finding::kEntropyCollapse:
      return absl::StrFormat(
          "the policy has collapsed: its entropy was %.3g nats per token early in the run and %.3g "
          "at step %d, and its answers to a prompt get the same reward. Go on from an earlier "
          "checkpoint with a lower trainer.optimizer.lr or a higher algorithm.loss.entropy%s",
          it.from, it.to, it.last, end);
    case Finding::kRewardCollapse:
      return absl::StrFormat(
          "the reward has collapsed: its mean over %d steps was %.3f at best and %.3f at step %d. "
          "Go on from an earlier checkpoint with a lower trainer.optimizer.lr, or with data less "
          "old (queue.max_staleness)%s",
          kLong, it.from, it.to, it.last, end);
    case Finding::kOffPolicy:
      return absl::StrFormat(
          "the policy is far from the one that sampled its data: the mean of %s over %d steps was "
          "%.3g at step %d, and the limit is %.3g. Lower queue.max_staleness or "
          "trainer.optimizer.lr, or take an algorithm for stale data (algorithm.preset: "
          "async_vcpo)%s",
          it.value, kLong, it.to, it.last, it.from, end);
    case Finding::kMismatch:
      return absl::StrFormat(
          "trainer and rollout disagree about tokens of the same weights: their log-probs differ "
          "by "
          "%.3g on the mean at step %d, and the limit is %.3g. `sluice daemon list` shows whether "
          "both are of the same build; if they are, this is a fault of the software%s",
          it.to, it.last, it.from, end);
  }
  return "";
}

std::vector<std::string> LearningWatch::Warnings() const {
  std::vector<std::string> warnings;
  for (const Finding finding : kFindings) {
    if (spell(finding).has_value()) warnings.push_back(Text(finding));
  }
  const bool never_taught = steps_ > 0 && silent_ == steps_;
  if (never_taught && !spell(Finding::kNoSignal).has_value()) {
    warnings.push_back(absl::StrFormat("nothing could be learned in any of the %d steps: %s",
                                       steps_, SilenceText(stretch_)));
  }
  return warnings;
}

}  // namespace sluice::controller
