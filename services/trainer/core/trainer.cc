#include "services/trainer/core/trainer.h"

#include <ATen/Parallel.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/parallel.h"
#include "common/models/train_model.h"
#include "services/trainer/core/batch_step.h"
#include "services/trainer/core/lora.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/step_metrics.h"
#include "services/trainer/core/updater.h"

namespace sluice::trainer {
class Trainer::Impl {
 public:
  Impl(const Settings& settings, const Rules& rules, std::unique_ptr<TrainModel> model,
       std::unique_ptr<TrainModel> reference, std::unique_ptr<TrainModel> average, Clock* clock)
      : settings_(settings),
        rules_(rules),
        clock_(clock),
        model_(std::move(model)),
        reference_(std::move(reference)),
        average_(std::move(average)),
        optimizer_(model_.get(), settings.optimizer, average_.get(), rules.loss.ewma,
                   settings.lora.rank > 0
                       ? std::make_unique<Lora>(settings.lora, model_.get(), reference_.get())
                       : nullptr),
        updater_(settings_, rules_, HasSeparateTerms(settings, rules), model_.get(),
                 reference_.get(), average_.get(), &optimizer_, clock) {}

  absl::Status Add(int64_t k, std::vector<Group> groups) {
    if (step_ != nullptr && k_ != k) {
      return absl::FailedPreconditionError(
          absl::StrCat("batch ", k, " was added while batch ", k_, " is open"));
    }
    if (step_ == nullptr) {
      k_ = k;
      step_ = Streams(settings_) ? MakeStreamedStep(settings_, rules_, k, updater_, *clock_)
                                 : MakeWholeStep(settings_, rules_, k, updater_, *clock_);
    }
    return step_->Add(std::move(groups));
  }

  absl::StatusOr<StepResult> Finish(int64_t k) {
    // A batch without groups is a step that is skipped.
    if (step_ == nullptr) SLUICE_RETURN_IF_ERROR(Add(k, {}));
    if (k_ != k)
      return absl::FailedPreconditionError(
          absl::StrCat("batch ", k, " cannot be finished while batch ", k_, " is open"));

    StepResult result;
    result.k = k;
    if (absl::Status status = step_->Finish(&result); !status.ok()) {
      Abandon();
      return status;
    }
    skips_in_a_row_ = result.skipped.empty() ? 0 : skips_in_a_row_ + 1;
    result.skips_in_a_row = skips_in_a_row_;
    FillResult(*step_, &result);
    step_.reset();
    return result;
  }

  void Abandon() {
    step_.reset();
    optimizer_.ZeroGrad();
  }

  absl::Status Load(const TensorSet& weights) {
    Abandon();
    optimizer_.PreserveAll();
    optimizer_.Reset();
    skips_in_a_row_ = 0;
    if (average_ != nullptr) SLUICE_RETURN_IF_ERROR(average_->Load(weights));
    return model_->Load(weights);
  }

  absl::Status Restore(const TensorSet& weights, const TensorSource& moments, int64_t updates,
                       int64_t skips_in_a_row) {
    SLUICE_RETURN_IF_ERROR(Load(weights));
    SLUICE_RETURN_IF_ERROR(CheckFrozenWeights());
    SLUICE_RETURN_IF_ERROR(optimizer_.Restore(moments, updates));
    skips_in_a_row_ = skips_in_a_row;
    return absl::OkStatus();
  }

  const TrainModel& model() const { return *model_; }
  TrainModel* reference() { return reference_.get(); }
  Optimizer& optimizer() { return optimizer_; }
  int64_t skips_in_a_row() const { return skips_in_a_row_; }

 private:
  // FAILED_PRECONDITION: the weights without factors, which low-rank training never changes, are
  // not those of the initial model, so the factors belong to another one.
  absl::Status CheckFrozenWeights() const;
  // Sets the counts and metrics of a finished step.
  void FillResult(const BatchStep& step, StepResult* result) const;

  const Settings settings_;
  const Rules rules_;
  Clock* const clock_;
  std::unique_ptr<TrainModel> model_;
  std::unique_ptr<TrainModel> reference_;  // The initial weights; null if they are not kept.
  std::unique_ptr<TrainModel> average_;    // The averaged weights of prox ewma, else null.
  Optimizer optimizer_;
  Updater updater_;

