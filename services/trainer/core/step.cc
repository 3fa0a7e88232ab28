#include "services/trainer/core/step.h"

namespace sluice::trainer {

absl::string_view SkipText(absl::string_view reason) {
  if (reason == "no_tokens") return "no token of the batch may be trained";
  if (reason == "no_terms") {
    return "the loss rejects every token, because the policy is too far from the one that sampled "
           "it; a lower "
           "trainer.optimizer.lr or queue.max_staleness keeps them together";
  }
  if (reason == "nonfinite_logprob") {
    return "log-probabilities are not finite: the weights have diverged; go on from an earlier "
           "checkpoint with a lower "
           "trainer.optimizer.lr";
  }
  if (reason == "nonfinite_gradient") {
    return "the gradient is not finite; go on from an earlier checkpoint with a lower "
           "trainer.optimizer.lr, or in float32";
  }
  if (reason == "nonfinite_value") {
    return "the critic's values are not finite: it has diverged; go on from an earlier checkpoint "
           "with a lower trainer.critic.lr";
  }
  return "";
}

}  // namespace sluice::trainer
