#include "services/trainer/core/updater.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/algorithms/distill.h"
#include "common/algorithms/min_variance.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/models/flops.h"
#include "common/models/moe.h"
#include "common/models/train_model.h"
#include "services/trainer/core/critic.h"
#include "services/trainer/core/losses/losses.h"
#include "services/trainer/core/step_metrics.h"

namespace sluice::trainer {
namespace {

// Accumulators of AddGroupGradients(): the gradient of one answer, and the sum over the group.
constexpr int kAnswer = 2, kGroup = 3;

// Importance weights of a smaller mean are not divided by it.
constexpr double kLeastMeanWeight = 1e-8;

// Number of rows to score whose experts were recorded when the token was sampled.
int64_t CountRecordedRows(const PackedBatch& batch) {
  const size_t experts = batch.routing.size() / batch.tokens.size();  // Entries per token.
  if (experts == 0) return 0;
  return std::count_if(batch.score_rows.begin(), batch.score_rows.end(),
                       [&](int64_t row) { return batch.routing[row * experts] != kAnyExpert; });
}

}  // namespace

bool UpdateSums::finite() const {
  return std::isfinite(policy + regular + kl + entropy) && values.finite();
}

void UpdateSums::Merge(const UpdateSums& other) {
  stats.Merge(other.stats);
  bad_logprobs += other.bad_logprobs;
  policy += other.policy;
  regular += other.regular;
  router_balance += other.router_balance;
  kl += other.kl;
  entropy += other.entropy;
  tokens += other.tokens;
  recorded += other.recorded;
  flops += other.flops;
  pairs.Merge(other.pairs);
  distill.Merge(other.distill);
  values.Merge(other.values);
}

Updater::Updater(const Settings& settings, const Rules& rules, bool separate_terms,
                 const Models& models, Critic* critic, Optimizer* optimizer, Ranks* ranks,
                 Clock* clock)
    : settings_(settings),
      rules_(rules),
      regular_accumulator_(separate_terms ? 1 : 0),
      model_(models.policy),
      critic_(critic),
      optimizer_(optimizer),
      ranks_(ranks),
      clock_(clock),
      scorer_(settings, rules, models, ranks) {}

void Updater::ZeroGrad() {
  optimizer_->ZeroGrad();
  if (critic_ != nullptr) critic_->optimizer().ZeroGrad();
}

void Updater::Count(const MicroBatch& batch, UpdateSums* sums) const {
  sums->tokens += static_cast<int64_t>(batch.targets.size());
  sums->recorded += CountRecordedRows(batch.packed);
  sums->flops += TrainingFlops(model_->config(), batch.packed.positions,
                               static_cast<int64_t>(batch.targets.size()));
}

absl::Status Updater::AddGradients(MicroBatch& batch, UpdateSums* sums) {
  Count(batch, sums);
  SLUICE_RETURN_IF_ERROR(scorer_.SetReference(batch));
  SLUICE_RETURN_IF_ERROR(scorer_.SetTeacher(batch));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<TeacherRows> teacher,
                          scorer_.ComputeTeacherRows(batch));
  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          Score(batch, teacher.has_value() ? &*teacher : nullptr));
  return settings_.kind == Settings::Kind::kSft ? AddSftGradients(batch, scores, sums)
                                                : AddPolicyGradients(batch, scores, sums);
}

absl::StatusOr<TokenScores> Updater::Score(const MicroBatch& batch,
                                           const TeacherRows* teacher) const {
  return model_->Score(batch.packed, batch.targets, settings_.temperature, teacher,
                       batch.balance.expert_weights.empty() ? nullptr : &batch.balance);
}

absl::Status Updater::AddSftGradients(const MicroBatch& batch, const TokenScores& scores,
                                      UpdateSums* sums) {
  const at::Tensor loss = SftTerm(scores.logprobs);
  const double value = loss.item<double>();
  sums->policy += value;
  if (!std::isfinite(value)) ++sums->bad_logprobs;
  return model_->Backward(loss + BalanceTerm(batch, scores, sums));
}

