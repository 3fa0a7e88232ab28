#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::trainer {

// What one sequence asks of a micro-batch: `length` tokens, of which the first `shared` are those
// of every sequence of its group and lie there once.
struct PackItem {
  uint32_t group = 0;
  uint32_t length = 0;
  uint32_t shared = 0;
};

// Divides sequences, those of a group side by side, into micro-batches that one forward takes:
// lists of indices into `items`. Each holds at most `max_tokens` tokens, but a longer sequence
// stands alone. A group stays together where it fits; one that does not is cut. The largest go
// first into the first micro-batch with room, ties in the order given, so the result depends on
// nothing else; indices within a micro-batch rise. Sequences of length 0 are left out. Any
// partition gives the same gradient up to rounding, because coefficients are global.
std::vector<std::vector<uint32_t>> Pack(absl::Span<const PackItem> items, uint32_t max_tokens);

// Cuts `count` groups into `parts` runs of nearly equal length, in order: part p is [result[p],
// result[p + 1]).
std::vector<uint32_t> CutEvenly(uint32_t count, uint32_t parts);

}  // namespace sluice::trainer
