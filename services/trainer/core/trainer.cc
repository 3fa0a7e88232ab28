#include "services/trainer/core/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/algorithms/diagnostics.h"
#include "common/algorithms/registry.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/models/moe.h"
#include "common/models/parallel.h"
#include "common/models/train_model.h"
#include "services/trainer/core/losses/losses.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/packer.h"
#include "services/trainer/core/sequences.h"

namespace sluice::trainer {
namespace {

// Computes the log-probs [N] of the batch's targets, without gradients.
absl::StatusOr<std::vector<float>> Score(TrainModel& model, const MicroBatch& batch,
                                         double temperature) {
  const at::NoGradGuard no_grad;
  SLUICE_ASSIGN_OR_RETURN(const at::Tensor logits, model.Forward(batch.packed));
  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          ScoreTokens(logits, batch.targets, temperature));
  const at::Tensor logprobs = scores.logprobs.contiguous();
  const float* data = logprobs.const_data_ptr<float>();
  return std::vector<float>(data, data + logprobs.numel());
}

// Number of rows to score whose experts were recorded when the token was sampled.
int64_t RecordedRows(const PackedBatch& batch) {
  const size_t experts = batch.routing.size() / batch.tokens.size();  // Entries per token.
  if (experts == 0) return 0;
  return std::count_if(batch.score_rows.begin(), batch.score_rows.end(),
                       [&](int64_t row) { return batch.routing[row * experts] != kAnyExpert; });
}

absl::Status BackwardKeeping(const at::Tensor& loss, bool keep_graph) {
  try {
    loss.backward({}, /*retain_graph=*/keep_graph);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("backward: ", e.what()));
  }
}

// Sums over the micro-batches of one update, without denominators. `policy` and `regular` (KL and
// entropy) are terms of the loss with the aggregation's weights. `kl` and `entropy` count each
// token once, for the means that are reported.
struct UpdateSums {
  PolicyStats stats;
  int64_t bad_logprobs = 0;  // Micro-batches of supervised data whose log-probs are not finite.
  int64_t kept = 0;          // Trained tokens of supervised data.
  double policy = 0, regular = 0;
  double kl = 0, entropy = 0;
  int64_t tokens = 0;
  int64_t recorded = 0;  // Of these, the tokens whose experts were recorded.

  // False if a token has made a sum NaN or infinite.
  bool finite() const { return std::isfinite(policy + regular + kl + entropy); }
};

void AddPolicyMetrics(const PolicyMetrics& m, double advantage_factor,
                      std::map<std::string, double>* out) {
  const std::pair<const char*, double> values[] = {
      {"kl_behav_prox_k1", m.kl_behav_prox_k1},
      {"kl_behav_prox_k3", m.kl_behav_prox_k3},
      {"kl_behav_theta_k1", m.kl_behav_theta_k1},
      {"kl_behav_theta_k3", m.kl_behav_theta_k3},
      {"kl_prox_theta_k1", m.kl_prox_theta_k1},
      {"kl_prox_theta_k3", m.kl_prox_theta_k3},
      {"kl_prox_theta_k3_is", m.kl_prox_theta_k3_is},
      {"chi2_token", m.chi2_token},
      {"chi2_seq", m.chi2_seq},
      {"ess_seq", m.ess_seq},
      {"ess_token", m.ess_token},
      {"ess_seq_w", m.ess_seq_w},
      {"absdiff_mean", m.absdiff_mean},
      {"absdiff_max", m.absdiff_max},
      {"prob_diff_mean", m.prob_diff_mean},
      {"prob_diff_max", m.prob_diff_max},
      {"log_ppl_gap", m.log_ppl_gap},
      {"clip_high", m.clip_high},
      {"clip_low", m.clip_low},
      {"clip_dual", m.clip_dual},
      {"kept", m.kept},
      {"tis_capped", m.capped},
      {"vetoed_sequences", m.vetoed_sequences},
      {"advantage_mean", m.advantage_mean * advantage_factor},
      {"advantage_std", m.advantage_std * advantage_factor}};
  for (const auto& [name, value] : values) (*out)[name] = value;
}

