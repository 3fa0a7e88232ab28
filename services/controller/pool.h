#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice::controller {

// Threads for calls to daemons, which block. Tasks begin in the order they came; there is no limit
// to those that wait, as each is asked for by a job or a user's call of which there are few.
//
// Thread-safe.
class Pool {
 public:
  explicit Pool(int threads);
  // Stop().
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // After Stop() the task runs at once, on the caller's thread: whoever stops first makes tasks
  // short.
  void Run(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);
  // Does what waits, then ends the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::controller
