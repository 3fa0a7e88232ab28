#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice::controller {

// Threads for the calls to daemons, which block. Tasks begin in the order in which they came. The
// list of waiting tasks has no limit, because each task comes from a job or a user's call, and
// there are few of these.
//
// Thread-safe.
class Pool {
 public:
  explicit Pool(int threads);
  // Calls Stop().
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs the task on a thread of the pool, in the trace of the calling thread. After Stop() it runs
  // at once on the caller's thread, so whoever calls Stop() must first make sure that tasks end
  // quickly.
  void Run(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the waiting tasks, then ends the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void RunTasks() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::controller
