#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace sluice {

// How this process computes its share of a long sequence together with others (context
// parallelism). Each computes some parts of the sequence, and they exchange the keys and values of
// each layer. All make the same pass on the same batch.
struct SequenceShare {
  int rank = 0, world = 1;
  // Copies the values of rank `owner` to all ranks, or adds up those of all ranks on rank `owner`;
  // what the other ranks have after a sum is undefined. All ranks call them in the same order, with
  // spans of equal sizes. The pass ends at the first error.
  std::function<absl::Status(int owner, absl::Span<float> values)> copy_from, sum_to;
};

}  // namespace sluice