// Adds metrics of the rewards, which exist even if no token is trained.
void AddRewardMetrics(const SequenceBuilder& builder, std::map<std::string, double>* out) {
  const AdvantageStream& advantages = builder.advantages();
  if (advantages.groups() == 0) return;

  const double groups = static_cast<double>(advantages.groups());
  (*out)["flat_share"] = 1 - static_cast<double>(advantages.spread_groups()) / groups;
  (*out)["flat_groups"] = static_cast<double>(advantages.flat_groups());
  (*out)["singleton_groups"] = static_cast<double>(advantages.singleton_groups());
  (*out)["bad_rewards"] = static_cast<double>(advantages.bad_rewards());
  if (builder.rewards().count() == 0) return;

  (*out)["reward_std"] = builder.rewards().std();
  (*out)["reward_min"] = builder.rewards().min();
  (*out)["reward_max"] = builder.rewards().max();
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(const Settings& settings, std::unique_ptr<TrainModel> model,
       std::unique_ptr<TrainModel> reference, Clock* clock)
      : settings_(settings),
        streams_(Streams(settings)),
        clock_(clock),
        model_(std::move(model)),
        reference_(std::move(reference)),
        optimizer_(model_.get(), settings.optimizer) {}

  absl::Status Resolve() {
    if (settings_.kind == Settings::Kind::kSft) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(rule_, ResolveLoss(settings_.algorithm.loss, settings_.max_staleness));
    // Before the first update the proximal policy is the policy itself.
    if (rule_.prox == ProxMode::kRecompute && settings_.minibatches == 1)
      rule_.prox = ProxMode::kSelf;
    SLUICE_ASSIGN_OR_RETURN(advantage_, ResolveAdvantage(settings_.algorithm.advantage));
    split_ = streams_ && StepWide(advantage_) && (rule_.kl != nullptr || rule_.entropy_coef != 0);
    return absl::OkStatus();
  }

  absl::Status Add(int64_t k, std::vector<Group> groups);
  absl::StatusOr<StepResult> Finish(int64_t k);
  void Abandon() {
    step_.reset();
    optimizer_.ZeroGrad();
  }

  // The batch that is being trained.
  struct Step {
    Step(const Settings& settings, int64_t k) : k(k) { builder.emplace(settings, k); }
    int64_t k;
    std::vector<Group> groups;  // Without streaming: kept until Finish().
    std::optional<SequenceBuilder> builder;
    UpdateSums sums;  // With streaming: of all slices so far.
    double seconds_forward_backward = 0, seconds_optim = 0;
  };

  // Runs forward and backward of one micro-batch; adds its gradients to the accumulators.
  absl::Status Run(MicroBatch& batch, UpdateSums* sums);
  absl::Status RunSft(const MicroBatch& batch, const at::Tensor& logprobs, UpdateSums* sums);
  absl::Status RunPolicy(const MicroBatch& batch, const TokenScores& scores, UpdateSums* sums);
  // Makes one update. Returns an empty string, or why there was none (StepResult::skipped).
  std::string Update(const UpdateSums& sums, const StepCounts& counts, double advantage_factor,
                     Step& step, StepResult* result);
  absl::Status FinishWhole(Step& step, StepResult* result);
  double Seconds(absl::Duration since) const {
    return absl::ToDoubleSeconds(clock_->Monotonic() - since);
  }

  const Settings settings_;
  const bool streams_;
  Clock* const clock_;
  std::unique_ptr<TrainModel> model_;
  std::unique_ptr<TrainModel> reference_;  // Null if the job has no reference policy.
  Optimizer optimizer_;
  LossRule rule_;
  AdvantageRule advantage_;
  // Gradients of the policy term and of KL and entropy are kept apart until the batch is complete.
  bool split_ = false;
  int64_t skips_in_a_row_ = 0;
  std::optional<Step> step_;
};

absl::Status Trainer::Impl::Run(MicroBatch& batch, UpdateSums* sums) {
  sums->tokens += static_cast<int64_t>(batch.targets.size());
  sums->recorded += RecordedRows(batch.packed);
  if (reference_ != nullptr && rule_.kl != nullptr) {
    // The reference policy chooses its experts itself, so it gets no routing.
    std::vector<uint16_t> routing = std::exchange(batch.packed.routing, {});
    SLUICE_ASSIGN_OR_RETURN(batch.ref, Score(*reference_, batch, settings_.temperature));
    batch.packed.routing = std::move(routing);
  }

  SLUICE_ASSIGN_OR_RETURN(const at::Tensor logits, model_->Forward(batch.packed));
  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          ScoreTokens(logits, batch.targets, settings_.temperature));
  return settings_.kind == Settings::Kind::kSft ? RunSft(batch, scores.logprobs, sums)
                                                : RunPolicy(batch, scores, sums);
}

