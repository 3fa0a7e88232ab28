#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::trainer {

// The size of one sequence in a micro-batch: `length` tokens, of which the first `shared` are the
// same in all sequences of its group and are stored only once.
struct PackItem {
  uint32_t group = 0;
  uint32_t length = 0;
  uint32_t shared = 0;
};

// Divides sequences into micro-batches, each the input of one forward pass: lists of indices into
// `items`. The items of a group must be adjacent. A micro-batch holds at most `max_tokens` tokens,
// but a longer sequence gets one of its own. A group stays together if it fits, else it is split.
//
// The parts are placed largest first, each into the first micro-batch that has room; equal parts
// keep the given order. So the result depends only on the arguments. The indices within a
// micro-batch rise. Sequences of length 0 are left out. Every partition gives the same gradient up
// to rounding, because the coefficients are those of the whole step.
std::vector<std::vector<uint32_t>> Pack(absl::Span<const PackItem> items, uint32_t max_tokens);

// Cuts `count` groups into `parts` runs of nearly equal length, in order: part p is [result[p],
// result[p + 1]).
std::vector<uint32_t> CutEvenly(uint32_t count, uint32_t parts);

}  // namespace sluice::trainer
