#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "services/trainer/assigned_job.h"

namespace sluice {
class CoreShare;
}

namespace sluice::trainer {

// A job on a rank other than 0: it does a share of the forward and backward passes, and what else
// rank 0 asks for, until rank 0 is gone. It talks to rank 0 alone, and takes weights and moments
// from it. It reports no failure when it loses rank 0, because the trainer group then ends anyway,
// and the controller forms a new one.
//
// Owns a thread, `follow`.
class FollowingJob : public AssignedJob {
 public:
  // `worker` is this daemon's id. `on_standing` is called on the job's thread. The job lends
  // `cores`, which outlive it, to other daemons while it waits for rank 0.
  FollowingJob(JobConfig config, std::string worker, CoreShare* cores,
               std::function<void(const JobStanding& standing)> on_standing);
  ~FollowingJob() override;

  const JobConfig& config() const override;
  void SetQueue(const std::string&) override {}
  void SetRollouts(std::vector<std::string>) override {}
  // With `checkpoint` the job goes on until rank 0 ends, which needs this rank for its last step
  // and checkpoint.
  void Leave(bool checkpoint) override;
  void Wait() override;
  std::vector<common::v1::WaitEdge> Explain() const override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
