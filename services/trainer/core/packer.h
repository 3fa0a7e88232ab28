#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::trainer {

// Divides sequences into micro-batches that one forward takes: lists of indices into `lengths`. Each holds at most
// `max_tokens` tokens, but a longer sequence stands alone. Longest first into the first micro-batch with room, ties in
// the order given, so the result depends on nothing else; indices within a micro-batch rise. Sequences of length 0 are
// left out. Any partition gives the same gradient up to rounding, because coefficients are global.
std::vector<std::vector<uint32_t>> Pack(absl::Span<const uint32_t> lengths, uint32_t max_tokens);

// Cuts `count` groups into `parts` runs of nearly equal length, in order: part p is [result[p], result[p + 1]).
std::vector<uint32_t> CutEvenly(uint32_t count, uint32_t parts);

}  // namespace sluice::trainer
