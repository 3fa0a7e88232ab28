#pragma once

#include "absl/time/time.h"

namespace sluice::rpc {

// Waits between tries: `first`, then each `factor` times the one before up to `most`, each blurred
// by +-`jitter`.
struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(50);
  absl::Duration most = absl::Seconds(5);
  double factor = 1.6;
  double jitter = 0.2;
};

// One caller's waits; not thread-safe.
class Backoff {
 public:
  explicit Backoff(const BackoffOptions& options) : options_(options), next_(options.first) {}

  // The next wait; at least `at_least` (what a RetryInfo asked for).
  absl::Duration Next(absl::Duration at_least = absl::ZeroDuration());
  // After a success: from `first` again.
  void Reset() { next_ = options_.first; }

 private:
  const BackoffOptions options_;
  absl::Duration next_;
};

}  // namespace sluice::rpc
