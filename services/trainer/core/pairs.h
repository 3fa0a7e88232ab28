#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/algorithms/preference.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/pair_stats.h"

namespace sluice::trainer {

// The log-probs of the two answers of a pair, each summed over the answer.
struct PairLogprobs {
  double chosen = 0, rejected = 0;
};
// Returns the loss of a pair (DpoLoss), and counts it in *stats unless that is null.
PairLoss ComparePair(const PairLogprobs& policy, const PairLogprobs& reference, double beta,
                     double smoothing, PairStats* stats);

// The answers of the pairs of one update: sequence 2p is the chosen answer of pair p, 2p + 1 the
// rejected one. Keeps what the loss of a pair needs of both, which may be in two micro-batches.
class PairSums {
 public:
  // `batches` hold the sequences of the update, all of them once.
  explicit PairSums(absl::Span<const MicroBatch> batches);

  // Whether the batch has an answer whose pair's other answer is in another batch.
  bool IsSplit(size_t batch) const { return split_[batch] != 0; }

  // Set the log-probs of the batch's answers, whose sums are kept. `logprobs` is [N].
  void SetReference(const MicroBatch& batch, absl::Span<const float> logprobs);
  void SetPolicy(const MicroBatch& batch, absl::Span<const float> logprobs);

  // Returns the derivative of the loss by each of the batch's log-probs [N]. Adds the losses of the
  // pairs whose chosen answer is in the batch to *loss, and counts these pairs. All log-probs of
  // the pairs must be set.
  std::vector<float> Gradient(const MicroBatch& batch, double beta, double smoothing, double* loss,
                              PairStats* stats) const;

 private:
  // By sequence.
  std::vector<double> policy_, reference_;
  std::vector<uint8_t> split_;  // By micro-batch.
};

}  // namespace sluice::trainer
