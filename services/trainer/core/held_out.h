#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/pair_stats.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

class Ranks;
class Scorer;

// Sums over rows of supervised data that are scored and not trained on.
struct HeldOutSums {
  int64_t rows = 0;      // Those with a token to score; only these are in the other sums.
  int64_t left_out = 0;  // The others: an answer is too long, or the row cannot be read.
  int64_t tokens = 0;    // Of the answers, with their end tokens.
  // Of kind sft the sum over the tokens of -log p; of kind dpo the sum over the rows of DpoLoss().
  double loss = 0;
  PairStats pairs;  // Of kind dpo.

  void Merge(const HeldOutSums& other);
  // The mean that training minimises: of kind sft over the tokens, of kind dpo over the rows.
  // 0 if no row was scored.
  double MeanLoss() const;
};

// Scores the rows (kinds sft and dpo), one for each group, with the weights as they are now.
// Nothing is trained. The ranks share the work, and each then has the sums. They depend on neither
// the number of ranks nor the size of micro-batches.
// INVALID_ARGUMENT: columns differ in length, a first token is to be scored, or a row has not as
// many answers as the kind needs.
absl::StatusOr<HeldOutSums> ScoreHeldOut(const Settings& settings, absl::Span<const Group> groups,
                                         Ranks& ranks, Scorer* scorer);

}  // namespace sluice::trainer
