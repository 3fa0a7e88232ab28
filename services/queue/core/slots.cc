#include "services/queue/core/slots.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice::queue {

std::optional<int64_t> SlotTable::LowestFree(int64_t first, int64_t last) const {
  free_ = first < first_ ? first : std::max(free_, first);
  first_ = first;
  while (free_ <= last && full(free_)) ++free_;
  return free_ <= last ? std::optional(free_) : std::nullopt;
}

void SlotTable::Take(int64_t step, uint64_t group) {
  std::set<uint64_t>& holders = steps_[step];
  SLUICE_CHECK(holders.size() < limit_);
  SLUICE_CHECK(holders.insert(group).second);
}

void SlotTable::Free(int64_t step, uint64_t group) {
  const auto it = steps_.find(step);
  SLUICE_CHECK(it != steps_.end() && it->second.erase(group) == 1);
  if (it->second.empty()) steps_.erase(it);
  free_ = std::min(free_, std::max(step, first_));
}

const std::set<uint64_t>& SlotTable::holders(int64_t step) const {
  static const auto* const kNone = new std::set<uint64_t>();
  const auto it = steps_.find(step);
  return it == steps_.end() ? *kNone : it->second;
}

}  // namespace sluice::queue
