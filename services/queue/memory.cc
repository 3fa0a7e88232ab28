#include "services/queue/memory.h"

#include <algorithm>

#include "common/base/machine_memory.h"

namespace sluice::queue {

uint64_t DefaultMemory() { return MachineMemory() / 2; }

namespace {
// The share of a job at a common level: at least what it needs, at most its quota.
uint64_t ClampShare(const MemoryClaim& claim, uint64_t level) {
  return std::clamp(level, claim.needed, std::max(claim.needed, claim.quota));
}

uint64_t SumAt(absl::Span<const MemoryClaim> claims, uint64_t level) {
  uint64_t sum = 0;
  for (const MemoryClaim& claim : claims) sum += ClampShare(claim, level);
  return sum;
}
}  // namespace

std::vector<uint64_t> FairShares(uint64_t limit, absl::Span<const MemoryClaim> claims) {
  // Find the highest level at which all shares fit.
  uint64_t low = 0, high = limit;
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    if (SumAt(claims, middle) <= limit) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }

  std::vector<uint64_t> shares;
  // `over`: reserved above the shares. `room`: what the others may still reserve below theirs.
  uint64_t over = 0, room = 0;
  for (const MemoryClaim& claim : claims) {
    const uint64_t share = shares.emplace_back(ClampShare(claim, low));
    (claim.reserved > share ? over : room) +=
        claim.reserved > share ? claim.reserved - share : share - claim.reserved;
  }

  if (over == 0 || room == 0) return shares;

  // What is held above the shares is withheld from the others, in proportion to their room.
  for (size_t i = 0; i < claims.size(); ++i) {
    const uint64_t held = claims[i].reserved;
    if (held >= shares[i]) continue;
    const double lack = static_cast<double>(shares[i] - held);
    const double withheld =
        lack * std::min(1.0, static_cast<double>(over) / static_cast<double>(room));
    shares[i] -= std::min(shares[i] - held, static_cast<uint64_t>(withheld) + 1);
  }
  return shares;
}

}  // namespace sluice::queue
