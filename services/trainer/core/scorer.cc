#include "services/trainer/core/scorer.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/algorithms/losses/aepo.h"
#include "common/algorithms/m2po.h"
#include "common/algorithms/proximal.h"
#include "common/base/status.h"
#include "common/models/train_model.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/shared_scores.h"

namespace sluice::trainer {
namespace {

std::vector<float> ToVector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const float* data = values.const_data_ptr<float>();
  return std::vector<float>(data, data + values.numel());
}

}  // namespace

absl::StatusOr<Scorer::Scores> Scorer::Score(TrainModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  SLUICE_ASSIGN_OR_RETURN(const TokenScores scores,
                          model.Score(batch.packed, batch.targets, settings_.temperature));
  return Scores{ToVector(scores.logprobs), ToVector(scores.entropy)};
}

absl::StatusOr<Scorer::Scores> Scorer::ScoreFrozen(TrainModel& model, MicroBatch& batch) {
  return WithoutRouting(batch, [&] { return Score(model, batch); });
}

absl::StatusOr<std::vector<float>> Scorer::ScoreReference(MicroBatch& batch) {
  SLUICE_ASSIGN_OR_RETURN(Scores scores, ScoreFrozen(*models_.reference, batch));
  return std::move(scores.logprobs);
}

TrainModel& Scorer::Anchor() {
  return rules_.loss.prox == ProxMode::kEwma ? *models_.average : *models_.policy;
}

