#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// What one step tells about learning. A value is unset where the trainer does not report it.
struct StepSignal {
  int64_t k = 0;
  // Unshaped task rewards of the step's answers.
  std::optional<double> reward_mean, reward_min, reward_max;
  std::optional<double> flat_share;  // Share of groups whose rewards do not differ.
  std::optional<double> entropy;     // Nats per token.
  std::optional<double> grad_norm;   // Before clipping.
  std::optional<double> lr;
  bool skipped = false;  // The step left the weights as they were.
};
StepSignal SignalOf(const StepReport& step);

enum class Finding { kNoSignal, kEntropyCollapse, kRewardCollapse };
inline constexpr Finding kFindings[] = {Finding::kNoSignal, Finding::kEntropyCollapse,
                                        Finding::kRewardCollapse};
absl::string_view ConditionName(Finding finding);  // "NoSignal": a condition of JobStatus.
absl::string_view EventCode(Finding finding);      // "no_signal"
Severity SeverityOf(Finding finding);

// Watches a run's steps for those that teach nothing, and for a policy that collapses. The rules:
//
// No signal: kSilentSteps steps in a row can teach nothing. Such a step has no group whose answers
// get different rewards, or a gradient of 0, or a learning rate of 0, or it was skipped.
//
// Entropy collapse, over the last kLong steps: the mean entropy is below 5 % of its early level
// (the highest of the first kEarly steps), at least 98 % of the groups have no spread, and the mean
// reward is below three quarters of the way from the lowest to the highest reward that any answer
// got. By the last condition, a policy that is certain because it solves its task is no collapse.
//
// Reward collapse: the mean reward of the last kLong steps has lost more than half of its height.
// The height is the best such mean so far, measured from the lowest reward that any answer got. The
// loss must also be more than noise: ten standard errors of the mean, and 10 % of the range of
// rewards. The noise comes from the differences between successive steps, the highest level of the
// run counts, and it is known from the 21st step on.
//
// A spell is a stretch of steps over which a finding holds. A spell of no signal ends with the
// first step that can teach; a collapse ends when entropy is back above 10 % of its early level, or
// reward above three quarters of its best height.
//
// A pure function of the steps, in their order: a watch that is given the stored steps again stands
// where the first one stood.
class LearningWatch {
 public:
  static constexpr int kSilentSteps = 10;
  static constexpr int kEarly = 5;
  static constexpr int kLong = 10;
  static constexpr int kNoiseSteps = 50;  // Of which successive differences are taken.

  enum class Silence { kNone, kFlat, kZeroGradient, kZeroLr, kSkipped };
  // A stretch of steps [first, last].
  struct Spell {
    int64_t first = 0;
    int64_t last = 0;
    bool open = false;  // It goes on with the newest step.
    // What has fallen, from its early or best level to the mean at step `last`: entropy or reward.
    // No signal: `to` is the mean reward of step `last`.
    double from = 0, to = 0;
    Silence silence = Silence::kNone;  // No signal: why step `last` could teach nothing.
  };

  // Returns the findings whose spells begin to hold with this step.
  std::vector<Finding> Add(const StepSignal& step);

  // The newest spell that held. Nothing: there was none.
  const std::optional<Spell>& spell(Finding finding) const {
    return spells_[static_cast<size_t>(finding)];
  }
  bool holds(Finding finding) const { return spell(finding).has_value() && spell(finding)->open; }

  // What the newest spell means, and what to do about it.
  std::string Text(Finding finding) const;

  // A text for each finding that held at some time. A run that could learn nothing in any of its
  // steps is told however short it is.
  std::vector<std::string> Warnings() const;

 private:
  // A mean over the newest values.
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
  // Begins, extends or ends the finding's spell; true where it begins.
  bool UpdateSpell(Finding finding, bool holds_now, const Spell& now);
  std::string SilenceText(const Spell& spell) const;

  std::array<std::optional<Spell>, 3> spells_;
  int64_t steps_ = 0;

  // The stretch of silent steps up to the newest one, which holds as a spell once it is long
  // enough. silent_ <= steps_.
  int64_t silent_ = 0;
  Spell stretch_;

  // Of any answer so far: lowest_ <= last_reward_ <= highest_ once rewards_seen_.
  bool rewards_seen_ = false;
  double lowest_ = 0, highest_ = 0, last_reward_ = 0;
  Window reward_long_{kLong}, squared_differences_{kNoiseSteps};
  double best_ = 0;   // Highest mean of reward_long_.
  double noise_ = 0;  // Variance of a step's mean reward.

  int entropies_ = 0;
  double early_entropy_ = 0;
  Window entropy_{kLong}, flat_share_{kLong};
};

}  // namespace sluice::controller
