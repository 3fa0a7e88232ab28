#pragma once

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/watchdog.h"
#include "common/cores/core_share.h"
#include "common/weights/staged.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice {

// Runs an engine on a thread of its own. Other threads leave requests, aborts and new weights here;
// the loop applies them between two steps, and passes the events of each step to a sink.
//
// While there is nothing to sample, the loop has the engine read again those weights that were not
// read since the last activation.
//
// Each step computes on the cores that the daemon has at that moment. While there is nothing to do,
// the daemon's cores are lent to other daemons (common/cores).
//
// Thread-safe. Owns one thread, the step thread (`sluice-decode`). Only this thread uses the engine
// and calls the sink, and it does no I/O.
class StepLoop {
 public:
  // Called on the step thread; must not block.
  class Sink {
   public:
    virtual ~Sink() = default;
    // Gets the events of one step. A request that the engine refuses appears as a failure, in
    // events of their own.
    virtual void OnStep(StepEvents events) = 0;
    // Gets the result of an activation, accepted or not.
    virtual void OnActivation(const StagedWeights& staged, const Activation& activation) = 0;
    // The engine has found damage while it read its weights again, because it was idle or was asked
    // to. Damage that an activation finds is in its result. From either on, the loop takes no step
    // until weights are activated.
    virtual void OnDamage(const WeightDamage& damage) = 0;
    // The engine has room for the weights of another version (EngineStats::room_for_version), which
    // it had not before.
    virtual void OnRoom() = 0;
    // The engine is broken and the thread has ended.
    virtual void OnBroken(absl::Status why) = 0;
  };

  // Time that the step thread has spent so far, by activity.
  struct Times {
    absl::Duration decode, prefill, activate, idle;
  };

  // `engine`, `cores` and `sink` outlive the loop.
  StepLoop(Engine* engine, KvPolicy kv, CoreShare* cores, Sink* sink);
  ~StepLoop();  // Calls Stop().
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  void Add(std::vector<Request> requests) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(uint64_t request, AbortReason reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Activates the weights before the next step. If it is called several times before that step, the
  // last call counts.
  void Activate(StagedWeights staged) ABSL_LOCKS_EXCLUDED(mu_);
  // Has the engine read all its weights again before the next step, and calls `done` with what it
  // found, on the step thread. `done` must not block.
  // UNAVAILABLE: the loop has ended.
  void CheckWeights(WeightsCheckDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // While paused, the loop takes no step, but still accepts requests, aborts and weights. The sink
  // may call this function.
  void SetPaused(bool paused) ABSL_LOCKS_EXCLUDED(mu_);
  // Joins the thread, after its current step. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // After the last step, activation, abort or damage.
  EngineStats stats() const ABSL_LOCKS_EXCLUDED(mu_);
  Times times() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Inbox {
    std::vector<Request> requests;
    std::vector<std::pair<uint64_t, AbortReason>> aborts;
    std::optional<StagedWeights> staged;
    std::vector<WeightsCheckDone> checks;
    bool stop = false;
  };
  void Run();
  // Takes what is in the inbox. If the loop is paused, or there is `nothing_to_do`, first waits
  // until there is something, or until the pause ends.
  Inbox TakeInbox(bool nothing_to_do) ABSL_LOCKS_EXCLUDED(mu_);
  void VerifyPart();
  void UpdateStats() ABSL_LOCKS_EXCLUDED(mu_);
  bool Paused() const ABSL_LOCKS_EXCLUDED(mu_);
  StepEvents ApplyRequests(Inbox* inbox);
  absl::Status ActivateStaged(const StagedWeights& staged);
  void RunChecks(std::vector<WeightsCheckDone> checks);
  // Answers these checks, and those that come from now on, with an error.
  void RefuseChecks(std::vector<WeightsCheckDone> checks) ABSL_LOCKS_EXCLUDED(mu_);

  Engine* const engine_;
  const KvPolicy kv_;
  CoreShare* const cores_;
  Sink* const sink_;

  mutable Mutex mu_;
  CondVar changed_;  // The step thread waits for it.
  Inbox inbox_ ABSL_GUARDED_BY(mu_);
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // The thread takes nothing from the inbox any more.
  EngineStats stats_ ABSL_GUARDED_BY(mu_);
  Times times_ ABSL_GUARDED_BY(mu_);

  // Used by the step thread. Holds the daemon's cores; empty while the thread waits.
  std::optional<CoreShare::Busy> busy_;
  Watchdog::Loop watched_{ProcessWatchdog(), "decode"};

  std::thread thread_;
};

}  // namespace sluice
