#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace sluice {

// What happens to an answer that hit the length cap (`truncated`). The names are rows of
// TruncationRows() (registry.h).
enum class Truncation {
  kKeep,     // Trained on as it is.
  kFilter,   // Not trained on; its reward stays in the group's statistics.
  kPenalty,  // Answers near the cap lose reward, see SoftOverlong.
};

// The soft overlong penalty of DAPO (arXiv 2503.14476), added to the reward of an answer of
// `tokens` tokens:
//   clip(-(tokens - (max_response - buffer)) / buffer * penalty, -penalty, 0)
// buffer 0: no penalty.
double SoftOverlong(int64_t tokens, int64_t max_response, int64_t buffer, double penalty = 1.0);

// The buffer DAPO uses, a fifth of the cap (4096 of 20480 tokens).
inline int64_t DefaultOverlongBuffer(int64_t max_response) { return max_response / 5; }

// Whether a group's unshaped rewards carry a signal (DAPO's dynamic sampling): it has two members
// or more and their sample std (ddof 1) is above 1e-6.
enum class GroupSignal { kSignal, kSingle, kAllZero, kAllOne, kAllEqual };
GroupSignal SignalOf(absl::Span<const double> task_rewards);
const char* GroupSignalName(GroupSignal signal);  // signal, single, all_zero, all_one, all_equal

}  // namespace sluice
