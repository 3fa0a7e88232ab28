#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/trainer/core/batch_step.h"
#include "services/trainer/core/critic.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/packer.h"
#include "services/trainer/core/step_metrics.h"

namespace sluice::trainer {
namespace {

// The groups that make one update.
struct Minibatch {
  std::vector<MicroBatch> batches;
  // Numbers of the micro-batches of each group, if each of them holds one answer; else empty.
  std::vector<size_t> answers;
  StepCounts counts;
};

class WholeStep : public BatchStep {
 public:
  WholeStep(const Settings& settings, const Rules& rules, int64_t k, Updater& updater,
            const VersionHistory& history, Clock& clock)
      : settings_(settings),
        rules_(rules),
        k_(k),
        updater_(updater),
        history_(history),
        clock_(clock) {}

  absl::Status Add(std::vector<Group> groups) override {
    for (Group& group : groups) groups_.push_back(std::move(group));
    return absl::OkStatus();
  }

  absl::Status Finish(StepResult* result) override {
    const absl::Duration start = clock_.Monotonic();
    if (settings_.kind == Settings::Kind::kRl)
      SLUICE_RETURN_IF_ERROR(updater_.scorer().SetRewardKl(groups_));
    if (updater_.critic() != nullptr) SLUICE_RETURN_IF_ERROR(updater_.critic()->SetValues(groups_));
    result->critic_alone = updater_.critic() != nullptr && k_ < settings_.critic.warmup;
    SLUICE_ASSIGN_OR_RETURN(std::vector<Minibatch> minibatches, MakeMinibatches(result));

    // Proximal log-probs are computed with the weights before the first update, so all of them are
    // computed here.
    if (settings_.kind == Settings::Kind::kRl && !result->critic_alone) {
      std::vector<MicroBatch*> all;
      for (Minibatch& minibatch : minibatches) {
        for (MicroBatch& batch : minibatch.batches) {
          SLUICE_RETURN_IF_ERROR(updater_.scorer().SetProximal(batch));
          all.push_back(&batch);
        }
      }
      SLUICE_RETURN_IF_ERROR(updater_.scorer().SetOlder(all, k_, history_));
    }

    // A rank that is done with these passes must not begin the update while others still make
    // theirs: in a backward pass of it they would add up gradients, which they then set to zero.
    SLUICE_RETURN_IF_ERROR(updater_.ranks().passes().AwaitOthers());
    SLUICE_RETURN_IF_ERROR(MakeUpdates(minibatches, result));
    result->seconds_forward_backward =
        absl::ToDoubleSeconds(clock_.Monotonic() - start) - result->seconds_optim;
    return absl::OkStatus();
  }

  const SequenceBuilder& sequences() const override {
    SLUICE_CHECK(builder_.has_value());
    return *builder_;
  }
  const UpdateSums& sums() const override { return sums_; }

 private:
  absl::StatusOr<std::vector<Minibatch>> MakeMinibatches(StepResult* result) {
    builder_.emplace(settings_, rules_, k_, MeanReward(settings_, rules_, groups_));

    const std::vector<uint32_t> cuts =
        CutEvenly(static_cast<uint32_t>(groups_.size()), settings_.minibatches);
    std::vector<Minibatch> minibatches(settings_.minibatches);
    std::vector<std::vector<Sequence>> sequences(settings_.minibatches);
    for (uint32_t i = 0; i < settings_.minibatches; ++i) {
      const StepCounts before = builder_->counts();
      SLUICE_RETURN_IF_ERROR(builder_->Add(
          absl::MakeConstSpan(groups_).subspan(cuts[i], cuts[i + 1] - cuts[i]), &sequences[i]));
      const StepCounts& after = builder_->counts();
      minibatches[i].counts = {after.tokens - before.tokens, after.sequences - before.sequences,
                               after.prompts - before.prompts};
    }

    FinishAdvantages(sequences, result);
    for (uint32_t i = 0; i < settings_.minibatches; ++i) {
      updater_.ranks().BeginStep();
      sequences[i] = updater_.ranks().Share(std::move(sequences[i]));
      if (rules_.advantage.min_variance) {
        DivideIntoAnswers(sequences[i], &minibatches[i]);
      } else {
        minibatches[i].batches = MakeMicroBatches(sequences[i], settings_.micro_batch_tokens);
      }
      for (MicroBatch& batch : minibatches[i].batches)
        batch.token_weight = TokenWeight(minibatches[i].counts);
    }
    return minibatches;
  }

  // See MicroBatch::token_weight.
  double TokenWeight(const StepCounts& counts) const {
    if (counts.tokens == 0) return 1;
    return kTokenMean.step_scale(counts, settings_.max_response) /
           rules_.loss.aggregation.step_scale(counts, settings_.max_response);
  }

