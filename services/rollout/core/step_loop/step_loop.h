#pragma once

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/cores/core_share.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// Runs an engine: takes requests, aborts and new weights from other threads, applies them between
// two steps, and hands on what each step gave.
//
// Each step computes on the cores that this daemon has then; while there is nothing to do they are
// lent.
//
// Thread-safe. Owns one thread, `step`, which alone touches the engine and calls the sink; it does
// no I/O.
class StepLoop {
 public:
  // Called on the step thread; must not block.
  class Sink {
   public:
    virtual ~Sink() = default;
    // The tokens of one step. Requests that the engine would not take come as failures.
    virtual void OnStep(StepEvents events) = 0;
    virtual void OnActivation(const StagedWeights& staged, const Activation& activation) = 0;
    // The engine is broken and the thread has ended.
    virtual void OnBroken(absl::Status why) = 0;
  };

  // Time of the step thread, by what it did.
  struct Times {
    absl::Duration decode, prefill, activate, idle;
  };

  // `engine`, `cores` and `sink` outlive the loop.
  StepLoop(Engine* engine, KvPolicy kv, CoreShare* cores, Sink* sink);
  ~StepLoop();  // Stop().
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  void Add(std::vector<Request> requests) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(uint64_t request, AbortReason reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Activated before the next step. Of several the newest counts.
  void Activate(StagedWeights staged) ABSL_LOCKS_EXCLUDED(mu_);
  // While paused no step is taken; all else goes on. The sink may call it.
  void SetPaused(bool paused) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the thread after the step under way. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  EngineStats stats() const ABSL_LOCKS_EXCLUDED(mu_);  // As of the last step.
  Times times() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Inbox {
    std::vector<Request> requests;
    std::vector<std::pair<uint64_t, AbortReason>> aborts;
    std::optional<StagedWeights> staged;
    bool stop = false;
  };
  void Run();
  // What has come; waits for something, or for work to go on, where there is nothing to do.
  Inbox Take(bool idle) ABSL_LOCKS_EXCLUDED(mu_);
  bool Paused() const ABSL_LOCKS_EXCLUDED(mu_);
  StepEvents Accept(Inbox* inbox);
  absl::Status Switch(const StagedWeights& staged);

  Engine* const engine_;
  const KvPolicy kv_;
  CoreShare* const cores_;
  Sink* const sink_;

  mutable Mutex mu_;
  CondVar changed_;
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
  Times times_ ABSL_GUARDED_BY(mu_);

  std::optional<CoreShare::Busy> busy_;  // Of the step thread: none while it waits.

  std::thread thread_;
};

}  // namespace sluice
