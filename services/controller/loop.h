#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/trace.h"
#include "common/base/watchdog.h"
#include "common/meta/store.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

// Runs the core on one thread, named `loop`, one input after the other. The effects of all inputs
// that have come so far are stored in one transaction, and only then sent to others, as long as the
// store says that this process may act. While the store fails, nothing is sent and no new input is
// taken; the transaction is tried again until it works, and the daemons go on under the assignments
// that they hold. The time that this takes, and that in which the process is paused, counts as
// Controller::OnAway().
//
// If another process has taken the store's lease, this one sends nothing any more and calls
// Sinks::lost. If another process has changed the store without that, this one aborts at once,
// because what it believes may be wrong.
//
// Thread-safe.
class Loop {
 public:
  // The receivers of effects that are stored. All run on the loop's thread and must not block.
  struct Sinks {
    std::function<void(Controller&, const SetJobCall&)> set_job;
    std::function<void(const ReleaseCall&)> release;
    // The daemon's DesiredState has changed.
    std::function<void(Controller&, const std::string& daemon)> daemon_changed;
    // The job has something new for watchers.
    std::function<void(Controller&, const std::string& job)> job_changed;
    // Answer with Controller::OnDiagnosis().
    std::function<void(Controller&, const std::string& job)> diagnose;
    std::function<void(Controller&)> tick;  // Runs four times a second.
    // How long a try of a transaction took; `outcome` is "ok" or "error".
    std::function<void(const char* outcome, absl::Duration)> transaction_tried;
    // Another process leads; must end this one.
    std::function<void(const absl::Status&)> lost;
  };
  using Work = std::function<void(Controller&, Instant)>;
  using Then = std::function<void(Controller&)>;

  // `store` and `clock` outlive the loop.
  Loop(std::unique_ptr<Controller> core, meta::Store* store, Clock* clock)
      : core_(std::move(core)), store_(store), clock_(clock) {}
  // Calls Stop().
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void Start(Sinks sinks);
  // Does what has been posted, unless the store fails, then ends the thread. Later posts are
  // dropped. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `work` with the core and the time, and `then` once the effects of `work` are stored. Both
  // run on the loop's thread, in the trace of the thread that posts them.
  void Post(Work work, Then then = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the store is away, so that nothing that is posted is done for now.
  bool away() const { return away_; }

 private:
  struct Item {
    Work work;
    Then then;
    Trace trace;
  };
  void Run();
  // Tells the core if this process was away since the last turn.
  void NoteAbsence(Instant now);
  // Stores the transaction, and waits until this process may act on it. Returns false if the loop
  // must end.
  bool Commit(const Outbox& out);
  // Tries until it works. Returns false if the loop was stopped meanwhile, or if another process
  // has the store.
  bool Persist(const std::function<absl::Status()>& attempt);
  bool IsStopping() ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<Controller> core_;
  meta::Store* const store_;
  Clock* const clock_;
  Sinks sinks_;
  std::atomic<bool> away_ = false;
  absl::Duration last_turn_ = absl::InfiniteDuration();  // End of the last wait for inputs.
  int64_t times_rebuilt_ = 0;                            // As the store last said.
  Watchdog::Loop watched_{ProcessWatchdog(), "controller"};

  Mutex mu_;
  CondVar posted_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::controller