absl::Status Scorer::SetProximal(MicroBatch& batch) {
  if (!NeedsProximalPass(rules_.loss.prox)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(Scores scores, Score(Anchor(), batch));
  batch.prox = std::move(scores.logprobs);
  return absl::OkStatus();
}

absl::Status Scorer::SetOlder(absl::Span<MicroBatch* const> batches, int64_t k,
                              const VersionHistory& history) {
  if (models_.past == nullptr) return absl::OkStatus();
  std::set<int32_t> staleness;
  for (MicroBatch* batch : batches) {
    batch->older.assign(batch->targets.size(), std::numeric_limits<float>::quiet_NaN());
    staleness.insert(batch->staleness.begin(), batch->staleness.end());
  }
  staleness.erase(0);

  for (const int32_t s : staleness) {
    const TensorSet* const weights = history.Find(k - s);
    // The trainer has been restarted since.
    if (weights == nullptr) continue;
    SLUICE_RETURN_IF_ERROR(models_.past->Load(*weights));
    for (MicroBatch* batch : batches) {
      if (!absl::c_linear_search(batch->staleness, s)) continue;
      SLUICE_ASSIGN_OR_RETURN(const Scores scores, Score(*models_.past, *batch));
      for (size_t t = 0; t < batch->older.size(); ++t) {
        if (batch->staleness[t] == s) batch->older[t] = scores.logprobs[t];
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Scorer::SetReference(MicroBatch& batch) {
  const bool needed = rules_.loss.kl != nullptr || settings_.kind == Settings::Kind::kDpo;
  if (models_.reference == nullptr || !needed) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(batch.ref, ScoreReference(batch));
  return absl::OkStatus();
}

absl::Status Scorer::SetTeacher(MicroBatch& batch) {
  if (rules_.loss.distill.kind != DistillKind::kSampled) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(Scores scores, ScoreFrozen(*models_.teacher, batch));
  batch.teacher = std::move(scores.logprobs);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TeacherRows>> Scorer::ComputeTeacherRows(MicroBatch& batch) {
  if (rules_.loss.distill.kind != DistillKind::kFull) return std::nullopt;
  const at::NoGradGuard no_grad;
  SLUICE_ASSIGN_OR_RETURN(TeacherRows rows, WithoutRouting(batch, [&] {
                            return models_.teacher->HeadInput(batch.packed);
                          }));
  rows.top_k = rules_.loss.distill.top_k;
  return rows;
}

absl::StatusOr<std::vector<float>> Scorer::Logprobs(const MicroBatch& batch) {
  SLUICE_ASSIGN_OR_RETURN(Scores scores, Score(*models_.policy, batch));
  return std::move(scores.logprobs);
}

absl::Status Scorer::SetRewardKl(std::vector<Group>& groups) {
  if (rules_.reward_kl == 0) return absl::OkStatus();
  std::vector<Trajectory*> trajectories;
  std::vector<Sequence> sequences;
  for (const auto& [trajectory, group] : FindTrained(groups)) {
    trajectories.push_back(trajectory);
    sequences.push_back(MakeSequence(*trajectory, group, 0));
  }

  const ProxMode prox = rules_.loss.prox;
  const bool behaviour = prox == ProxMode::kNone || prox == ProxMode::kLoglinear;
  const auto score = [&](MicroBatch& batch) -> absl::StatusOr<std::vector<float>> {
    SLUICE_ASSIGN_OR_RETURN(std::vector<float> kl, ScoreReference(batch));
    std::vector<float> anchor = batch.behavior;
    if (!behaviour) {
      SLUICE_ASSIGN_OR_RETURN(Scores scores, Score(Anchor(), batch));
      anchor = std::move(scores.logprobs);
    }
    for (size_t t = 0; t < kl.size(); ++t) {
      const float difference = anchor[t] - kl[t];
      // One token without a usable log-prob must not take the reward of its whole answer.
      kl[t] = std::isfinite(difference) ? difference : 0;
    }
    return kl;
  };
  SLUICE_ASSIGN_OR_RETURN(
      std::vector<std::vector<float>> kl,
      ScoreShared(std::move(sequences), settings_.micro_batch_tokens, *ranks_, score));
  for (size_t i = 0; i < trajectories.size(); ++i) trajectories[i]->kl = std::move(kl[i]);
  return absl::OkStatus();
}

absl::Status Scorer::ApplyUpdateWideTerms(std::vector<MicroBatch>& batches) {
  const LossRule& rule = rules_.loss;
  if (rule.m2po == 0 && rule.entropy_factor == 0) return absl::OkStatus();
  std::vector<Scores> scores;
  std::vector<float> entropy;
  for (const MicroBatch& batch : batches) {
    SLUICE_ASSIGN_OR_RETURN(scores.emplace_back(), Score(*models_.policy, batch));
    absl::c_copy(scores.back().entropy, std::back_inserter(entropy));
  }

  if (rule.entropy_factor != 0) {
    SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<float> all, ranks_->Join(std::move(entropy)));
    const std::vector<double> factors = AepoFactors(all.values, rule.entropy_factor);
    size_t t = all.first[ranks_->rank()];
    for (MicroBatch& batch : batches) {
      for (float& a : batch.advantage) a = static_cast<float>(a * factors[t++]);
    }
  }
  if (rule.m2po == 0) return absl::OkStatus();

  std::vector<float> theta, behavior, advantage;
  std::vector<uint8_t> keep;
  for (size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    std::vector<float> prox = batch.prox;
    if (rule.prox == ProxMode::kLoglinear)
      prox = LoglinearProximal(scores[i].logprobs, batch.behavior, batch.staleness);
    std::vector<float> own;
    if (rule.correction.split) {
      own = OwnVersionLogprobs(batch.older, prox.empty() ? scores[i].logprobs : prox,
                               batch.staleness);
    }
    const PolicyTokens tokens{.offsets = batch.offsets,
                              .lp_theta = scores[i].logprobs,
                              .lp_prox = prox,
                              .lp_behav = batch.behavior,
                              .lp_ref = {},
                              .advantage = batch.advantage,
                              .allowed = {},
                              .lp_snap = own};
    absl::c_copy(ComputeCorrection(rule.correction, tokens).keep, std::back_inserter(keep));
    absl::c_copy(scores[i].logprobs, std::back_inserter(theta));
    absl::c_copy(batch.behavior, std::back_inserter(behavior));
    absl::c_copy(batch.advantage, std::back_inserter(advantage));
  }
  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<float> all_theta, ranks_->Join(std::move(theta)));
  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<float> all_behavior,
                          ranks_->Join(std::move(behavior)));
  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<float> all_advantage,
                          ranks_->Join(std::move(advantage)));
  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<uint8_t> all_keep, ranks_->Join(std::move(keep)));
  const std::vector<uint8_t> allowed = M2poKeep(all_theta.values, all_behavior.values,
                                                all_advantage.values, all_keep.values, rule.m2po);
  size_t first = all_theta.first[ranks_->rank()];
  for (MicroBatch& batch : batches) {
    batch.allowed.assign(allowed.begin() + first, allowed.begin() + first + batch.targets.size());
    first += batch.targets.size();
  }
  return absl::OkStatus();
}

absl::Status Scorer::SetRouterBalance(absl::Span<MicroBatch> batches, double step_scale) {
  if (rules_.loss.router_balance == 0) return absl::OkStatus();
  const ModelConfig& config = models_.policy->config();
  const size_t cells = static_cast<size_t>(config.num_layers * config.num_experts);
  std::vector<double> mine(cells);
  for (const MicroBatch& batch : batches) {
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<double> loads,
        models_.policy->CountExperts(batch.packed, batch.balance.token_weights));
    for (size_t i = 0; i < cells; ++i) mine[i] += loads[i];
  }

  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<double> all, ranks_->Join(std::move(mine)));
  std::vector<double> weights(cells);
  for (size_t i = 0; i < all.values.size(); ++i) weights[i % cells] += all.values[i];

  // Each token adds its weight to k experts of each layer.
  const double tokens = std::accumulate(weights.begin(), weights.end(), 0.0) /
                        static_cast<double>(config.num_layers * config.experts_per_token);
  if (tokens == 0) return absl::OkStatus();
  const double factor = static_cast<double>(config.num_experts) /
                        static_cast<double>(config.num_layers) / (tokens * tokens);
  for (double& weight : weights) weight *= factor;
  for (MicroBatch& batch : batches) {
    batch.balance.expert_weights = weights;
    batch.balance_factor = rules_.loss.router_balance / step_scale;
  }
  return absl::OkStatus();
}

}  // namespace sluice::trainer
