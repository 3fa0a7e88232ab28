#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/weights/publisher.h"
#include "services/trainer/core/canary.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/job_context.h"

namespace sluice::trainer {

// Tries new versions at one rollout, the canary, before the others get them. The canary is the
// first of the rollouts that listen, in the order in which they pass weights on (SortIntoChain). If
// it is gone for 5 s, or does not load the version within 10 min, the next one takes its place. A
// version that no rollout loads goes to nobody else, unless none is there.
//
// Thread-safe. Owns no thread.
class CanaryTrial {
 public:
  // `job` outlives this.
  explicit CanaryTrial(JobContext* job) : job_(job) {}

  // Waits until it is decided whether a staged version is to be promoted. OK: it is.
  // ABORTED WITHDRAWN: it is at fault; the message says why. The publisher names it to nobody then.
  // CANCELLED: Stop() was called.
  absl::Status Run(WeightPublisher* weights, const PublishedVersion& staged,
                   const CanaryRules& rules) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a trial that is under way, and all later ones at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // The version that was withdrawn.
  std::optional<PolicyVersion> withdrawn() const ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the rewards of groups that are to be trained on.
  void AddRewards(const std::vector<Group>& groups) ABSL_LOCKS_EXCLUDED(rewards_mu_);

 private:
  // One trial, while it is under way.
  struct Round;
  // The next canary; empty if no rollout is left.
  std::string ChooseCanary(const WeightPublisher& weights,
                           const std::set<std::string>& tried) const;
  void ReplaceCanaryIfGone(Round* round) const;
  CanaryEvidence Collect(Round* round) const ABSL_LOCKS_EXCLUDED(rewards_mu_);
  absl::Status Withdraw(const Round& round, const std::string& fault) ABSL_LOCKS_EXCLUDED(mu_);
  void NotePromotion(const Round& round, const CanaryVerdict& verdict);
  // Returns false if Stop() was called.
  bool AwaitPoll() ABSL_LOCKS_EXCLUDED(mu_);

  JobContext* const job_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<PolicyVersion> withdrawn_ ABSL_GUARDED_BY(mu_);
  mutable Mutex rewards_mu_;
  GroupRewards rewards_ ABSL_GUARDED_BY(rewards_mu_);
  int64_t unjudged_ = 0;  // Versions that were promoted before all was known. Used by Run().
};

}  // namespace sluice::trainer
