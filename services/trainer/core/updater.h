#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/algorithms/aggregation.h"
#include "common/algorithms/diagnostics.h"
#include "common/algorithms/value_loss.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/pairs.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/scorer.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/step.h"

namespace sluice {
class Clock;
struct TokenScores;
class TrainModel;
}  // namespace sluice

namespace at {
class Tensor;
}

namespace sluice::trainer {

class Critic;

// Sums over the micro-batches of one update, without denominators. `policy` and `regular` (KL,
// entropy, the KL to a teacher and the balance of the experts) are terms of the loss with the
// aggregation's weights. `kl`, `entropy` and `distill` count each token once, for the means that
// are reported.
struct UpdateSums {
  PolicyStats stats;
  int64_t bad_logprobs = 0;  // Micro-batches of supervised data whose log-probs are not finite.
  double policy = 0, regular = 0;
  double router_balance = 0;  // The load-balancing loss, without its coefficient.
  double kl = 0, entropy = 0;
  int64_t tokens = 0;
  int64_t recorded = 0;  // Those of `tokens` whose experts were recorded.
  double flops = 0;      // Of forward and backward; see TrainingFlops().
  PairStats pairs;       // Of the kind dpo.
  DistillSums distill;
  ValueStats values;  // Of the critic.

  // False if a token has made a sum NaN or infinite.
  bool finite() const;
  void Merge(const UpdateSums& other);
};

// Computes the gradients of micro-batches, and makes updates from them. Not thread-safe.
class Updater {
 public:
  // All arguments outlive the updater. `critic` is null if the job has none.
  // `separate_terms`: the factor of the policy term is known only at the end of the step, so its
  // gradients and those of KL and entropy are accumulated apart.
  Updater(const Settings& settings, const Rules& rules, bool separate_terms, const Models& models,
          Critic* critic, Optimizer* optimizer, Ranks* ranks, Clock* clock);

  Scorer& scorer() { return scorer_; }
  Ranks& ranks() { return *ranks_; }
  Critic* critic() { return critic_; }

  // Sets all gradients to 0, also those of the critic.
  void ZeroGrad();
  // Runs forward and backward of one micro-batch. Adds its gradients to those of the update, and
  // its terms to *sums.
  absl::Status AddGradients(MicroBatch& batch, UpdateSums* sums);
  // The same for the answers of one group under the baseline of minimum variance (min_variance.h),
  // which needs the gradient of each answer by itself. Each micro-batch holds one answer; all its
  // tokens have one advantage, from which the baseline is subtracted.
  absl::Status AddGroupGradients(absl::Span<MicroBatch> answers, UpdateSums* sums);

  // The same for the pairs of answers of an update (kind dpo), which are all in `batches`.
  absl::Status AddPairGradients(absl::Span<MicroBatch> batches, UpdateSums* sums);

  // The same for the critic of the job.
  absl::Status AddValueGradients(MicroBatch& batch, UpdateSums* sums);

  // Makes one update from the gradients that all ranks have added. `counts` are those of the
  // update. `sums` are those of this rank, and become those of all ranks. The advantages of the
  // policy term are multiplied by `advantage_factor`. Sets lr, grad_norm and the policy metrics of
  // *result, and adds to its loss and seconds_optim. Returns an empty string, or why there was no
  // update (StepResult::skipped). The critic is updated if and only if the policy is.
  absl::StatusOr<std::string> Update(UpdateSums& sums, const StepCounts& counts,
                                     double advantage_factor, StepResult* result);
  // The same for the critic alone, whose gradients are the only ones.
  absl::StatusOr<std::string> UpdateCritic(UpdateSums& sums, const StepCounts& counts,
                                           StepResult* result);

 private:
  // Adds to *sums what the forward and backward pass of the batch is counted with.
  void Count(const MicroBatch& batch, UpdateSums* sums) const;
  // Adds up the critic's gradients over the ranks. Returns nullopt if a number is not finite.
  absl::StatusOr<std::optional<Optimizer::Gradient>> SumValueGradients(const UpdateSums& sums,
                                                                       const StepCounts& counts);
  // Makes the critic's update and sets its metrics.
  absl::Status ApplyValueGradients(const UpdateSums& sums, const Optimizer::Gradient& gradient,
                                   StepResult* result);
  // Scores the batch as its loss needs it.
  absl::StatusOr<TokenScores> Score(const MicroBatch& batch, const TeacherRows* teacher) const;
  absl::Status AddSftGradients(const MicroBatch& batch, const TokenScores& scores,
                               UpdateSums* sums);
  // Returns the load-balancing term of the loss, or 0 if the loss has none. Adds to *sums.
  static at::Tensor BalanceTerm(const MicroBatch& batch, const TokenScores& scores,
                                UpdateSums* sums);
  // The term of the KL to the teacher. Adds to *sums.
  at::Tensor DistillTerm(const MicroBatch& batch, const TokenScores& scores,
                         DistillSums* sums) const;
  absl::Status AddPolicyGradients(const MicroBatch& batch, const TokenScores& scores,
                                  UpdateSums* sums);

  const Settings& settings_;
  const Rules& rules_;
  // The accumulators of the optimizer to which the terms go.
  int policy_accumulator_ = 0;
  const int regular_accumulator_;
  TrainModel* const model_;
  Critic* const critic_;
  Optimizer* const optimizer_;
  Ranks* const ranks_;
  Clock* const clock_;
  Scorer scorer_;
};

}  // namespace sluice::trainer