at::Tensor Updater::BalanceTerm(const MicroBatch& batch, const TokenScores& scores,
                                UpdateSums* sums) {
  if (!scores.router_balance.defined()) return at::zeros({}, at::kFloat);
  const double value = scores.router_balance.item<double>();
  sums->router_balance += value;
  sums->regular += batch.balance_factor * value;
  return batch.balance_factor * scores.router_balance;
}

absl::Status Updater::AddPolicyGradients(const MicroBatch& batch, const TokenScores& scores,
                                         UpdateSums* sums) {
  const LossRule& rule = rules_.loss;
  const PolicyTokens tokens{.offsets = batch.offsets,
                            .lp_theta = {},
                            .lp_prox = batch.prox,
                            .lp_behav = batch.behavior,
                            .lp_ref = batch.ref,
                            .advantage = batch.advantage,
                            .allowed = batch.allowed,
                            .lp_snap = batch.older,
                            .lp_teacher = batch.teacher};
  LossTerms terms;
  at::Tensor regular;
  try {
    terms = ComputeLossTerms(rule, scores.logprobs, scores.entropy, tokens, batch.weight,
                             &sums->stats, batch.staleness, &sums->distill);
    regular = rule.kl_coef * terms.kl - rule.entropy_coef * terms.entropy;
    if (scores.teacher_kl.defined())
      regular = regular + rule.distill.coef * DistillTerm(batch, scores, &sums->distill);
    sums->regular += regular.item<double>();
    regular = regular + BalanceTerm(batch, scores, sums);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loss: ", e.what()));
  }

  sums->policy += terms.policy.item<double>();
  sums->kl += terms.kl_sum;
  sums->entropy += scores.entropy.sum().item<double>();

  if (!rules_.HasRegularTerms()) return model_->Backward(terms.policy);
  if (policy_accumulator_ == regular_accumulator_) return model_->Backward(terms.policy + regular);

  // The two terms get different factors later, so their gradients go to different accumulators.
  SLUICE_RETURN_IF_ERROR(model_->Backward(terms.policy, /*keep_graph=*/true));
  // A backward pass must begin at the output of the last layer to enter all units of the model,
  // but the balance of the experts begins within the layers.
  if (scores.router_balance.defined()) regular = regular + 0 * scores.logprobs.sum();
  optimizer_->SelectAccumulator(regular_accumulator_);
  const absl::Status status = model_->Backward(regular);
  optimizer_->SelectAccumulator(policy_accumulator_);
  return status;
}

at::Tensor Updater::DistillTerm(const MicroBatch& batch, const TokenScores& scores,
                                DistillSums* sums) const {
  std::vector<double> weight(batch.targets.size(), batch.token_weight);
  const at::Tensor kl = scores.teacher_kl.detach(), logprobs = scores.logprobs.detach();
  for (size_t t = 0; t < weight.size(); ++t) {
    const int64_t row = static_cast<int64_t>(t);
    sums->kl += kl.const_data_ptr<float>()[row];
    if (IsInTrustRegion(rules_.loss.distill, logprobs.const_data_ptr<float>()[row],
                        batch.behavior[t]))
      continue;
    weight[t] = 0;
    ++sums->left_out;
  }
  return (scores.teacher_kl * at::tensor(weight, at::kFloat)).sum();
}

