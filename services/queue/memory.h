#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

// How the daemon's memory is divided among its jobs.
namespace sluice::queue {

// Half of the machine's memory, or of the control group's limit if that is lower.
uint64_t DefaultMemory();

// The needs of one job, in bytes.
struct MemoryClaim {
  uint64_t needed = 0;    // Its worst case: with less it cannot go on.
  uint64_t quota = 0;     // The most that it may ever get; at least `needed`.
  uint64_t reserved = 0;  // What it has reserved now.
};

// Divides `limit` among jobs max-min fairly: all get the same share, except that none gets less
// than it needs or more than its quota.
//
// A job that has reserved more than its share keeps it but gets no more, and the shares of the
// others grow only as it gives memory back. So the sum over all jobs of max(share, reserved) never
// exceeds `limit`, if the sums of `reserved` and of `needed` did not exceed it before.
std::vector<uint64_t> FairShares(uint64_t limit, absl::Span<const MemoryClaim> claims);

}  // namespace sluice::queue
