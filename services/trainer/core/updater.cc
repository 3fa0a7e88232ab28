#include "services/trainer/core/updater.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/models/moe.h"
#include "common/models/train_model.h"
#include "services/trainer/core/losses/losses.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/step_metrics.h"

namespace sluice::trainer {
namespace {

// Computes the log-probs [N] of the batch's targets, without gradients.
absl::StatusOr<std::vector<float>> Score(TrainModel& model, const MicroBatch& batch,
                                         double temperature) {
  const at::NoGradGuard no_grad;
  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          model.Score(batch.packed, batch.targets, temperature));
  const at::Tensor logprobs = scores.logprobs.contiguous();
  const float* data = logprobs.const_data_ptr<float>();
  return std::vector<float>(data, data + logprobs.numel());
}

// Number of rows to score whose experts were recorded when the token was sampled.
int64_t CountRecordedRows(const PackedBatch& batch) {
  const size_t experts = batch.routing.size() / batch.tokens.size();  // Entries per token.
  if (experts == 0) return 0;
  return std::count_if(batch.score_rows.begin(), batch.score_rows.end(),
                       [&](int64_t row) { return batch.routing[row * experts] != kAnyExpert; });
}

}  // namespace

bool UpdateSums::finite() const { return std::isfinite(policy + regular + kl + entropy); }

Updater::Updater(const Settings& settings, const Rules& rules, bool separate_terms,
                 TrainModel* model, TrainModel* reference, Optimizer* optimizer, Clock* clock)
    : settings_(settings),
      rules_(rules),
      separate_terms_(separate_terms),
      model_(model),
      reference_(reference),
      optimizer_(optimizer),
      clock_(clock) {}

absl::Status Updater::ScoreProximal(MicroBatch& batch) {
  SLUICE_ASSIGN_OR_RETURN(batch.prox, Score(*model_, batch, settings_.temperature));
  return absl::OkStatus();
}

void Updater::ZeroGrad() { optimizer_->ZeroGrad(); }

absl::Status Updater::AddGradients(MicroBatch& batch, UpdateSums* sums) {
  sums->tokens += static_cast<int64_t>(batch.targets.size());
  sums->recorded += CountRecordedRows(batch.packed);
  if (reference_ != nullptr && rules_.loss.kl != nullptr) {
    // The reference policy chooses its experts itself, so it gets no routing.
    std::vector<uint16_t> routing = std::exchange(batch.packed.routing, {});
    SLUICE_ASSIGN_OR_RETURN(batch.ref, Score(*reference_, batch, settings_.temperature));
    batch.packed.routing = std::move(routing);
  }

  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          model_->Score(batch.packed, batch.targets, settings_.temperature));
  return settings_.kind == Settings::Kind::kSft ? AddSftGradients(scores.logprobs, sums)
                                                : AddPolicyGradients(batch, scores, sums);
}

absl::Status Updater::AddSftGradients(const at::Tensor& logprobs, UpdateSums* sums) {
  const at::Tensor loss = SftTerm(logprobs);
  const double value = loss.item<double>();
  sums->policy += value;
  if (!std::isfinite(value)) ++sums->bad_logprobs;
  return Backward(loss);
}

absl::Status Updater::AddPolicyGradients(const MicroBatch& batch, const TokenScores& scores,
                                         UpdateSums* sums) {
  const LossRule& rule = rules_.loss;
  const PolicyTokens tokens{.offsets = batch.offsets,
                            .lp_theta = {},
                            .lp_prox = batch.prox,
                            .lp_behav = batch.behavior,
                            .lp_ref = batch.ref,
                            .advantage = batch.advantage};
  LossTerms terms;
  try {
    terms =
        ComputeLossTerms(rule, scores.logprobs, scores.entropy, tokens, batch.weight, &sums->stats);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loss: ", e.what()));
  }
  const at::Tensor regular = rule.kl_coef * terms.kl - rule.entropy_coef * terms.entropy;

  sums->policy += terms.policy.item<double>();
  sums->regular += regular.item<double>();
  sums->kl += terms.kl_sum;
  sums->entropy += scores.entropy.sum().item<double>();

  if (!rules_.HasRegularTerms()) return Backward(terms.policy);
  if (!separate_terms_) return Backward(terms.policy + regular);

  // The two terms get different factors in Update(), so their gradients go to different
  // accumulators.
  SLUICE_RETURN_IF_ERROR(Backward(terms.policy, /*keep_graph=*/true));
  optimizer_->SelectAccumulator(1);
  const absl::Status status = Backward(regular);
  optimizer_->SelectAccumulator(0);
  return status;
}

std::string Updater::Update(const UpdateSums& sums, const StepCounts& counts,
                            double advantage_factor, StepResult* result) {
  if (counts.tokens == 0) return "no_tokens";
  if (sums.stats.bad_policy() > 0 || sums.bad_logprobs > 0) return "nonfinite_logprob";
  const std::optional<PolicyMetrics> metrics = sums.stats.Metrics();
  // Without KL and entropy terms, a loss that rejects every token has no gradient.
  if (settings_.kind == Settings::Kind::kRl && !rules_.HasRegularTerms() &&
      (!metrics.has_value() || metrics->kept == 0)) {
    return "no_terms";
  }

  const double scale = rules_.loss.aggregation.step_scale(counts, settings_.max_response);
  const absl::Duration start = clock_->Monotonic();
  const Optimizer::Outcome outcome = optimizer_->Update(scale * advantage_factor, scale);
  result->seconds_optim += absl::ToDoubleSeconds(clock_->Monotonic() - start);
  if (metrics.has_value()) AddPolicyMetrics(*metrics, advantage_factor, &result->metrics);
  if (!outcome.applied) return "nonfinite_gradient";

  // The step's loss is that of the updates that changed the parameters.
  result->loss += scale * (advantage_factor * sums.policy + sums.regular);
  result->grad_norm = outcome.grad_norm;
  result->lr = outcome.lr;
  return "";
}

}  // namespace sluice::trainer