// The gradient of a group is sum_i (A_i - b) g_i, where g_i is the gradient of answer i at
// advantage 1, and the baseline b depends on the norms of all g_i. Accumulator 0 collects
// sum_i A_i g_i and kGroup sum_i g_i, so that b can be subtracted at the end.
absl::Status Updater::AddGroupGradients(absl::Span<MicroBatch> answers, UpdateSums* sums) {
  std::vector<double> advantages, power(answers.size());
  for (const MicroBatch& answer : answers) advantages.push_back(answer.advantage.front());
  // Without a difference there is nothing to learn, but KL and entropy have gradients.
  if (absl::c_all_of(advantages, [&](double a) { return a == advantages[0]; })) {
    for (MicroBatch& answer : answers) {
      absl::c_fill(answer.advantage, 0.0f);
      SLUICE_RETURN_IF_ERROR(AddGradients(answer, sums));
    }
    return absl::OkStatus();
  }

  std::vector<UpdateSums> answer_sums(answers.size());
  policy_accumulator_ = kAnswer;
  absl::Status status;
  for (size_t i = 0; i < answers.size() && status.ok(); ++i) {
    absl::c_fill(answers[i].advantage, 1.0f);
    optimizer_->SelectAccumulator(kAnswer);
    status = AddGradients(answers[i], &answer_sums[i]);
    // Without the aggregation's weight, which is 1/T_i for a mean over tokens.
    const double weight = answers[i].weight.front();
    power[i] = optimizer_->SquaredNorm(kAnswer) / (weight * weight);
    optimizer_->AddScaled(kAnswer, advantages[i], 0);
    optimizer_->AddScaled(kAnswer, 1, kGroup);
    optimizer_->Zero(kAnswer);
  }
  policy_accumulator_ = 0;
  const double baseline = MinVarianceBaseline(advantages, power);
  optimizer_->AddScaled(kGroup, -baseline, 0);
  optimizer_->Zero(kGroup);
  optimizer_->SelectAccumulator(0);

  for (size_t i = 0; i < answers.size(); ++i) {
    const double advantage = advantages[i] - baseline;
    answer_sums[i].policy *= advantage;
    answer_sums[i].stats.ScaleAdvantages(advantage);
    sums->Merge(answer_sums[i]);
  }
  return status;
}

absl::Status Updater::AddPairGradients(absl::Span<MicroBatch> batches, UpdateSums* sums) {
  PairSums pairs(batches);
  for (size_t i = 0; i < batches.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(scorer_.SetReference(batches[i]));
    pairs.SetReference(batches[i], batches[i].ref);
    // The gradient of an answer depends on the log-probs of the other one, which is elsewhere.
    if (!pairs.IsSplit(i)) continue;
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> logprobs, scorer_.Logprobs(batches[i]));
    pairs.SetPolicy(batches[i], logprobs);
  }

  for (const MicroBatch& batch : batches) {
    Count(batch, sums);
    SLUICE_ASSIGN_OR_RETURN(const TokenScores scores, Score(batch, nullptr));
    const at::Tensor logprobs = scores.logprobs.contiguous();
    pairs.SetPolicy(batch, absl::MakeConstSpan(logprobs.const_data_ptr<float>(),
                                               static_cast<size_t>(logprobs.numel())));
    double loss = 0;
    const std::vector<float> gradient = pairs.Gradient(
        batch, settings_.dpo.beta, settings_.dpo.label_smoothing, &loss, &sums->pairs);
    sums->policy += loss;
    if (!std::isfinite(loss)) ++sums->bad_logprobs;
    SLUICE_RETURN_IF_ERROR(model_->Backward((logprobs * at::tensor(gradient)).sum() +
                                            BalanceTerm(batch, scores, sums)));
  }
  return absl::OkStatus();
}

absl::Status Updater::AddValueGradients(MicroBatch& batch, UpdateSums* sums) {
  return critic_->AddGradients(batch, &sums->values);
}

absl::StatusOr<std::optional<Optimizer::Gradient>> Updater::SumValueGradients(
    const UpdateSums& sums, const StepCounts& counts) {
  // The value loss is a mean over tokens, whatever aggregation the policy loss has.
  const double scale = 1 / static_cast<double>(counts.tokens);
  SLUICE_ASSIGN_OR_RETURN(const Optimizer::Gradient gradient,
                          critic_->optimizer().SumGradients(scale, 0));
  if (!sums.values.finite() || !std::isfinite(gradient.norm)) return std::nullopt;
  return gradient;
}

