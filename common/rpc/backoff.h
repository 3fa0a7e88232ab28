#pragma once

#include "absl/time/time.h"

namespace sluice::rpc {

// Waits between attempts grow exponentially. The first is `first` long, and each next one is
// `factor` times as long, up to `longest`. Each wait is multiplied by a random number within 1 +-
// `jitter`.
struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(50);
  absl::Duration longest = absl::Seconds(2);
  double factor = 1.6;
  double jitter = 0.2;
};

// The waits of one caller. Not thread-safe.
class Backoff {
 public:
  explicit Backoff(const BackoffOptions& options) : options_(options), next_(options.first) {}

  // The next wait. It is at least `at_least`, which is what a server asked for by RetryInfo.
  absl::Duration Next(absl::Duration at_least = absl::ZeroDuration());
  // Call it after a success: the next wait is `first` again.
  void Reset() { next_ = options_.first; }

 private:
  const BackoffOptions options_;
  absl::Duration next_;
};

}  // namespace sluice::rpc
