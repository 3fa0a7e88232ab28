#pragma once

#include <cstdint>

namespace sluice {

// What a canary has found about the version on trial since its activation there.
struct VersionHealth {
  // Rows of logits that were computed, and those among them that were not finite.
  uint64_t rows = 0, bad_rows = 0;
  // Tokens of earlier answers whose log-probs were computed again, and the mean absolute difference
  // from those with which they were sampled, in nats.
  uint64_t gap_tokens = 0;
  double gap = 0;
  bool probed = false;  // All answers that were to be computed again have been.

  bool operator==(const VersionHealth&) const = default;
};

}  // namespace sluice
