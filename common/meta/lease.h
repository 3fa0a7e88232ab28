#pragma once

#include <string>

#include "absl/strings/string_view.h"
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
// A store that fails over has terms (redis::Master::term). The store of a new term may lack the
// newest renewals, so under it the lease may look free while another process still has it of the
// old term. Nobody is granted the lease of an old term once a new one is known. Therefore a process
// that may act goes on under the new term at once, because no other one may act. One that may not
// first waits for `ttl`.
//
// Not thread-safe.
class Lease {
 public:
  explicit Lease(const LeaseTimes& times) : times_(times) {}

  // Whether to ask for the lease under `term`, of which this process has just heard.
  bool MayAsk(absl::string_view term, absl::Duration now);
  // The store has given or renewed the lease; the request was sent at `sent`, and afterwards `term`
  // was still the newest.
  void OnGranted(absl::Duration sent, absl::string_view term = {});
  // A request that was sent at `sent` got no answer, so the next one is due after `poll`.
  void OnNoAnswer(absl::Duration sent);
  // Another process has the lease. This one never acts again.
  void OnLost() { lost_ = true; }

  bool lost() const { return lost_; }
  // Whether this process may act as the leader.
  bool MayAct(absl::Duration now) const { return !lost_ && now < act_until_; }
  // When to ask next.
  absl::Duration next() const { return next_; }
  // The term of the last grant.
  const std::string& term() const { return term_; }

 private:
  const LeaseTimes times_;
  absl::Duration act_until_ = -absl::InfiniteDuration();  // Never moves back.
  absl::Duration next_ = -absl::InfiniteDuration();
  bool lost_ = false;
  std::string term_;         // Of the last grant.
  std::string heard_term_;   // A newer one, if there is one,
  absl::Duration heard_at_;  // and when it was first heard of.
};

}  // namespace sluice::meta
