#pragma once

#include <string>
#include <vector>

#include "common/rl/version.h"
#include "services/trainer/config.h"
#include "services/trainer/core/evaluations.h"

namespace sluice::common::v1 {
class WaitEdge;
}

namespace sluice::trainer {

// The state of a job on this trainer, which goes into registry.v1.Progress.
struct JobStanding {
  bool ready = false;
  PolicyVersion version;  // The newest trained version; unset on ranks other than 0.
  // One of loading, training, done, restore, fenced, failed, left.
  std::string phase;
  std::string cause;  // Why it is in this phase, for people.
  EvalTotals evaluated;
};

// One incarnation of a job on this trainer, as the program sees it: the training itself on rank 0
// (job.h), and a share of its work on the other ranks (following_job.h). Thread-safe.
class AssignedJob {
 public:
  // Ends the job with Leave(false) and Wait().
  virtual ~AssignedJob() = default;

  virtual const JobConfig& config() const = 0;
  // The job's queue has this address (HOST:PORT) now.
  virtual void SetQueue(const std::string& address) = 0;
  // Sets the rollouts (HOST:PORT) that work for the job now.
  virtual void SetRollouts(std::vector<std::string> rollouts) = 0;
  // Ends the job, with a checkpoint of the last applied step or as soon as possible. Returns before
  // the job has ended; the phase is then `left`. A second call can only make it end sooner.
  virtual void Leave(bool checkpoint) = 0;
  // Waits until the job's thread has ended.
  virtual void Wait() = 0;
  // What the job waits for now.
  virtual std::vector<common::v1::WaitEdge> Explain() const = 0;
};

}  // namespace sluice::trainer
