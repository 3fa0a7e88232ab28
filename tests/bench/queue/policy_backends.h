#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/rl/version.h"
#include "services/queue/core/job.h"

// What a policy is to the simulated workload: who may start, what a batch is made of.
namespace sluice::bench {

struct Workload {
  uint32_t batch = 64;       // B, in trajectories.
  uint32_t staleness = 2;    // eta.
  uint32_t running = 192;    // At once, all engines together.
  double mean_seconds = 60;  // Of one rollout.
  double step_seconds = 20;  // Of the trainer alone.
};

// One rollout, as the simulation knows it; policies read what they need.
struct Rollout {
  uint64_t id = 0;
  double started = 0, seconds = 0;
  uint64_t tokens = 0, written = 0;
  std::vector<VersionRun> runs;  // Of the tokens written.
  int64_t oldest() const { return runs.empty() ? 0 : runs.front().version.number; }
};

struct Trained {
  uint64_t id = 0;
  uint64_t masked = 0;                // Tokens left out.
  std::vector<queue::TokenRun> mask;  // Which, by place among its own tokens.
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Names of rollouts that start now, at most `room`. Names are never used twice.
  virtual std::vector<uint64_t> Start(double now, uint32_t room) = 0;
  virtual void Wrote(double now, const Rollout& rollout, const VersionRun& run) = 0;
  virtual void Finished(double now, const Rollout& rollout) = 0;
  // The next step's batch; empty: not yet.
  virtual std::vector<Trained> Batch(double now) = 0;
  virtual void Applied(double now) = 0;
  // Rollouts given up since the last call.
  virtual std::vector<uint64_t> TakeDropped() = 0;
  virtual double admission() const = 0;
};

// AReaL's gate: start while accepted + running < (eta + v + 1) B; batches in order of finishing.
// With `drop` what is too old at the cut is dropped, and counted back.
std::unique_ptr<Backend> MakeGate(const Workload& workload, bool drop);
// The queue's own state machine.
std::unique_ptr<Backend> MakeQueue(const Workload& workload, queue::Straggler straggler,
                                   bool automatic);

}  // namespace sluice::bench
