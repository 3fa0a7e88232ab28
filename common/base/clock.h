#pragma once

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice {

// Time, injected. Cores that are state machines take `now` as an argument instead and need no clock
// at all.
//
// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for people and files; may jump.
  virtual absl::Time Now() = 0;
  // Time since some fixed moment, never backwards: leases, deadlines, durations.
  virtual absl::Duration Monotonic() = 0;
  // Sleeps `duration` of monotonic time.
  virtual void Sleep(absl::Duration duration) = 0;

  // The machine's clock; lives for ever.
  static Clock* Real();
};

// A clock that stands still until told: for tests.
class ManualClock : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000)) : start_(start) {}
  absl::Time Now() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration Monotonic() override ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once Advance() has passed `duration`.
  void Sleep(absl::Duration duration) override ABSL_LOCKS_EXCLUDED(mu_);
  void Advance(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const absl::Time start_;
  Mutex mu_;
  CondVar advanced_;
  absl::Duration elapsed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
