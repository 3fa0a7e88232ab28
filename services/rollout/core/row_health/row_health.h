#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rl/version.h"
#include "services/rollout/core/engine/engine.h"

namespace sluice::rollout {

// Tells whether the loaded weights give finite logits. A row is here a row of logits from which a
// token was to be drawn. It is bad if its request failed with NONFINITE. One bad row ends only its
// own answer. If there are many, the weights are at fault, and the worker must not report that it
// is ready.
//
// Thread-safe.
class RowHealth {
 public:
  // A version is at fault if at least kFewest of its rows are bad, and more than one in kOneIn.
  static constexpr uint64_t kFewest = 8;
  static constexpr uint64_t kOneIn = 100;

  // The engine now computes with `version`. Counting starts again.
  void StartVersion(PolicyVersion version) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts the rows of a step that are of this version. Returns true if with this step status()
  // became an error.
  bool CountRows(const StepEvents& events) ABSL_LOCKS_EXCLUDED(mu_);

  // The rows of the version so far, and those of them that are bad.
  struct Counts {
    uint64_t rows = 0, bad = 0;
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mu_);

  // UNAVAILABLE: the version is at fault; the message has its numbers. It is OK again after the
  // next StartVersion().
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool AtFault() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return nonfinite_ >= kFewest && nonfinite_ * kOneIn > rows_;
  }

  mutable Mutex mu_;
  PolicyVersion version_ ABSL_GUARDED_BY(mu_);
  uint64_t rows_ ABSL_GUARDED_BY(mu_) = 0, nonfinite_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::rollout