absl::Status Trainer::Impl::RunSft(const MicroBatch& batch, const at::Tensor& logprobs,
                                   UpdateSums* sums) {
  const at::Tensor loss = SftTerm(logprobs);
  const double value = loss.item<double>();
  sums->policy += value;
  sums->kept += static_cast<int64_t>(batch.targets.size());
  if (!std::isfinite(value)) ++sums->bad_logprobs;
  return BackwardKeeping(loss, false);
}

absl::Status Trainer::Impl::RunPolicy(const MicroBatch& batch, const TokenScores& scores,
                                      UpdateSums* sums) {
  const PolicyTokens tokens{.offsets = batch.offsets,
                            .lp_theta = {},
                            .lp_prox = batch.prox,
                            .lp_behav = batch.behavior,
                            .lp_ref = batch.ref,
                            .advantage = batch.advantage};
  LossTerms terms;
  try {
    terms = ComputeLossTerms(rule_, scores.logprobs, scores.entropy, tokens, batch.weight,
                             &sums->stats);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loss: ", e.what()));
  }

  const bool regular = rule_.kl != nullptr || rule_.entropy_coef != 0;
  const at::Tensor extra = rule_.kl_coef * terms.kl - rule_.entropy_coef * terms.entropy;

  sums->policy += terms.policy.item<double>();
  sums->regular += extra.item<double>();
  sums->kl += terms.kl_sum;
  sums->entropy += scores.entropy.sum().item<double>();
  if (!regular) return BackwardKeeping(terms.policy, false);
  if (!split_) return BackwardKeeping(terms.policy + extra, false);

  // The two parts get different factors in Update(), so their gradients go to different
  // accumulators.
  SLUICE_RETURN_IF_ERROR(BackwardKeeping(terms.policy, true));
  optimizer_.Accumulate(1);
  const absl::Status status = BackwardKeeping(extra, false);
  optimizer_.Accumulate(0);
  return status;
}

std::string Trainer::Impl::Update(const UpdateSums& sums, const StepCounts& counts,
                                  double advantage_factor, Step& step, StepResult* result) {
  if (counts.tokens == 0) return "no_tokens";
  if (sums.stats.bad_policy() > 0 || sums.bad_logprobs > 0) return "nonfinite_logprob";
  const bool sft = settings_.kind == Settings::Kind::kSft;
  const std::optional<PolicyMetrics> metrics = sums.stats.Metrics();
  const bool regular = rule_.kl != nullptr || rule_.entropy_coef != 0;
  // Without KL and entropy terms, a loss that rejects every token has no gradient.
  if (!sft && !regular && (!metrics.has_value() || metrics->kept == 0)) return "no_terms";

  const double scale =
      (sft ? kTokenMean : rule_.aggregation).step_scale(counts, settings_.max_response);
  const absl::Duration start = clock_->Monotonic();
  const Optimizer::Outcome outcome = optimizer_.Update(scale * advantage_factor, scale);
  step.seconds_optim += Seconds(start);
  if (metrics.has_value()) AddPolicyMetrics(*metrics, advantage_factor, &result->metrics);
  if (!outcome.applied) return "nonfinite_gradient";

  // The step's loss is that of the updates that changed the parameters.
  result->loss += scale * (advantage_factor * sums.policy + sums.regular);
  result->grad_norm = outcome.grad_norm;
  result->lr = outcome.lr;
  return "";
}

absl::Status Trainer::Impl::Add(int64_t k, std::vector<Group> groups) {
  if (step_.has_value() && step_->k != k) {
    return absl::FailedPreconditionError(
        absl::StrCat("batch ", k, " was added while batch ", step_->k, " is open"));
  }
  if (!step_.has_value()) {
    step_.emplace(settings_, k);
    optimizer_.ZeroGrad();
  }
  if (!streams_) {
    for (Group& group : groups) step_->groups.push_back(std::move(group));
    return absl::OkStatus();
  }

  const absl::Duration start = clock_->Monotonic();
  std::vector<Sequence> sequences;
  SLUICE_RETURN_IF_ERROR(step_->builder->Add(groups, &sequences));
  for (MicroBatch& batch : MakeMicroBatches(sequences, settings_.micro_batch_tokens)) {
    SLUICE_RETURN_IF_ERROR(Run(batch, &step_->sums));
  }
  step_->seconds_forward_backward += Seconds(start);
  return absl::OkStatus();
}

