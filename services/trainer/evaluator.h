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

namespace sluice {
namespace common::v1 {
class Call;
}
namespace daemon {
class Waits;
}
namespace engine::v1 {
class EvaluationResult;
}
}  // namespace sluice

namespace sluice::trainer {

// Has versions evaluated by the job's rollouts while training goes on, one version at a time, and
// keeps the results.
//
// The version is pinned in two places, so that all answers are of it: its weights are leased in the
// publisher, where a rollout fetches them into an engine of its own; its checkpoint is named by the
// link `evaluating`, so that it is not pruned, and so that the next incarnation goes on with the
// evaluation. A rollout that dies is replaced by another, or by itself once it is back; draws
// depend on seed and position alone, so the result is the same.
//
// Owns one thread, `evaluate`. Thread-safe.
class Evaluator {
 public:
  struct Options {
    std::string job;  // 32 hex digits.
    std::string job_name;
    std::string worker;  // This daemon's id.
    int64_t incarnation = 0;
    std::string dir;                    // Of the job's checkpoints.
    std::vector<std::string> datasets;  // Names, in the job file's order.
    int64_t version = 0;                // That the run goes on from.
  };
  enum class Severity { kInfo, kWarning, kError };
  // Run on the `evaluate` thread; must not block.
  struct Hooks {
    std::function<void(Severity severity, absl::string_view code, absl::string_view message)>
        happened;
  };
  // Who holds the lease on the weights of the version under way.
  static constexpr char kHolder[] = "evaluation";

  // `log` has been loaded. All outlive the evaluator; `cancel` ends what it does for good.
  Evaluator(Options options, EvaluationLog log, WeightPublisher* publisher, daemon::Waits* waits,
            rpc::Cancel* cancel, Hooks hooks);
  // Trigger `cancel` before.
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // HOST:PORT of the rollouts that work for the job. What is asked of one that has left is asked of
  // another.
  void SetRollouts(std::vector<std::string> rollouts) ABSL_LOCKS_EXCLUDED(mu_);

  // The version that is being evaluated, or whose evaluation was called off. Nothing: there is
  // none.
  std::optional<PolicyVersion> running() const ABSL_LOCKS_EXCLUDED(mu_);
  // Evaluates `version`, which the publisher has. Waits for the one under way.
  void Start(const LatestVersion& version) ABSL_LOCKS_EXCLUDED(mu_);
  // Until no evaluation is under way, or cancelled.
  void Await() ABSL_LOCKS_EXCLUDED(mu_);

  // Values of what has ended since the last call, which the report of step k will carry.
  std::map<std::string, double> TakeValues(int64_t k) ABSL_LOCKS_EXCLUDED(mu_);
  EvalTotals totals() const ABSL_LOCKS_EXCLUDED(mu_);
  // Why the first evaluation cannot be done. Later failures are events, and training goes on.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Thread;
  void Run();
  // *known: these weights were evaluated before the run went back.
  absl::StatusOr<Evaluation> Evaluate(const LatestVersion& version, bool* known);
  absl::StatusOr<engine::v1::EvaluationResult> Ask(const LatestVersion& version,
                                                   const std::string& dataset);
  absl::StatusOr<engine::v1::EvaluationResult> AskOne(const std::string& rollout,
                                                      const LatestVersion& version,
                                                      const std::string& dataset);
  std::optional<std::string> NextRollout() ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const LatestVersion& version, absl::StatusOr<Evaluation> evaluation, bool known);

  const Options options_;
  WeightPublisher* const publisher_;
  daemon::Waits* const waits_;
  rpc::Cancel* const cancel_;
  const Hooks hooks_;

  mutable Mutex mu_;
  CondVar changed_;
  // `cancel` was triggered; its own lock is never taken under mu_.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  EvaluationLog log_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> rollouts_ ABSL_GUARDED_BY(mu_);
  size_t next_rollout_ ABSL_GUARDED_BY(mu_) = 0;
  // The rollout that is being asked; empty: none, or it has left.
  std::string asked_ ABSL_GUARDED_BY(mu_);
  std::function<void()> end_call_ ABSL_GUARDED_BY(mu_);  // Of that call.
  std::optional<LatestVersion> running_ ABSL_GUARDED_BY(mu_);
  // Version whose values no step report has carried.
  std::optional<int64_t> news_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t cancel_hook_ = 0;
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
