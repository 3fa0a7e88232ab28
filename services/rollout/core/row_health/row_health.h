#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice::rollout {

// Whether the weights in hand give finite logits. A row that is not ends its own answer alone;
// where they are many it is the weights, and the worker is not ready.
//
// Thread-safe.
class RowHealth {
 public:
  // Rows that are not finite, before anything is said of a version,
  static constexpr uint64_t kFewest = 8;
  static constexpr uint64_t kOneIn = 100;  // and more than one in so many.

  // Other weights: nothing is known of them.
  void Activated(PolicyVersion version) ABSL_LOCKS_EXCLUDED(mu_);
  // What a step drew. True: from here on status() is an error.
  bool Stepped(const StepEvents& events) ABSL_LOCKS_EXCLUDED(mu_);

  // UNAVAILABLE, by version and numbers; OK again with the next weights.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool Bad() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return nonfinite_ >= kFewest && nonfinite_ * kOneIn > rows_;
  }

  mutable Mutex mu_;
  PolicyVersion version_ ABSL_GUARDED_BY(mu_);
  uint64_t rows_ ABSL_GUARDED_BY(mu_) = 0, nonfinite_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::rollout
