#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

// Who may reserve how much of the daemon's memory.
namespace sluice::queue {

// Half of what the machine has, or of what the control group allows where that is less.
uint64_t DefaultMemory();

// What one job asks for, in bytes.
struct MemoryClaim {
  uint64_t needed = 0;    // Its worst case: below this it stands still.
  uint64_t quota = 0;     // At least `needed`: more it may never have.
  uint64_t reserved = 0;  // What it holds now.
};

// Shares `limit` among jobs: each gets what it needs, and of the rest, up to its quota, as much as
// any other (max-min fair). A job that holds more than its share keeps it and gets no more; those
// below theirs rise to it only as that comes back. So for all jobs together max(share, reserved)
// never exceeds `limit`, if they held no more than it, and needed no more.
std::vector<uint64_t> FairShares(uint64_t limit, absl::Span<const MemoryClaim> claims);

}  // namespace sluice::queue