  std::unique_ptr<BatchStep> step_;  // The step of batch k_; null while no batch is open.
  int64_t k_ = 0;
  int64_t skips_in_a_row_ = 0;
};

absl::Status Trainer::Impl::CheckFrozenWeights() const {
  if (settings_.lora.rank == 0) return absl::OkStatus();
  for (size_t i = 0; i < model_->parameters().size(); ++i) {
    const TrainModel::Parameter& parameter = model_->parameters()[i];
    if (IsLoraTarget(settings_.lora, parameter.name) ||
        parameter.tensor.equal(reference_->parameters()[i].tensor))
      continue;
    return absl::FailedPreconditionError(absl::StrCat(
        parameter.name,
        " of the checkpoint is not that of the initial model, and low-rank training "
        "does not change it: the files of model.path are no longer those that the job began with"));
  }
  return absl::OkStatus();
}

void Trainer::Impl::FillResult(const BatchStep& step, StepResult* result) const {
  const SequenceBuilder& sequences = step.sequences();
  result->reward_count = sequences.rewards().count();
  result->reward_mean = sequences.rewards().mean();
  result->tokens = sequences.counts().tokens;
  result->sequences = sequences.counts().sequences;
  result->staleness = sequences.staleness().histogram();
  result->flops = step.sums().flops;
  AddPairMetrics(step.sums().pairs, &result->metrics);
  if (settings_.kind != Settings::Kind::kRl) {
    result->metrics["rows_left_out"] =
        static_cast<double>(sequences.groups() - sequences.counts().prompts);
    return;
  }

  AddRewardMetrics(sequences, &result->metrics);
  const UpdateSums& sums = step.sums();
  if (sums.tokens > 0 && sums.finite()) {
    const double tokens = static_cast<double>(sums.tokens);
    result->metrics["entropy"] = sums.entropy / tokens;
    if (rules_.loss.kl != nullptr) result->metrics["kl"] = sums.kl / tokens;
    if (model_->config().num_experts > 0)
      result->metrics["experts_recorded"] = static_cast<double>(sums.recorded) / tokens;
  }
  if (result->tokens > 0) {
    AddStalenessMetrics(sequences.staleness(), &result->metrics);
    AddMismatch(settings_, rules_.loss, sequences.staleness(), &result->metrics);
    result->metrics["bad_behav"] = static_cast<double>(sums.stats.bad_behav());
  }
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Settings& settings,
                                                         const ModelConfig& config, Clock* clock) {
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  SLUICE_ASSIGN_OR_RETURN(const Rules rules, ResolveRules(settings));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<TrainModel> model,
                          TrainModel::Create(config, settings.dtype, settings.recompute));
  std::unique_ptr<TrainModel> reference;
  if (KeepsInitialWeights(settings)) {
    SLUICE_ASSIGN_OR_RETURN(reference, TrainModel::Create(config, settings.dtype));
  }
  std::unique_ptr<TrainModel> average;
  if (rules.loss.prox == ProxMode::kEwma) {
    SLUICE_ASSIGN_OR_RETURN(average, TrainModel::Create(config, settings.dtype));
  }
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(
      settings, rules, std::move(model), std::move(reference), std::move(average), clock)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

absl::Status Trainer::Load(const TensorSet& weights) { return impl_->Load(weights); }

absl::Status Trainer::Restore(const TensorSet& weights, const TensorSource& moments,
                              int64_t updates, int64_t skips_in_a_row) {
  return impl_->Restore(weights, moments, updates, skips_in_a_row);
}

absl::Status Trainer::SetReference(const TensorSet& weights) {
  if (impl_->reference() == nullptr)
    return absl::FailedPreconditionError("the job keeps no initial weights");
  return impl_->reference()->Load(weights);
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
                          TensorSet::Create(impl_->model().config().Parameters(dtype)));
  SLUICE_RETURN_IF_ERROR(impl_->model().Store(&weights));
  return weights;
}
Trainer::Sources Trainer::TakeSnapshot() {
  Optimizer::Snapshots snapshots = impl_->optimizer().TakeSnapshots();
  return {std::make_shared<SnapshotSource>(std::move(snapshots.parameters), /*once=*/false),
          std::make_shared<SnapshotSource>(std::move(snapshots.moments), /*once=*/true)};
}
int64_t Trainer::updates() const { return impl_->optimizer().updates(); }
int64_t Trainer::skips_in_a_row() const { return impl_->skips_in_a_row(); }

void SetComputeThreads(std::function<int()> threads) {
  // The operations that Torch runs itself are the small ones of a step. On one thread their sums
  // are computed in one order. OpenMP then starts no threads, which would spin on cores that other
  // work needs.
  at::set_num_threads(1);
  SetParallelThreads(std::move(threads));
}

}  // namespace sluice::trainer
