#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "common/rl/version.h"
#include "services/trainer/core/history.h"
#include "services/trainer/core/step.h"
#include "services/trainer/job_context.h"
#include "services/trainer/metrics.h"

namespace sluice::job::v1 {
class StepReport;
}

namespace sluice::trainer {

// Reports each step of one training job: to the controller, to Prometheus, and to the history
// beside the checkpoints. Steps that were skipped, and rewards that are not finite, are events too.
//
// Used by the job's thread.
class StepReporter {
 public:
  // `on_step` gets each report; it may be empty. `metrics` outlives this.
  StepReporter(JobContext* job, Metrics* metrics,
               std::function<void(const job::v1::StepReport& report)> on_step);

  // The history goes on with step `next`; it forgets that step and later ones.
  void BeginHistory(int64_t next);
  // The duration of the first step is measured from this call on.
  void StartClock() { step_started_ = job_->clock->Monotonic(); }

  // Reports step result.k, which made `version`. `evaluated` has the values of an evaluation that
  // this report carries (Evaluator::TakeValues).
  void Report(const StepResult& result, const PhaseSeconds& seconds, PolicyVersion version,
              const std::map<std::string, double>& evaluated);

 private:
  std::map<std::string, double> ValuesOf(const StepResult& result, const PhaseSeconds& seconds);
  void RaiseSkipEvent(const StepResult& result);
  // Of answers and rows that cannot be trained on.
  void RaiseLeftOutEvents(const StepResult& result);

  JobContext* const job_;
  Metrics* const metrics_;
  const std::function<void(const job::v1::StepReport& report)> on_step_;
  History history_;
  absl::Duration step_started_;  // Monotonic.
  // Numbers of steps in this process with rewards that are not finite, and with rows left out.
  int64_t bad_reward_steps_ = 0, left_out_steps_ = 0;
};

}  // namespace sluice::trainer