  // Applies what depends on the whole batch: the factor of the advantages, their whitening, and the
  // factors of turns.
  void FinishAdvantages(std::vector<std::vector<Sequence>>& sequences, StepResult* result) const {
    if (settings_.kind != Settings::Kind::kRl) return;
    const float factor = static_cast<float>(builder_->factor());
    std::vector<Sequence*> all;
    for (std::vector<Sequence>& part : sequences) {
      for (Sequence& sequence : part) {
        for (float& a : sequence.advantage) a *= factor;
        all.push_back(&sequence);
      }
    }
    WhitenAdvantages(rules_.advantage, all);
    const double turn_seconds = WeighByDuration(rules_.advantage, all);
    if (turn_seconds > 0) result->metrics["turn_seconds"] = turn_seconds;
  }

  void DivideIntoAnswers(absl::Span<const Sequence> sequences, Minibatch* minibatch) const {
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (i == 0 || sequences[i].group != sequences[i - 1].group) minibatch->answers.push_back(0);
      ++minibatch->answers.back();
      minibatch->batches.push_back(std::move(
          MakeMicroBatches(sequences.subspan(i, 1), settings_.micro_batch_tokens).front()));
    }
  }

  absl::Status AddGradients(Minibatch& minibatch, UpdateSums* sums) {
    if (settings_.kind == Settings::Kind::kRl)
      SLUICE_RETURN_IF_ERROR(updater_.scorer().ApplyUpdateWideTerms(minibatch.batches));
    if (minibatch.counts.tokens > 0) {
      SLUICE_RETURN_IF_ERROR(updater_.scorer().SetRouterBalance(
          absl::MakeSpan(minibatch.batches),
          rules_.loss.aggregation.step_scale(minibatch.counts, settings_.max_response)));
    }
    if (settings_.kind == Settings::Kind::kDpo)
      return updater_.AddPairGradients(absl::MakeSpan(minibatch.batches), sums);
    if (minibatch.answers.empty()) {
      for (MicroBatch& batch : minibatch.batches)
        SLUICE_RETURN_IF_ERROR(updater_.AddGradients(batch, sums));
      return absl::OkStatus();
    }
    absl::Span<MicroBatch> rest = absl::MakeSpan(minibatch.batches);
    for (const size_t count : minibatch.answers) {
      SLUICE_RETURN_IF_ERROR(updater_.AddGroupGradients(rest.first(count), sums));
      rest.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  absl::Status MakeUpdates(std::vector<Minibatch>& minibatches, StepResult* result) {
    int64_t applied = 0, finite = 0;
    for (Minibatch& minibatch : minibatches) {
      updater_.ZeroGrad();
      UpdateSums sums;
      if (!result->critic_alone) SLUICE_RETURN_IF_ERROR(AddGradients(minibatch, &sums));
      if (updater_.critic() != nullptr) {
        for (MicroBatch& batch : minibatch.batches)
          SLUICE_RETURN_IF_ERROR(updater_.AddValueGradients(batch, &sums));
      }
      SLUICE_ASSIGN_OR_RETURN(const std::string skipped,
                              result->critic_alone
                                  ? updater_.UpdateCritic(sums, minibatch.counts, result)
                                  : updater_.Update(sums, minibatch.counts, 1.0, result));
      if (skipped.empty()) ++applied;
      if (result->skipped.empty()) result->skipped = skipped;

      // One minibatch that is not finite must not spoil the means.
      if (sums.finite()) {
        sums_.Merge(sums);
        if (sums.tokens > 0) ++finite;
      } else {
        sums_.stats.Merge(sums.stats);
      }
    }
    if (rules_.loss.router_balance > 0 && finite > 0)
      result->metrics["router_balance"] = sums_.router_balance / static_cast<double>(finite);

    if (minibatches.size() > 1) {
      result->metrics["skipped_updates"] =
          static_cast<double>(minibatches.size()) - static_cast<double>(applied);
      // Update() has set the metrics of the last minibatch. Replace them by those of all
      // minibatches.
      AddPolicyMetrics(sums_.stats, rules_.loss, 1.0, &result->metrics);
      AddValueMetrics(sums_.values, &result->metrics);
    }

    if (applied > 0) {
      result->skipped.clear();  // The step has changed the parameters.
      result->loss /= static_cast<double>(applied);
    }
    return absl::OkStatus();
  }

  const Settings& settings_;
  const Rules& rules_;
  const int64_t k_;
  Updater& updater_;
  const VersionHistory& history_;
  Clock& clock_;
  std::vector<Group> groups_;
  std::optional<SequenceBuilder> builder_;  // Made in Finish(), which knows the mean reward.
  // `stats` is over all minibatches, the other sums over those that are finite.
  UpdateSums sums_;
};

}  // namespace

std::unique_ptr<BatchStep> MakeWholeStep(const Settings& settings, const Rules& rules, int64_t k,
                                         Updater& updater, const VersionHistory& history,
                                         Clock& clock) {
  return std::make_unique<WholeStep>(settings, rules, k, updater, history, clock);
}

}  // namespace sluice::trainer
