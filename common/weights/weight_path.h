#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/weights/fingerprint.h"
#include "common/weights/weight_source.h"

namespace sluice {

// A step of a path over the states of the weights.
struct WeightStep {
  WeightEdge edge;
  // The delta is applied backward, to get from its state to its base.
  bool backward = false;
};

// Returns the path to `target` with the fewest bytes, from the state `held`, if there is one, or
// from nothing. It is empty if there is none, or if `held` is the target.
std::vector<WeightStep> FindWeightPath(absl::Span<const WeightEdge> edges,
                                       const std::optional<Fingerprint>& held,
                                       const Fingerprint& target);

}  // namespace sluice
