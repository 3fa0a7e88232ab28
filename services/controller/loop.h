#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/meta/store.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

// Runs the core: what comes in is done by one thread, `loop`, one after the other; what follows is
// stored, many at once in one transaction, and only then told. While the store fails nothing is
// told and nothing new is done; it is tried again until it works, and the daemons go on under what
// they hold. A store that another process has changed ends this one at once: nothing that it
// believes may be told.
//
// Thread-safe.
class Loop {
 public:
  // What is due once it is stored; all run on the loop's thread and must not block.
  struct Sinks {
    std::function<void(Controller&, const SetJobCall&)> set_job;
    std::function<void(const ReleaseCall&)> release;
    std::function<void(Controller&, const std::string& daemon)> daemon;  // Its Down changed.
    std::function<void(Controller&, const std::string& job)> job;        // Something to watch.
    std::function<void(Controller&, const std::string& job)> diagnose;   // Answered by Diagnosed().
    std::function<void(Controller&)> tick;                               // Four times a second.
    // How long a transaction took.
    std::function<void(const char* outcome, absl::Duration)> stored;
  };
  using Work = std::function<void(Controller&, Instant)>;
  using Then = std::function<void(Controller&)>;

  // `store` and `clock` outlive the loop.
  Loop(std::unique_ptr<Controller> core, meta::Store* store, Clock* clock)
      : core_(std::move(core)), store_(store), clock_(clock) {}
  // Stop().
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void Start(Sinks sinks);
  // Does what was posted, then ends the thread. Later posts are dropped. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // `work` runs with the core and the time, then, when what it did is stored, `then`. Both on the
  // loop's thread.
  void Post(Work work, Then then = {}) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Item {
    Work work;
    Then then;
  };
  void Run();
  // False: the loop was stopped while the store was away.
  bool Commit(const Outbox& out);
  bool Stopping() ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<Controller> core_;
  meta::Store* const store_;
  Clock* const clock_;
  Sinks sinks_;

  Mutex mu_;
  CondVar posted_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::controller
