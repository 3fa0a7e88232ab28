#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "services/trainer/assigned_job.h"

namespace sluice {
class CoreShare;
class WeightsServer;
namespace common::v1 {
class Event;
}  // namespace common::v1
namespace job::v1 {
class StepReport;
}  // namespace job::v1
namespace metrics {
class Registry;
}  // namespace metrics
}  // namespace sluice

namespace sluice::trainer {

// The training of a job on rank 0, in one incarnation. It loads the newest checkpoint that
// verifies, or else the model, restores the queue to the same point, publishes the weights, and
// trains batch after batch until it is told to stop or all steps are done.
//
// Owns a thread, `job`, which does the training, and the threads of its reader, publication,
// checkpoint writer and evaluator. Thread-safe.
class TrainingJob : public AssignedJob {
 public:
  using Standing = JobStanding;
  // Called on the job's threads; they must not block.
  struct Hooks {
    std::function<void(const Standing& standing)> on_standing;
    std::function<void(const job::v1::StepReport& report)> on_step;
    std::function<void(common::v1::Event event)> on_event;
  };

  // `worker` is this daemon's id. The job lends `cores` to other daemons while it waits for data.
  // `cores`, `weights` and `registry` outlive the job.
  TrainingJob(JobConfig config, std::string worker, CoreShare* cores, WeightsServer* weights,
              metrics::Registry* registry, Hooks hooks);
  ~TrainingJob() override;
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  const JobConfig& config() const override;
  void SetQueue(const std::string& address) override;
  void SetRollouts(std::vector<std::string> rollouts) override;
  // A wait for data ends at once, and a step that lacks data is given up. With `checkpoint`, a step
  // whose data is all there is finished, a checkpoint of the last applied step is written, and the
  // queue is told of it. Else the job ends as soon as the computation under way, and the checkpoint
  // that is being written, are done; the result of the computation is not applied.
  void Leave(bool checkpoint) override;
  void Wait() override;
  std::vector<common::v1::WaitEdge> Explain() const override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
