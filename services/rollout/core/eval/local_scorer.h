#pragma once

#include <string>

#include "common/scoring/scorer.h"
#include "services/rollout/core/eval/row_scoring.h"

namespace sluice {

// Scores rows of the data source or dataset `source` with the rewards of `scorer`, in this process.
// `scorer` outlives the result.
EvalScorer MakeLocalScorer(const Scorer* scorer, std::string source);

// The verdict that a score stands for.
absl::StatusOr<EvalVerdict> VerdictOf(const Score& score);

}  // namespace sluice
