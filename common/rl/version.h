#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {

// The version of a set of weights. `incarnation` is that of the trainer group that made it,
// and `number` counts the training steps that it contains in full (0: the initial checkpoint).
//
// Versions are ordered as pairs: after a restore the number may go back, but the pair never does.
// Staleness is counted in numbers.
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

// `count` consecutive tokens that were sampled under one version of one policy. `policy` is an
// index into the job's list of policies.
struct VersionRun {
  PolicyVersion version;
  uint32_t count = 0;
  uint32_t policy = 0;

  auto operator<=>(const VersionRun&) const = default;
};

}  // namespace sluice
