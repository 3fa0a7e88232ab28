#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// The values of one step that show whether the run learns. A value is unset if the trainer did not
// report it.
struct StepSignal {
  int64_t k = 0;
  // Task rewards of the step's answers, before any reward shaping.
  std::optional<double> reward_mean, reward_min, reward_max;
  std::optional<double> flat_share;  // Share of the groups whose answers all got the same reward.
  std::optional<double> entropy;     // Nats per token.
  std::optional<double> grad_norm;   // Before clipping.
  std::optional<double> lr;
  bool skipped = false;  // The step did not change the weights.
  // How far the policy has moved from the one that sampled the step's tokens: the KL between them
  // (k3), the effective share of the samples, and the share of the tokens with a policy term. They
  // are unset if the job's learning rate follows that share.
  std::optional<double> kl, ess, kept;
  // The mean difference of the log-probs that trainer and rollout give a token under the same
  // weights. Unset if the step had tokens of other versions.
  std::optional<double> mismatch;
};
StepSignal SignalOf(const StepReport& step);

enum class Finding { kNoSignal, kEntropyCollapse, kRewardCollapse, kOffPolicy, kMismatch };
inline constexpr Finding kFindings[] = {Finding::kNoSignal, Finding::kEntropyCollapse,
                                        Finding::kRewardCollapse, Finding::kOffPolicy,
                                        Finding::kMismatch};
absl::string_view ConditionName(Finding finding);  // As in JobStatus.conditions: "NoSignal", ..
absl::string_view EventCode(Finding finding);      // As in Event.code: "no_signal", ..
Severity SeverityOf(Finding finding);

// Watches the steps of a run and finds stretches that can teach nothing, and collapses of the
// policy. The rules:
//
// No signal: kSilentSteps steps in a row can teach nothing. A step can teach nothing if no group
// has answers with different rewards, or its gradient is 0, or its learning rate is 0, or it was
// skipped.
//
// Entropy collapse, over the last kLong steps: the mean entropy is below 5 % of its early level
// (the highest of the first kEarly steps), at least 98 % of the groups have no spread of rewards,
// and the mean reward is below three quarters of the way from the lowest to the highest reward that
// any answer got. The last condition excludes a policy that is certain because it solves its task.
//
// Reward collapse: the mean reward of the last kLong steps has lost more than half of its height.
// The height is the best such mean so far, measured from the lowest reward that any answer got. The
// loss must also be more than noise: more than ten standard errors of the mean, and more than 10 %
// of the range of rewards. The noise is estimated from the differences between successive steps;
// the highest estimate of the run is used. The rule applies from the 21st step on, because there
// are too few differences before.
//
// Off policy, over the last kLong steps: the mean KL between the policy and the one that sampled is
// above 0.1, or the mean effective share of the samples is below 0.3, or less than half of the
// tokens have a policy term.
//
// Mismatch: in the last kFresh steps that say so, trainer and rollout disagree by more than 0.05
// about the log-probs of tokens under the same weights.
//
// A spell is a stretch of steps over which a finding holds. A spell without signal ends with the
// first step that can teach. A collapse ends when the entropy is back above 10 % of its early
// level, or the reward above three quarters of its best height.
//
// The state depends on the added steps and their order alone: a watch that is given the stored
// steps again reaches the same state. Not thread-safe.
class LearningWatch {
 public:
  static constexpr int kSilentSteps = 10;
  static constexpr int kEarly = 5;
  static constexpr int kLong = 10;
  static constexpr int kNoiseSteps = 50;  // Window of the differences between successive steps.
  static constexpr int kFresh = 3;

  enum class Silence { kNone, kFlat, kZeroGradient, kZeroLr, kSkipped };
  // A stretch of steps [first, last].
  struct Spell {
    int64_t first = 0;
    int64_t last = 0;
    bool open = false;  // The spell includes the newest step.
    // In a collapse, `from` is the early level of the entropy or the best mean reward, and `to` is
    // the mean at step `last`. Off policy and in a mismatch, `from` is the limit and `to` the value
    // beyond it. Without signal, `to` is the mean reward of step `last`, and `from` is unused.
    double from = 0, to = 0;
    const char* value = "";            // Off policy: which value is beyond its limit.
    Silence silence = Silence::kNone;  // Why step `last` could teach nothing; kNone in a collapse.
  };

  // Adds the next step. Returns the findings whose spells begin with it.
  std::vector<Finding> Add(const StepSignal& step);

  // The newest spell of this finding, or nothing if there was none.
  const std::optional<Spell>& spell(Finding finding) const {
    return spells_[static_cast<size_t>(finding)];
  }
  bool holds(Finding finding) const { return spell(finding).has_value() && spell(finding)->open; }

  // Says what the newest spell of this finding means and what the user can do. Empty if there was
  // none.
  std::string Text(Finding finding) const;

  // Returns a text for each finding that held at some time. If none of the run's steps could teach
  // anything, there is a text too, even for a run of fewer than kSilentSteps steps.
  std::vector<std::string> Warnings() const;

 private:
  // The mean of the newest `limit` values.
  class Window {
   public:
    explicit Window(size_t limit) : limit_(limit) {}
    void Add(double value);
    bool full() const { return values_.size() == limit_; }
    size_t size() const { return values_.size(); }
    double mean() const;

   private:
    size_t limit_;
    std::deque<double> values_;
  };

  bool HoldsNoSignal(const StepSignal& step);
  bool HoldsEntropyCollapse(const StepSignal& step);
  bool HoldsRewardCollapse(const StepSignal& step);
  // These set `from`, `to` and `value` of *now if they hold.
  bool HoldsOffPolicy(const StepSignal& step, Spell* now);
  bool HoldsMismatch(const StepSignal& step, Spell* now);
  // Begins, extends or ends the finding's spell. Returns true if it begins.
  bool UpdateSpell(Finding finding, bool holds_now, const Spell& now);
  std::string SilenceText(const Spell& spell) const;

  std::array<std::optional<Spell>, std::size(kFindings)> spells_;
  int64_t steps_ = 0;

  // The unbroken stretch of steps, up to the newest step, that could teach nothing, and its length.
  // It becomes a spell once it has kSilentSteps steps. 0 <= silent_ <= steps_.
  int64_t silent_ = 0;
  Spell stretch_;

  // Lowest and highest reward of any answer so far, and the mean reward of the newest step that
  // reported one. Once rewards_seen_: lowest_ <= last_reward_ <= highest_.
  bool rewards_seen_ = false;
  double lowest_ = 0, highest_ = 0, last_reward_ = 0;
  Window reward_long_{kLong}, squared_differences_{kNoiseSteps};
  double best_ = 0;   // Highest mean of reward_long_ so far.
  double noise_ = 0;  // Highest estimate of the variance of a step's mean reward.

  int entropies_ = 0;  // Steps that reported an entropy.
  double early_entropy_ = 0;
  Window entropy_{kLong}, flat_share_{kLong};

  Window kl_{kLong}, ess_{kLong}, kept_{kLong};
  int mismatched_ = 0;  // Steps in a row in which trainer and rollout disagreed.
};

}  // namespace sluice::controller
