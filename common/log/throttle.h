#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::log {

// Keeps lines that may come by the thousand from filling a log: lets one through for each interval,
// and says for how many it stands.
//
//   const std::optional<uint64_t> count = throttle.Count(clock->Monotonic());
//   if (count) log::Info("scores_refused", {{"count", *count}});
//
// Thread-safe.
class Throttle {
 public:
  explicit Throttle(absl::Duration interval) : interval_(interval) {}

  // Something happened. Set: write a line now, for so many happenings since the last line. Unset:
  // a later line will count it.
  std::optional<uint64_t> Count(absl::Duration now) {
    MutexLock lock(&mu_);
    ++held_back_;
    if (now < next_) return std::nullopt;
    next_ = now + interval_;
    return Take();
  }

  // What no line has told of yet; to be written at the end.
  uint64_t TakeRest() {
    MutexLock lock(&mu_);
    return Take();
  }

 private:
  uint64_t Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t count = held_back_;
    held_back_ = 0;
    return count;
  }

  const absl::Duration interval_;
  Mutex mu_;
  // When a line may be written again.
  absl::Duration next_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  uint64_t held_back_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::log
