#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/rl/version.h"
#include "services/queue/core/job.h"

// The policies under test. A policy decides which rollouts of the simulated workload may start, and
// which trajectories make up a batch.
namespace sluice::bench {

struct Workload {
  uint32_t batch = 64;       // B: trajectories of a batch.
  uint32_t staleness = 2;    // eta: the largest staleness allowed.
  uint32_t running = 192;    // At once, on all engines together.
  double mean_seconds = 60;  // Mean duration of a rollout.
  double step_seconds = 20;  // Duration of a training step.
};

// One rollout, as the simulation knows it. A policy reads what it needs.
struct Rollout {
  uint64_t id = 0;
  double started = 0, seconds = 0;
  uint64_t tokens = 0, written = 0;
  std::vector<VersionRun> runs;  // The versions of the tokens written.
  int64_t oldest() const { return runs.empty() ? 0 : runs.front().version.number; }
};

struct Trained {
  uint64_t id = 0;
  uint64_t masked = 0;                // Tokens left out of training.
  std::vector<queue::TokenRun> mask;  // The tokens left out, by position among the rollout's own.
};

// One policy. The simulation tells it what happens to the rollouts that it started.
class Backend {
 public:
  virtual ~Backend() = default;
  // Returns the ids of the rollouts that start now, at most `room`. No id is used twice.
  virtual std::vector<uint64_t> StartRollouts(double now, uint32_t room) = 0;
  virtual void OnWritten(double now, const Rollout& rollout, const VersionRun& run) = 0;
  virtual void OnFinished(double now, const Rollout& rollout) = 0;
  // Returns the batch of the next step, or an empty one if it is not ready yet.
  virtual std::vector<Trained> CutBatch(double now) = 0;
  virtual void OnApplied(double now) = 0;
  // Returns the rollouts that were given up since the last call.
  virtual std::vector<uint64_t> TakeDropped() = 0;
  // Returns the staleness up to which rollouts are admitted now.
  virtual double admission() const = 0;
};

// AReaL's gate: a rollout starts while accepted + running < (eta + v + 1) B, where v is the
// trainer's version. Batches are taken in order of finishing. With `drop`, trajectories that are
// too old at the cut are dropped, and no longer count as accepted.
std::unique_ptr<Backend> MakeGate(const Workload& workload, bool drop);
// The queue's own state machine. With `automatic` its admission window adapts itself.
std::unique_ptr<Backend> MakeQueue(const Workload& workload, queue::Straggler straggler,
                                   bool automatic);

}  // namespace sluice::bench
