#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice {

// Knows whether the loops of a daemon still turn. A loop that has stopped, because of a deadlock or
// a call that does not return, does not come back by itself, and the process must be started anew.
// Only the process's own loops are judged: a loop that waits for a peer, or for work, rests.
//
// Thread-safe.
class Watchdog {
 public:
  static constexpr absl::Duration kLimit = absl::Seconds(30);

  // `clock` outlives the watchdog.
  explicit Watchdog(Clock* clock) : clock_(clock) {}

  // Sets how long a loop may be silent, unless it says otherwise. Call it before loops begin.
  void SetLimit(absl::Duration limit) { limit_ = limit; }

  // One loop. It must end before the watchdog. The calls are made by the loop's thread; each ends
  // what the one before said. A loop rests until its first Tick().
  class Loop {
   public:
    Loop(Watchdog* watchdog, std::string name);
    ~Loop();
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    // The loop turns, and will tick again within the limit.
    void Tick();
    // The loop begins something that may take longer. `what` says what, as in "loads the model".
    void Begin(const char* what, absl::Duration at_most);
    // The loop waits for a peer or for work, which may take for ever.
    void Rest();

   private:
    friend class Watchdog;
    void Expect(const char* what, absl::Duration at_most);
    // Why the loop is stuck; empty if it is not.
    std::string FindStall(absl::Duration now) const ABSL_LOCKS_EXCLUDED(mu_);

    Watchdog* const watchdog_;
    const std::string name_;
    mutable Mutex mu_;
    const char* what_ ABSL_GUARDED_BY(mu_) = nullptr;  // Null: its usual work.
    absl::Duration since_ ABSL_GUARDED_BY(mu_);
    absl::Duration at_most_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  };

  // UNAVAILABLE: a loop has been silent for longer than it may be; the message names it.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Clock* const clock_;
  absl::Duration limit_ = kLimit;
  mutable Mutex mu_;
  std::set<const Loop*> loops_ ABSL_GUARDED_BY(mu_);
};

// The watchdog of this process, by the machine's clock. It is never destroyed.
Watchdog* ProcessWatchdog();

}  // namespace sluice
