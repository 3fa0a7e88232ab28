#include "services/rollout/core/engine/native/verify_rotation.h"

#include <algorithm>
#include <numeric>

namespace sluice {

VerifyRotation::VerifyRotation(absl::Span<const int64_t> bytes)
    : groups_(kGroups), group_of_(bytes.size()), right_at_(kGroups) {
  // The largest tensors first, each into the group that is the smallest so far.
  std::vector<int64_t> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return bytes[a] > bytes[b]; });

  std::vector<int64_t> sizes(kGroups);
  for (const int64_t tensor : order) {
    const auto smallest = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
    sizes[smallest] += bytes[tensor];
    groups_[smallest].push_back(tensor);
    group_of_[tensor] = static_cast<int>(smallest);
  }
  for (std::vector<int64_t>& group : groups_) std::sort(group.begin(), group.end());
}

void VerifyRotation::Pass(uint64_t tokens) {
  right_at_[next_] = tokens;
  next_ = (next_ + 1) % kGroups;
  passed_ = std::min(passed_ + 1, kGroups);
}

void VerifyRotation::PassAll(uint64_t tokens) {
  std::fill(right_at_.begin(), right_at_.end(), tokens);
  passed_ = kGroups;
}

}  // namespace sluice
