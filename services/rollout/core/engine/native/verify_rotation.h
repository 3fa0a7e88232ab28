#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// Decides which tensors are read again when, so that a bit that flips at rest is found within
// kGroups activations: the tensors are in kGroups groups of about equal size, which take turns. It
// also keeps when each tensor was last found right, counted in sampled tokens.
class VerifyRotation {
 public:
  static constexpr int kGroups = 8;

  // `bytes` are the sizes of the tensors, by number. All have just been found right.
  explicit VerifyRotation(absl::Span<const int64_t> bytes);

  // The tensors whose turn it is. Empty if there are fewer tensors than groups.
  const std::vector<int64_t>& next() const { return groups_[next_]; }
  // The tensors of next() were found right after `tokens` tokens had been sampled.
  void Pass(uint64_t tokens);
  void PassAll(uint64_t tokens);
  // The weights have changed: from now on complete() is about these.
  void Restart() { passed_ = 0; }
  // Whether all tensors were found right since the last Restart().
  bool complete() const { return passed_ >= kGroups; }
  // How many tokens had been sampled when this tensor was last found right.
  uint64_t right_at(int64_t tensor) const { return right_at_[group_of_[tensor]]; }

 private:
  std::vector<std::vector<int64_t>> groups_;  // [kGroups], tensors in rising order.
  std::vector<int> group_of_;                 // By tensor.
  std::vector<uint64_t> right_at_;            // [kGroups]
  int next_ = 0;
  int passed_ = kGroups;  // Groups that passed since Restart(), at most kGroups.
};

}  // namespace sluice
