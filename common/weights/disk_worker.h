#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice {

namespace rpc {
class Cancel;
}

// Makes calls that a disk may hold up for ever, as a network disk without its server does. They run
// one after the other on a thread of its own. Its owner goes on without a call that takes too long,
// and the thread is left behind if it hangs at the end.
//
// Thread-safe.
class DiskWorker {
 public:
  // The thread's name, of at most 15 bytes.
  explicit DiskWorker(const char* name);
  ~DiskWorker();
  DiskWorker(const DiskWorker&) = delete;
  DiskWorker& operator=(const DiskWorker&) = delete;

  // Runs `work` and waits for its end. After an error it may still run, so it must own or share all
  // that it touches.
  // DEADLINE_EXCEEDED: it has not ended within `limit`, or the work before it has not.
  // CANCELLED: `cancel` was triggered, which may be null.
  absl::Status Run(std::function<void()> work, absl::Duration limit, rpc::Cancel* cancel = nullptr);

 private:
  struct State;
  static void RunThread(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace sluice
