#pragma once

#include "absl/status/statusor.h"
#include "common/algorithms/advantage.h"
#include "common/algorithms/gae.h"
#include "common/algorithms/kl_control.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/shaping.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// The algorithms that a job's settings name, looked up once. For the kinds sft and dpo only
// `loss.aggregation` and `loss.router_balance` have a meaning.
struct Rules {
  AdvantageRule advantage;
  Truncation truncation = Truncation::kKeep;
  LossRule loss;
  GaeRule gae;  // For TokenRule::kGae; its gamma for TokenRule::kReturns too.
  // Coefficient of the KL to the reference in the reward. With a target, `kl_control` changes it
  // after each step; it never becomes 0.
  double reward_kl = 0;
  KlControl kl_control;

  // Whether the loss has terms besides that of the policy: KL, entropy, the KL to a teacher, or the
  // balance of the experts.
  bool HasRegularTerms() const {
    return loss.kl != nullptr || loss.entropy_coef != 0 ||
           loss.distill.kind == DistillKind::kFull || loss.router_balance != 0;
  }
};

// Whether the factor of the policy term is known only at the end of the step, while other terms of
// the loss have another factor. Their gradients are then kept apart.
bool HasSeparateTerms(const Settings& settings, const Rules& rules);

// Number of versions of the weights that are kept for prox exact: those that may have sampled
// tokens of the next batch, while a step makes one more. 0 if tokens have no older versions, or
// prox is another one.
int KeptVersions(const Settings& settings, const Rules& rules);

// Number of gradients that a step keeps: one, one more for HasSeparateTerms(), and two for the
// answers of a group under the baseline of minimum variance.
int GradientBuffers(const Settings& settings, const Rules& rules);

// Whether the ranks can share all passes of a long sequence (Settings::context). A critic, a
// teacher over the whole vocabulary, the balance of experts and older versions have passes that the
// owner of the sequence makes alone.
bool SharesLongSequences(const Rules& rules);

// INVALID_ARGUMENT: a name is in no registry; the message lists the known ones.
absl::StatusOr<Rules> ResolveRules(const Settings& settings);

}  // namespace sluice::trainer
