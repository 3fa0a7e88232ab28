#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::log {

// Limits how often a log line is written that may occur thousands of times. It allows one line per
// interval, and counts how many occurrences the line stands for.
//
//   const std::optional<uint64_t> count = throttle.Count(clock->Monotonic());
//   if (count) log::Info("scores_refused", {{"count", *count}});
//
// Thread-safe.
class Throttle {
 public:
  explicit Throttle(absl::Duration interval) : interval_(interval) {}

  // Counts an occurrence at time `now`. If this returns a number, write a line now: it is the
  // number of occurrences since the last line. If it returns nothing, a later line will count this
  // one.
  std::optional<uint64_t> Count(absl::Duration now) {
    MutexLock lock(&mu_);
    ++unreported_;
    if (now < next_) return std::nullopt;
    next_ = now + interval_;
    return TakeCount();
  }

  // The number of occurrences that no line has reported yet, for a last line at the end.
  uint64_t TakeRest() {
    MutexLock lock(&mu_);
    return TakeCount();
  }

 private:
  uint64_t TakeCount() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t count = unreported_;
    unreported_ = 0;
    return count;
  }

  const absl::Duration interval_;
  Mutex mu_;
  // Time from which a line may be written again.
  absl::Duration next_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  uint64_t unreported_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::log
