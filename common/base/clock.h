#pragma once

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice {

// A clock that callers receive instead of reading the machine's, so that a test can control time.
// The state machines of the queue and the controller take `now` as an argument instead and need no
// clock.
//
// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for people and files. It may jump.
  virtual absl::Time Now() = 0;
  // Time since some fixed moment. It never goes backwards; use it for leases, deadlines and
  // durations.
  virtual absl::Duration Monotonic() = 0;
  // Sleeps for `duration` of monotonic time.
  virtual void Sleep(absl::Duration duration) = 0;

  // The machine's clock. It is never destroyed.
  static Clock* Real();
};

// A clock for tests, which moves only when Advance() is called.
class ManualClock : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000)) : start_(start) {}
  absl::Time Now() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration Monotonic() override ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once Advance() has moved the clock by at least `duration`.
  void Sleep(absl::Duration duration) override ABSL_LOCKS_EXCLUDED(mu_);
  void Advance(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const absl::Time start_;
  Mutex mu_;
  CondVar advanced_;
  absl::Duration elapsed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
