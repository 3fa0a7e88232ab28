#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/rl/version.h"
#include "services/trainer/config.h"
#include "services/trainer/core/evaluations.h"

namespace sluice {
class CoreShare;
class WeightsServer;
namespace common::v1 {
class Event;
class WaitEdge;
}  // namespace common::v1
namespace job::v1 {
class StepReport;
}  // namespace job::v1
namespace metrics {
class Registry;
}  // namespace metrics
}  // namespace sluice

namespace sluice::trainer {

// One incarnation of a job's trainer: loads the newest checkpoint that verifies, or the model;
// restores the queue to it; publishes; and trains batch after batch until it is told to stop or the
// steps are done.
//
// Owns a thread, `job`, on which everything is trained, and those of its reader, publication and
// checkpoint writer. Thread-safe.
class TrainingJob {
 public:
  // How it stands; phase as in registry.Progress: loading, training, done, restore, fenced, failed,
  // left.
  struct Standing {
    bool ready = false;
    PolicyVersion version;  // Trained.
    std::string phase;
    std::string cause;
    EvalTotals evaluated;
  };
  // Run on the job's threads; must not block.
  struct Hooks {
    std::function<void(const Standing& standing)> told;
    std::function<void(const job::v1::StepReport& report)> stepped;
    std::function<void(common::v1::Event event)> happened;
  };

  // `worker`: this daemon's id. `cores`: lent to others while the job waits for data. `cores`,
  // `weights` and `registry` outlive the job.
  TrainingJob(JobConfig config, std::string worker, CoreShare* cores, WeightsServer* weights,
              metrics::Registry* registry, Hooks hooks);
  // Leave(false), Wait().
  ~TrainingJob();
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  const JobConfig& config() const;
  // HOST:PORT of the rollouts that work for the job now.
  void SetRollouts(std::vector<std::string> rollouts);
  // Ends: with `checkpoint` after the step under way, with a checkpoint that the queue knows of;
  // else at once, as it is. Returns before it is done; the phase becomes `left`. A later call may
  // only hasten it.
  void Leave(bool checkpoint);
  // Until the `job` thread has ended.
  void Wait();

  std::vector<common::v1::WaitEdge> Explain() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::trainer
