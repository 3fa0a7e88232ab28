#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace sluice::queue {

// A slot is the right of one group to be trained in a step. At most `limit` groups hold a slot of
// the same step. A slot is free again when its group is dropped or its batch is closed. Groups are
// named by ordinal, and each group keeps the step of its slot too.
class SlotTable {
 public:
  explicit SlotTable(uint32_t limit) : limit_(limit) {}

  uint32_t limit() const { return limit_; }
  uint32_t used(int64_t step) const {
    const auto it = steps_.find(step);
    return it == steps_.end() ? 0 : static_cast<uint32_t>(it->second.size());
  }
  bool full(int64_t step) const { return used(step) >= limit_; }

  // The lowest step in [first, last] with a free slot. It remembers which steps are full, so that
  // it need not look at them again.
  std::optional<int64_t> LowestFree(int64_t first, int64_t last) const;

  void Take(int64_t step, uint64_t group);
  void Free(int64_t step, uint64_t group);

  // Groups that hold a slot of `step`, oldest first.
  const std::set<uint64_t>& holders(int64_t step) const;
  const std::map<int64_t, std::set<uint64_t>>& steps() const { return steps_; }

 private:
  friend struct Access;  // dump.cc
  const uint32_t limit_;
  std::map<int64_t, std::set<uint64_t>> steps_;  // No empty sets.
  // Steps [first_, free_) are full, as the last search found.
  mutable int64_t first_ = 0, free_ = 0;
};

}  // namespace sluice::queue
