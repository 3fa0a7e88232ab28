#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace sluice {

// Runs functions on threads of its own, at most `most` at a time. A thread is started when all
// others are busy, so that a job with little work has few. Thread-safe.
class WorkThreads {
 public:
  explicit WorkThreads(uint32_t most) : most_(most) {}
  ~WorkThreads() { Stop(); }

  // Runs `work` as soon as a thread is free. After Stop(), it is not run.
  void Run(std::function<void()> work);
  // How many functions could begin at once.
  uint32_t free() const;
  // Waits until a function ends, at most `timeout`.
  void AwaitEnd(absl::Duration timeout);
  // Drops what has not begun, and waits for what has. Idempotent.
  void Stop();

 private:
  void Loop();

  const uint32_t most_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  uint32_t running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
