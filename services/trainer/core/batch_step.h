#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/step.h"
#include "services/trainer/core/updater.h"
#include "services/trainer/core/version_history.h"

namespace sluice {
class Clock;
}

namespace sluice::trainer {

// The training step of one batch: groups are added, and then Finish() is called once. After an
// error the step must be dropped. Not thread-safe.
class BatchStep {
 public:
  virtual ~BatchStep() = default;

  // Errors are those of SequenceBuilder::Add(). A step that checks its groups only in Finish()
  // returns them there.
  virtual absl::Status Add(std::vector<Group> groups) = 0;

  // Makes the updates. Sets those values of *result that the updates decide: skipped, loss,
  // grad_norm, lr, the seconds, and the metrics of the policy.
  virtual absl::Status Finish(StepResult* result) = 0;

  // What the step has trained on. They are complete after Finish().
  virtual const SequenceBuilder& sequences() const = 0;
  virtual const UpdateSums& sums() const = 0;
};

// Keeps all groups until Finish(), and then divides them into settings.minibatches updates. All
// references outlive the step. `history` has the weights of older versions, for prox exact.
std::unique_ptr<BatchStep> MakeWholeStep(const Settings& settings, const Rules& rules, int64_t k,
                                         Updater& updater, const VersionHistory& history,
                                         Clock& clock);

// Runs forward and backward of the groups as they are added, and makes one update in Finish(). The
// settings must allow it: Streams(settings). All references outlive the step.
std::unique_ptr<BatchStep> MakeStreamedStep(const Settings& settings, const Rules& rules, int64_t k,
                                            Updater& updater, Clock& clock);

}  // namespace sluice::trainer
