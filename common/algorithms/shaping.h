#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace sluice {

// What happens to an answer that was cut at the length limit. The names are rows of
// TruncationRows() (registry.h).
enum class Truncation {
  kKeep,     // It is trained on.
  kFilter,   // It is not trained on, but its reward stays in the group's statistics.
  kPenalty,  // Answers near the limit lose reward; see SoftOverlong.
};

// The soft overlong penalty of DAPO (arXiv 2503.14476), which is added to the reward of an answer
// of `tokens` tokens:
//   clip(-(tokens - (max_response - buffer)) / buffer * penalty, -penalty, 0)
// It is 0 if `buffer` is 0. All lengths are in tokens.
double SoftOverlong(int64_t tokens, int64_t max_response, int64_t buffer, double penalty = 1.0);

// The buffer that DAPO uses: a fifth of the limit (4096 of 20480 tokens).
inline int64_t DefaultOverlongBuffer(int64_t max_response) { return max_response / 5; }

// Whether the rewards of a group, before shaping, carry a signal (DAPO's dynamic sampling): the
// group has at least two members, and the sample std (ddof 1) of their rewards is above 1e-6. The
// other values say why there is none.
enum class GroupSignal { kSignal, kSingle, kAllZero, kAllOne, kAllEqual };
GroupSignal SignalOf(absl::Span<const double> task_rewards);
const char* GroupSignalName(GroupSignal signal);  // signal, single, all_zero, all_one, all_equal

}  // namespace sluice
