#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"
#include "common/weights/publisher.h"
#include "services/trainer/core/evaluations.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice {
namespace daemon {
class Waits;
}
namespace engine::v1 {
class EvaluationResult;
}
}  // namespace sluice

namespace sluice::trainer {

// Lets the job's rollouts evaluate versions while training goes on, one version at a time, and
// keeps the results. It also keeps the results of a trainer that evaluates by itself (Record).
//
// The version is pinned in two places, so that all answers are of it. A lease in the publisher
// keeps its weights, which a rollout fetches into a separate engine. The link `evaluating` keeps
// its checkpoint, from which the next incarnation can go on with the evaluation. If a rollout dies,
// another one is asked, or the same one once it is back; random draws depend on seed and position
// alone, so the result is the same.
//
// Owns one thread, `evaluate`. Thread-safe.
class Evaluator {
 public:
  struct Options {
    std::string job;  // 32 hex digits.
    std::string job_name;
    std::string worker;  // This daemon's id.
    int64_t incarnation = 0;
    std::string dir;                    // Folder of the job's checkpoints.
    std::vector<std::string> datasets;  // Names, in the job file's order.
    int64_t version = 0;                // The version from which the run goes on.
  };
  // Called on the `evaluate` thread; they must not block.
  struct Hooks {
    std::function<void(common::v1::Severity severity, absl::string_view code,
                       absl::string_view message)>
        on_event;
  };
  // Holder's name of the lease on the weights of the version that is being evaluated.
  static constexpr char kHolder[] = "evaluation";

  // `log` must have been loaded. The pointers outlive the evaluator. `cancel` ends its work for
  // good.
  Evaluator(Options options, EvaluationLog log, WeightPublisher* publisher, daemon::Waits* waits,
            rpc::Cancel* cancel, Hooks hooks);
  // Trigger `cancel` before.
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Sets the rollouts (HOST:PORT) that work for the job. If the one that is being asked has left,
  // another one is asked.
  void SetRollouts(std::vector<std::string> rollouts) ABSL_LOCKS_EXCLUDED(mu_);

  // The version that is being evaluated, or whose evaluation was cancelled. Nullopt if there is
  // none.
  std::optional<PolicyVersion> running() const ABSL_LOCKS_EXCLUDED(mu_);
  // Begins to evaluate `version`, which the publisher must have. Waits first until the evaluation
  // under way has ended.
  void Start(const PublishedVersion& version) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes over the evaluation of `version` that the caller makes itself: `evaluate` returns values
  // and score. It is not called if these weights were evaluated before the run went back to a
  // checkpoint. If it is cancelled meanwhile, the result is dropped.
  void Record(const PublishedVersion& version,
              const std::function<absl::StatusOr<Evaluation>()>& evaluate) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no evaluation is under way, or until cancelled.
  void Await() ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the values of the evaluation that has ended since the last call, for the report of step
  // k.
  std::map<std::string, double> TakeValues(int64_t k) ABSL_LOCKS_EXCLUDED(mu_);
  EvalTotals totals() const ABSL_LOCKS_EXCLUDED(mu_);
  // Why the first evaluation has failed; OK if it has not. Later failures are only events, and
  // training goes on.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Thread;
  void Run();
  // The evaluation of these weights before the run went back to a checkpoint, if there was one.
  std::optional<Evaluation> FindKnown(const PublishedVersion& version) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Evaluation> AskForEvaluation(const PublishedVersion& version);
  // Asks rollouts until one has a result for the dataset, or an error that would come again.
  absl::StatusOr<engine::v1::EvaluationResult> EvaluateDataset(const PublishedVersion& version,
                                                               const std::string& dataset);
  absl::StatusOr<engine::v1::EvaluationResult> AskRollout(const std::string& rollout,
                                                          const PublishedVersion& version,
                                                          const std::string& dataset);
  std::optional<std::string> NextRollout() ABSL_LOCKS_EXCLUDED(mu_);
  void FinishEvaluation(const PublishedVersion& version, absl::StatusOr<Evaluation> evaluation,
                        bool known);

  const Options options_;
  WeightPublisher* const publisher_;
  daemon::Waits* const waits_;
  rpc::Cancel* const cancel_;
  const Hooks hooks_;

  mutable Mutex mu_;
  CondVar changed_;
  // `cancel` was triggered. This copy exists so that the lock of `cancel` is never taken under mu_.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  EvaluationLog log_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> rollouts_ ABSL_GUARDED_BY(mu_);
  size_t next_rollout_ ABSL_GUARDED_BY(mu_) = 0;
  // Address of the rollout that is being asked. Empty if there is none, or if it has left the job.
  std::string asked_rollout_ ABSL_GUARDED_BY(mu_);
  std::function<void()> end_call_ ABSL_GUARDED_BY(mu_);  // Ends the call to it.
  std::optional<PublishedVersion> running_ ABSL_GUARDED_BY(mu_);
  // Version whose values no step report has carried yet.
  std::optional<int64_t> unreported_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t cancel_hook_ = 0;
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
