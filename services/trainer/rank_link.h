#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/collective/collective.h"
#include "common/rpc/cancel.h"
#include "services/trainer/config.h"

namespace sluice::trainer {

// This rank's connection to the other ranks of a job's trainer, from their meeting to their
// parting.
//
// Used by the job's thread, but for Abort() and AbortUnlessJoined().
class RankLink {
 public:
  RankLink();
  ~RankLink();

  // Meets the other ranks at rank 0's RendezvousService. `worker` is this daemon's id. With one
  // rank it does nothing. Errors are those of JoinC10d().
  // FAILED_PRECONDITION: this daemon has no address for the other ranks.
  // CANCELLED: Abort() was called.
  absl::Status Join(const JobConfig& config, const std::string& worker) ABSL_LOCKS_EXCLUDED(mu_);
  // Null with one rank, and before Join().
  Collective* collective() ABSL_LOCKS_EXCLUDED(mu_);
  // A second group for reading checkpoints. Null also if the ranks do not share out the moments.
  std::shared_ptr<Collective> snapshots() ABSL_LOCKS_EXCLUDED(mu_);
  // Parts from the other ranks, for which this rank is lost then.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all waits for the other ranks, now and later. From any thread.
  void Abort() ABSL_LOCKS_EXCLUDED(mu_);
  // Does so only if the ranks have not all met yet, and says whether it did. From any thread.
  bool AbortUnlessJoined() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Sets *group, which is one of those below.
  absl::Status Join(const Collective::Options& options, Rendezvous* rendezvous,
                    std::shared_ptr<Collective>* group) ABSL_LOCKS_EXCLUDED(mu_);

  rpc::Cancel cancel_;
  Mutex mu_;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;  // With several ranks: they have met.
  std::shared_ptr<Collective> collective_ ABSL_GUARDED_BY(mu_), snapshots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::trainer
