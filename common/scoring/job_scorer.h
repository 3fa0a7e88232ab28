#pragma once

#include "absl/status/statusor.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class Reward;
class RewardEntry;
}  // namespace sluice::job::v1

namespace sluice {

// What the verifier of an entry is made with, `args` as JSON.
absl::StatusOr<nlohmann::json> VerifierArgs(const job::v1::RewardEntry& entry);

// Makes the scorer of a `reward` block that CheckBuilt() accepts. Errors as Scorer::Make.
absl::StatusOr<Scorer> MakeScorer(const job::v1::Reward& reward);

}  // namespace sluice