// Makes all updates of a batch that is complete.
absl::Status Trainer::Impl::FinishWhole(Step& step, StepResult* result) {
  const absl::Duration start = clock_->Monotonic();
  step.builder.emplace(settings_, step.k, MeanReward(settings_, step.groups));
  const uint32_t group_count = static_cast<uint32_t>(step.groups.size());
  const std::vector<uint32_t> cuts = CutEvenly(group_count, settings_.minibatches);

  std::vector<std::vector<Sequence>> minibatches(settings_.minibatches);
  std::vector<StepCounts> counts(settings_.minibatches);
  for (uint32_t i = 0; i < settings_.minibatches; ++i) {
    const StepCounts before = step.builder->counts();
    SLUICE_RETURN_IF_ERROR(step.builder->Add(
        absl::MakeConstSpan(step.groups).subspan(cuts[i], cuts[i + 1] - cuts[i]), &minibatches[i]));
    const StepCounts& after = step.builder->counts();
    counts[i] = {after.tokens - before.tokens, after.sequences - before.sequences,
                 after.prompts - before.prompts};
  }

  const float factor =
      settings_.kind == Settings::Kind::kRl ? static_cast<float>(step.builder->factor()) : 1.0f;
  std::vector<std::vector<MicroBatch>> batches;
  // The proximal log-probs are those before the first update, so they are computed for all
  // minibatches here.
  for (std::vector<Sequence>& sequences : minibatches) {
    for (Sequence& sequence : sequences) sequence.advantage *= factor;
    batches.push_back(MakeMicroBatches(sequences, settings_.micro_batch_tokens));
    if (settings_.kind != Settings::Kind::kRl || rule_.prox != ProxMode::kRecompute) continue;
    for (MicroBatch& batch : batches.back()) {
      SLUICE_ASSIGN_OR_RETURN(batch.prox, Score(*model_, batch, settings_.temperature));
    }
  }

  UpdateSums all;
  int64_t applied = 0;
  for (uint32_t i = 0; i < settings_.minibatches; ++i) {
    if (i > 0) optimizer_.ZeroGrad();
    UpdateSums sums;
    for (MicroBatch& batch : batches[i]) SLUICE_RETURN_IF_ERROR(Run(batch, &sums));
    const std::string skipped = Update(sums, counts[i], 1.0, step, result);
    if (skipped.empty()) ++applied;
    if (result->skipped.empty()) result->skipped = skipped;
    all.stats.Merge(sums.stats);
    if (!sums.finite()) continue;  // One bad minibatch must not spoil the means.

    all.kl += sums.kl;
    all.entropy += sums.entropy;
    all.tokens += sums.tokens;
    all.recorded += sums.recorded;
  }

  if (settings_.minibatches > 1) {
    result->metrics["skipped_updates"] = static_cast<double>(settings_.minibatches - applied);
    if (const std::optional<PolicyMetrics> metrics = all.stats.Metrics())
      AddPolicyMetrics(*metrics, 1.0, &result->metrics);
  }

  if (applied > 0) {
    result->skipped.clear();  // The step has changed the parameters.
    result->loss /= static_cast<double>(applied);
  }
  step.sums = std::move(all);
  step.seconds_forward_backward += Seconds(start) - step.seconds_optim;
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Trainer::Impl::Finish(int64_t k) {
  if (!step_.has_value()) SLUICE_RETURN_IF_ERROR(Add(k, {}));
  if (step_->k != k)
    return absl::FailedPreconditionError(absl::StrCat("batch ", step_->k, " is open, not ", k));

  Step& step = *step_;
  StepResult result;
  result.k = k;
  if (streams_) {
    result.skipped =
        Update(step.sums, step.builder->counts(), step.builder->factor(), step, &result);
  } else if (absl::Status status = FinishWhole(step, &result); !status.ok()) {
    Abandon();
    return status;
  }

  skips_in_a_row_ = result.skipped.empty() ? 0 : skips_in_a_row_ + 1;
  result.skips_in_a_row = skips_in_a_row_;
  result.reward_count = step.builder->rewards().count();
  result.reward_mean = step.builder->rewards().mean();
  AddRewardMetrics(*step.builder, &result.metrics);
  result.tokens = step.builder->counts().tokens;
  result.sequences = step.builder->counts().sequences;
  result.staleness = step.builder->staleness().histogram();
  result.seconds_forward_backward = step.seconds_forward_backward;
  result.seconds_optim = step.seconds_optim;

  if (settings_.kind == Settings::Kind::kRl) {
    result.metrics["bad_rewards"] = static_cast<double>(step.builder->advantages().bad_rewards());
  }
  if (settings_.kind == Settings::Kind::kRl && step.sums.tokens > 0 && step.sums.finite()) {
    const double tokens = static_cast<double>(step.sums.tokens);
    result.metrics["entropy"] = step.sums.entropy / tokens;
    if (rule_.kl != nullptr) result.metrics["kl"] = step.sums.kl / tokens;
    if (model_->config().num_experts > 0) {
      result.metrics["experts_recorded"] = static_cast<double>(step.sums.recorded) / tokens;
    }
  }
  if (settings_.kind == Settings::Kind::kRl && result.tokens > 0) {
    result.metrics["staleness_mean"] = step.builder->staleness().mean();
    result.metrics["staleness_p95"] = step.builder->staleness().Quantile(0.95);
    result.metrics["staleness_max"] = static_cast<double>(step.builder->staleness().max());
    result.metrics["mixed_versions"] = step.builder->staleness().mixed_fraction();
    result.metrics["bad_behav"] = static_cast<double>(step.sums.stats.bad_behav());
  }
  step_.reset();
  return result;
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Settings& settings,
                                                         const ModelConfig& config, Clock* clock) {
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<TrainModel> model,
                          TrainModel::Create(config, settings.dtype));
  std::unique_ptr<TrainModel> reference;
  if (settings.reference && settings.kind == Settings::Kind::kRl) {
    SLUICE_ASSIGN_OR_RETURN(reference, TrainModel::Create(config, settings.dtype));
  }
  auto impl = std::make_unique<Impl>(settings, std::move(model), std::move(reference), clock);
  SLUICE_RETURN_IF_ERROR(impl->Resolve());
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

absl::Status Trainer::Load(const TensorSet& weights) {
  Abandon();
  impl_->optimizer_.Reset();
  impl_->skips_in_a_row_ = 0;
  return impl_->model_->Load(weights);
}

absl::Status Trainer::Restore(const TensorSet& weights, const TensorSet& moments, int64_t updates,
                              int64_t skips_in_a_row) {
  SLUICE_RETURN_IF_ERROR(Load(weights));
  SLUICE_RETURN_IF_ERROR(impl_->optimizer_.Restore(moments, updates));
  impl_->skips_in_a_row_ = skips_in_a_row;
  return absl::OkStatus();
}

absl::Status Trainer::SetReference(const TensorSet& weights) {
  if (impl_->reference_ == nullptr)
    return absl::FailedPreconditionError("the job has no reference policy");
  return impl_->reference_->Load(weights);
}

absl::Status Trainer::Add(int64_t k, std::vector<Group> groups) {
  absl::Status status = impl_->Add(k, std::move(groups));
  if (!status.ok()) Abandon();
  return status;
}
absl::StatusOr<StepResult> Trainer::Finish(int64_t k) { return impl_->Finish(k); }
void Trainer::Abandon() { impl_->Abandon(); }

absl::StatusOr<TensorSet> Trainer::Weights(DType dtype) const {
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights,
                          TensorSet::Create(impl_->model_->config().Parameters(dtype)));
  SLUICE_RETURN_IF_ERROR(impl_->model_->Store(&weights));
  return weights;
}
absl::StatusOr<TensorSet> Trainer::Moments() const { return impl_->optimizer_.Moments(); }
int64_t Trainer::updates() const { return impl_->optimizer_.updates(); }
int64_t Trainer::skips_in_a_row() const { return impl_->skips_in_a_row_; }

void SetComputeThreads(std::function<int()> threads) {
  // The operations that Torch runs itself are the small ones of a step. On one thread their sums
  // are computed in one order. OpenMP then starts no threads, which would spin on cores that other
  // work needs.
  at::set_num_threads(1);
  SetParallelThreads(std::move(threads));
}

}  // namespace sluice::trainer
