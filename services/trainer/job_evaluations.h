#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"
#include "common/weights/publisher.h"
#include "services/trainer/evaluator.h"
#include "services/trainer/job_context.h"

namespace sluice::trainer {

// Decides which versions of one training job are evaluated, and when training waits for an
// evaluation. The Evaluator has the rollouts do the work; of kinds sft and dpo the trainer itself
// does it between two steps, with Record().
//
// A version is evaluated if eval.every_steps divides its number, and so is the last one. A step's
// report carries the values of one evaluation, and the last step's report those of the last
// version. The version right before the last is left out, and an older evaluation has to end before
// the last step begins, so that no evaluation is missing in the history.
//
// Only the job's thread uses it, except that any thread may call SetRollouts() and Cancel() at any
// time. If the job asks for no evaluations, Start() must not be called, and every other call does
// nothing.
class JobEvaluations {
 public:
  explicit JobEvaluations(JobContext* job) : job_(job), rollouts_(job->config.rollouts) {}

  // Whether the job asks for evaluations.
  bool enabled() const { return job_->config.eval_every_steps > 0; }

  // The run goes on from `version`. `publisher` outlives this.
  absl::Status Open(int64_t version, WeightPublisher* publisher) ABSL_LOCKS_EXCLUDED(mu_);
  // The version below `version` whose evaluation an earlier incarnation left unfinished. An
  // unfinished evaluation of `version` itself begins again because it is due, and one of a later
  // version when the run reaches that version again.
  std::optional<int64_t> FindUnfinished(int64_t version) const;

  // Whether `version` is to be evaluated. A version that is left out is reported as an event.
  bool CheckDue(int64_t version);
  // Evaluates `version`, which the publisher has, once the previous evaluation has ended.
  absl::Status Start(const PublishedVersion& version);
  // The same if the trainer evaluates: returns when `evaluate` has, which is not called if these
  // weights were evaluated before. It leaves out the result's version and state.
  void Record(const PublishedVersion& version,
              const std::function<absl::StatusOr<Evaluation>()>& evaluate);
  bool HasStarted(int64_t version) const { return started_ == version; }

  // Waits for an older evaluation if the step after `version` is the last. Call it after the step
  // that made `version`.
  void AwaitBeforeLastStep(int64_t version);
  void Await();
  // Why the first evaluation cannot be done. Later failures are events, and training goes on.
  absl::Status status() const;

  // Takes the values that the report of step k carries.
  std::map<std::string, double> TakeValues(int64_t k);
  EvalTotals totals() const;

  // HOST:PORT of the rollouts that work for the job.
  void SetRollouts(std::vector<std::string> rollouts) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the evaluation under way, and all later ones.
  void Cancel() { cancel_.Trigger(); }
  bool cancelled() const { return cancel_.triggered(); }
  // Call it when the trainer ends. It calls Cancel(), and reports an evaluation that stays
  // unfinished as an event.
  void Abandon();

 private:
  // Null before Open(), and if nothing is evaluated.
  Evaluator* evaluator() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return evaluator_.get();
  }

  JobContext* const job_;
  rpc::Cancel cancel_;
  int64_t started_ = -1;  // The version handed to the evaluator last.

  mutable Mutex mu_;  // Guards the pointer; the evaluator itself is thread-safe.
  std::vector<std::string> rollouts_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Evaluator> evaluator_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::trainer
