#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace sluice {

// std::mutex with thread-safety annotations. ThreadSanitizer understands it, but not an absl::Mutex
// from a package that was built without ThreadSanitizer.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds `mu` while it exists.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable. The caller holds `mu`, which is released during the wait. Spurious wake-ups
// happen, so callers wait in a loop on their condition.
class CondVar {
 public:
  void Wait(Mutex* mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false if `timeout` passed without a signal.
  bool WaitFor(Mutex* mu, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    // The clock's time plus a very long timeout would overflow.
    timeout = std::min(timeout, absl::Hours(24 * 365));
    const bool signalled =
        cv_.wait_for(lock, absl::ToChronoNanoseconds(timeout)) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace sluice