absl::Status Updater::ApplyValueGradients(const UpdateSums& sums,
                                          const Optimizer::Gradient& gradient, StepResult* result) {
  SLUICE_ASSIGN_OR_RETURN(const Optimizer::Outcome outcome, critic_->optimizer().Apply(gradient));
  AddValueMetrics(sums.values, &result->metrics);
  result->metrics["value_grad_norm"] = outcome.grad_norm;
  result->metrics["value_lr"] = outcome.lr;
  return absl::OkStatus();
}

absl::StatusOr<std::string> Updater::UpdateCritic(UpdateSums& sums, const StepCounts& counts,
                                                  StepResult* result) {
  if (counts.tokens == 0) return "no_tokens";
  SLUICE_RETURN_IF_ERROR(ranks_->Merge(&sums));
  const absl::Duration start = clock_->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(const std::optional<Optimizer::Gradient> gradient,
                          SumValueGradients(sums, counts));
  if (!gradient.has_value()) return "nonfinite_value";
  SLUICE_RETURN_IF_ERROR(ApplyValueGradients(sums, *gradient, result));
  result->seconds_optim += absl::ToDoubleSeconds(clock_->Monotonic() - start);
  return "";
}

absl::StatusOr<std::string> Updater::Update(UpdateSums& sums, const StepCounts& counts,
                                            double advantage_factor, StepResult* result) {
  // All ranks have the same counts and, once merged, the same sums, so they decide alike.
  if (counts.tokens == 0) return "no_tokens";
  SLUICE_RETURN_IF_ERROR(ranks_->Merge(&sums));
  // Without finite values there are no advantages either.
  if (!sums.values.finite()) return "nonfinite_value";
  if (sums.stats.bad_policy() > 0 || sums.bad_logprobs > 0) return "nonfinite_logprob";
  const std::optional<PolicyMetrics> metrics = sums.stats.Metrics();
  // Without KL and entropy terms, a loss that rejects every token has no gradient.
  AddPolicyMetrics(sums.stats, rules_.loss, advantage_factor, &result->metrics);
  if (settings_.kind == Settings::Kind::kRl && !rules_.HasRegularTerms() &&
      (!metrics.has_value() || metrics->kept == 0)) {
    return "no_terms";
  }

  const double scale = rules_.loss.aggregation.step_scale(counts, settings_.max_response);
  double policy_factor = advantage_factor, lr_factor = 1;
  if (metrics.has_value()) {
    if (rules_.loss.normalize_weights && metrics->weight_mean > kLeastMeanWeight)
      policy_factor /= metrics->weight_mean;
    if (rules_.loss.ess_power > 0) {
      lr_factor = EssFactor(metrics->ess_seq, rules_.loss.ess_base, rules_.loss.ess_power);
      result->metrics["ess_lr_factor"] = lr_factor;
    }
  }
  const absl::Duration start = clock_->Monotonic();
  std::optional<Optimizer::Gradient> of_values;
  if (critic_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(of_values, SumValueGradients(sums, counts));
    if (!of_values.has_value()) return "nonfinite_value";
  }
  SLUICE_ASSIGN_OR_RETURN(const Optimizer::Outcome outcome,
                          optimizer_->Update(scale * policy_factor, scale, lr_factor));
  if (outcome.applied && of_values.has_value())
    SLUICE_RETURN_IF_ERROR(ApplyValueGradients(sums, *of_values, result));
  result->seconds_optim += absl::ToDoubleSeconds(clock_->Monotonic() - start);
  if (!outcome.applied) return "nonfinite_gradient";

  // The step's loss is that of the updates that changed the parameters.
  result->loss += scale * (policy_factor * sums.policy + sums.regular);
  result->grad_norm = outcome.grad_norm;
  result->lr = outcome.lr;
  return "";
}

}  // namespace sluice::trainer
