#pragma once

#include "absl/time/time.h"

namespace sluice::meta {

// The times of the leader's lease.
struct LeaseTimes {
  // The store ends a lease this long after it was last renewed.
  absl::Duration ttl = absl::Seconds(10);
  absl::Duration renew = absl::Seconds(3);  // How often the holder renews it.
  // How long before its end the holder stops acting. It covers clocks that run at different rates,
  // and what was sent but is still under way.
  absl::Duration margin = absl::Seconds(3);
  // How often a renewal that failed is repeated, and how often others try to take the lease.
  absl::Duration poll = absl::Milliseconds(500);
};

// What one process knows of the lease that makes it the leader. All moments are of its own
// monotonic clock, which the caller reads.
//
// The store counts `ttl` from a moment after the request was sent, so the lease surely lasts until
// `ttl` after the sending. An answer that comes late therefore gives less time, never more.
//
// Not thread-safe.
class Lease {
 public:
  explicit Lease(const LeaseTimes& times) : times_(times) {}

  // The store has given or renewed the lease; the request was sent at `sent`.
  void OnGranted(absl::Duration sent);
  // A request that was sent at `sent` got no answer, so the next one is due after `poll`.
  void OnNoAnswer(absl::Duration sent);
  // Another process has the lease. This one never acts again.
  void OnLost() { lost_ = true; }

  bool lost() const { return lost_; }
  // Whether this process may act as the leader.
  bool MayAct(absl::Duration now) const { return !lost_ && now < act_until_; }
  // When to ask next.
  absl::Duration next() const { return next_; }

 private:
  const LeaseTimes times_;
  absl::Duration act_until_ = -absl::InfiniteDuration();  // Never moves back.
  absl::Duration next_ = -absl::InfiniteDuration();
  bool lost_ = false;
};

}  // namespace sluice::meta
