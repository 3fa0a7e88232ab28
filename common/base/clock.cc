#include "common/base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace sluice {
namespace {
class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};
}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

absl::Time ManualClock::Now() {
  MutexLock lock(&mu_);
  return start_ + elapsed_;
}

absl::Duration ManualClock::Monotonic() {
  MutexLock lock(&mu_);
  return elapsed_;
}

void ManualClock::Sleep(absl::Duration duration) {
  MutexLock lock(&mu_);
  // Only Advance() ends the wait.
  const absl::Duration until = elapsed_ + duration;
  while (elapsed_ < until) advanced_.Wait(&mu_);
}

void ManualClock::Advance(absl::Duration duration) {
  MutexLock lock(&mu_);
  elapsed_ += duration;
  advanced_.NotifyAll();
}
}  // namespace sluice
