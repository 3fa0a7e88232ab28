#pragma once

#include "absl/status/statusor.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class Reward;
}  // namespace sluice::job::v1

namespace sluice {

// Makes the scorer of a `reward` block that CheckBuilt() accepts. Errors as Scorer::Make.
absl::StatusOr<Scorer> MakeScorer(const job::v1::Reward& reward);

}  // namespace sluice
