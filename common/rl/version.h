#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

// A set of weights: the trainers' gang that made it, and the training steps it contains in full (0:
// the initial checkpoint). Ordered as a pair: after a restore the number may go back, the pair
// never does. Staleness counts in number.
struct PolicyVersion {
  int64_t incarnation = 0;
  int64_t number = 0;

  auto operator<=>(const PolicyVersion&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PolicyVersion& v) {
    return H::combine(std::move(h), v.incarnation, v.number);
  }
  std::string str() const { return absl::StrCat(incarnation, ":", number); }
};

// `count` tokens in a row, sampled under one version of one policy (index in the job's list of
// policies).
struct VersionRun {
  PolicyVersion version;
  uint32_t count = 0;
  uint32_t policy = 0;

  auto operator<=>(const VersionRun&) const = default;
};

}  // namespace sluice
