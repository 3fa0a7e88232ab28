#include "services/trainer/core/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/collective.h"
#include "common/models/parallel.h"
#include "common/models/train_model.h"
#include "kernels/fingerprint/op.h"
#include "services/trainer/core/batch_step.h"
#include "services/trainer/core/context_parallel.h"
#include "services/trainer/core/critic.h"
#include "services/trainer/core/experience_codec.h"
#include "services/trainer/core/lora.h"
#include "services/trainer/core/model_shards.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/shard_exchange.h"
#include "services/trainer/core/step_metrics.h"
#include "services/trainer/core/updater.h"
#include "services/trainer/core/version_history.h"

namespace sluice::trainer {
namespace {
// How often the weights of the ranks are compared. It costs one pass over the weights.
constexpr int64_t kStepsPerCheck = 50;

Optimizer::Average AverageOf(const TrainModel* average, double decay, ModelShards* shards) {
  if (average == nullptr) return {};
  return {average->parameters(), decay, shards};
}
}  // namespace

class Trainer::Impl {
 public:
  Impl(const Settings& settings, const Rules& rules, std::unique_ptr<TrainModel> model,
       std::unique_ptr<TrainModel> reference, std::unique_ptr<TrainModel> average,
       std::unique_ptr<TrainModel> teacher, std::unique_ptr<TrainModel> past,
       std::unique_ptr<TrainModel> critic, Clock* clock, Collective* collective,
       std::shared_ptr<Collective> snapshots)
      : settings_(settings),
        rules_(rules),
        clock_(clock),
        ranks_(collective, settings.context && SharesLongSequences(rules)
                               ? int64_t{settings.micro_batch_tokens}
                               : 0),
        context_(collective == nullptr || !settings.context
                     ? nullptr
                     : std::make_unique<ContextParallel>(&ranks_)),
        model_(WithContext(std::move(model))),
        reference_(WithContext(std::move(reference))),
        average_(WithContext(std::move(average))),
        teacher_(WithContext(std::move(teacher))),
        past_(std::move(past)),
        history_(static_cast<size_t>(KeptVersions(settings, rules)), settings.dtype),
        critic_(critic == nullptr
                    ? nullptr
                    : std::make_unique<Critic>(std::move(critic), settings_, &ranks_)),
        shards_(collective == nullptr || settings.shard < Shard::kGradients
                    ? nullptr
                    : std::make_unique<ModelShards>(
                          model_.get(), &ranks_, &pass_memory_,
                          ModelShards::Parts{.parameters = settings.shard == Shard::kParameters,
                                             .gradients = true})),
        reference_shards_(ShardsOf(reference_.get())),
        average_shards_(ShardsOf(average_.get())),
        optimizer_(model_->parameters(), settings.optimizer, &ranks_,
                   settings.shard != Shard::kNone,
                   AverageOf(average_.get(), rules.loss.ewma, average_shards_.get()),
                   settings.lora.rank > 0
                       ? std::make_unique<Lora>(settings.lora, model_.get(), reference_.get())
                       : nullptr,
                   shards_.get()),
        updater_(settings_, rules_, HasSeparateTerms(settings, rules),
                 {.policy = model_.get(),
                  .reference = reference_.get(),
                  .average = average_.get(),
                  .teacher = teacher_.get(),
                  .past = past_.get()},
                 critic_.get(), &optimizer_, &ranks_, clock) {
    if (context_ != nullptr) context_->SetOptimizer(&optimizer_);
    if (!optimizer_.sharded()) return;
    SLUICE_CHECK(snapshots != nullptr);
    if (ranks_.rank() == 0) shard_reader_.emplace(std::move(snapshots));
    else shard_server_.emplace(std::move(snapshots), ranks_.rank());
  }

  // What rank 0 does, with the arguments that the other ranks need. Each of these has the other
  // ranks do the same.

  absl::Status Load(const TensorSet& weights, const TensorSet* critic) {
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kLoad}));
    return DoLoad(&weights, critic == nullptr ? &weights : critic);
  }
  absl::Status Restore(const TensorSet& weights, const TensorSource& moments, int64_t updates,
                       int64_t skips_in_a_row, const SavedCritic& critic) {
    if (critic_ != nullptr && (critic.parameters == nullptr || critic.moments == nullptr))
      return absl::InvalidArgumentError("the checkpoint has no critic, which the job needs");
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kRestore,
                                 .number = updates,
                                 .skips_in_a_row = skips_in_a_row,
                                 .critic_updates = critic.updates}));
    return DoRestore(&weights, &moments, updates, skips_in_a_row, critic);
  }
  absl::Status SetRewardKl(double coefficient) {
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kRewardKl, .coefficient = coefficient}));
    rules_.reward_kl = coefficient;
    return absl::OkStatus();
  }
  absl::Status SetReference(const TensorSet& weights) {
    if (reference_ == nullptr)
      return absl::FailedPreconditionError("the job keeps no initial weights");
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kReference}));
    return LoadModel(reference_.get(), reference_shards_.get(), &weights);
  }
  absl::Status SetTeacher(const TensorSet& weights) {
    if (teacher_ == nullptr) return absl::FailedPreconditionError("the job has no teacher");
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kTeacher}));
    return LoadModel(teacher_.get(), nullptr, &weights);
  }
  absl::Status Add(int64_t k, std::vector<Group> groups) {
    Command command{.kind = Command::Kind::kAdd, .number = k};
    if (ranks_.many()) SLUICE_RETURN_IF_ERROR(Tell(command, EncodeGroups(groups)));
    return DoAdd(k, std::move(groups));
  }
  absl::StatusOr<StepResult> Finish(int64_t k) {
    // A batch without groups is a step that is skipped.
    if (step_ == nullptr) SLUICE_RETURN_IF_ERROR(Add(k, {}));
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kFinish, .number = k}));
    return DoFinish(k);
  }
  void Abandon() {
    // If the other ranks do not hear of it, they are gone, and the next call says so.
    if (step_ != nullptr) Tell({.kind = Command::Kind::kAbandon}).IgnoreError();
    DoAbandon();
  }
  absl::StatusOr<HeldOutSums> Evaluate(std::vector<Group> groups) {
    if (step_ != nullptr)
      return absl::FailedPreconditionError(
          absl::StrCat("rows cannot be evaluated while batch ", k_, " is open"));
    const Command command{.kind = Command::Kind::kEvaluate};
    if (ranks_.many()) SLUICE_RETURN_IF_ERROR(Tell(command, EncodeGroups(groups)));
    return DoEvaluate(groups);
  }
  absl::StatusOr<Sources> TakeSnapshot() {
    if (shard_reader_.has_value()) SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kSnapshot}));
    Optimizer::Snapshots snapshots = optimizer_.TakeSnapshots();
    Sources sources;
    // The checkpoint's model is read twice if its files hold it rounded.
    snapshots.parameters.once = false;
    sources.model = Open(std::move(snapshots.parameters), optimizer_.shares_parameters());
    sources.moments = Open(std::move(snapshots.moments), optimizer_.sharded());
    if (critic_ != nullptr) {
      Optimizer::Snapshots critic = critic_->optimizer().TakeSnapshots();
      sources.critic = Open(std::move(critic.parameters), /*shared=*/false);
      sources.critic_moments = Open(std::move(critic.moments), optimizer_.sharded());
    }
    return sources;
  }

  absl::StatusOr<TensorSet> Weights(DType dtype) {
    SLUICE_ASSIGN_OR_RETURN(TensorSet weights,
                            TensorSet::Create(model_->config().Parameters(dtype)));
    if (!optimizer_.shares_parameters()) {
      SLUICE_RETURN_IF_ERROR(model_->Store(&weights));
      return weights;
    }
    SLUICE_RETURN_IF_ERROR(Tell({.kind = Command::Kind::kWeights}));
    SLUICE_RETURN_IF_ERROR(shards_->Store(&weights));
    return weights;
  }

  absl::Status Follow(const std::function<void(bool now)>& works);
  void SetCheckpointDir(const std::string& dir) {
    if (shard_server_.has_value()) shard_server_->SetFolder(dir);
  }

  Critic* critic() { return critic_.get(); }
  double reward_kl() const { return rules_.reward_kl; }
  Optimizer& optimizer() { return optimizer_; }
  int64_t skips_in_a_row() const { return skips_in_a_row_; }

 private:
  // What rank 0 tells the other ranks to do with it.
  struct Command {
    enum class Kind : int64_t {
      kLoad,
      kRestore,
      kRewardKl,
      kReference,
      kTeacher,
      kAdd,
      kFinish,
      kAbandon,
      kSnapshot,
      kWeights,
      kEvaluate
    };
    Kind kind = Kind::kLoad;
    int64_t number = 0;  // The batch, or the number of updates.
    int64_t skips_in_a_row = 0;
    int64_t critic_updates = 0;
    double coefficient = 0;
  };
  // The command comes behind the groups, which are large and need not be copied then.
  absl::Status Tell(const Command& command, std::string groups = "") {
    if (!ranks_.many()) return absl::OkStatus();
    groups.append(reinterpret_cast<const char*>(&command), sizeof(command));
    return ranks_.collective().Send(std::move(groups));
  }
  absl::Status Do(const Command& command, absl::string_view groups);

  // The whole tensors, of which this rank has a part if they are shared.
  std::shared_ptr<const TensorSource> Open(ShardSnapshot snapshot, bool shared) {
    if (shared) return shard_reader_->Open(std::move(snapshot));
    return std::make_shared<SnapshotSource>(std::move(snapshot.part), snapshot.once);
  }

  // The model, whose long sequences all ranks compute together if the job wants that. A model with
  // weights of older versions is not among them: each rank has another version in it at a time.
  std::unique_ptr<TrainModel> WithContext(std::unique_ptr<TrainModel> model) {
    if (context_ == nullptr || model == nullptr) return model;
    return context_->Wrap(std::move(model));
  }

  // The shards of a frozen model or an average, of which each rank has the parameters that it has
  // of the policy. Null if that is all of them.
  std::unique_ptr<ModelShards> ShardsOf(TrainModel* model) {
    if (model == nullptr || !ranks_.many() || settings_.shard != Shard::kParameters) return nullptr;
    return std::make_unique<ModelShards>(model, &ranks_, &pass_memory_,
                                         ModelShards::Parts{.parameters = true});
  }

  // What every rank does. What is read from a checkpoint is null on ranks other than 0, which get
  // it from rank 0.

  absl::Status DoAdd(int64_t k, std::vector<Group> groups) {
    if (step_ != nullptr && k_ != k) {
      return absl::FailedPreconditionError(
          absl::StrCat("batch ", k, " was added while batch ", k_, " is open"));
    }
    if (step_ == nullptr) {
      k_ = k;
      step_ = Streams(settings_) ? MakeStreamedStep(settings_, rules_, k, updater_, *clock_)
                                 : MakeWholeStep(settings_, rules_, k, updater_, history_, *clock_);
    }
    SLUICE_RETURN_IF_ERROR(step_->Add(std::move(groups)));
    return ranks_.passes().AwaitOthers();
  }

  absl::StatusOr<StepResult> DoFinish(int64_t k) {
    if (k_ != k)
      return absl::FailedPreconditionError(
          absl::StrCat("batch ", k, " cannot be finished while batch ", k_, " is open"));

    // The step's update overwrites the weights of version k.
    SLUICE_RETURN_IF_ERROR(history_.Keep(k, *model_));
    StepResult result;
    result.k = k;
    if (absl::Status status = step_->Finish(&result); !status.ok()) {
      DoAbandon();
      return status;
    }
    skips_in_a_row_ = result.skipped.empty() ? 0 : skips_in_a_row_ + 1;
    result.skips_in_a_row = skips_in_a_row_;
    FillResult(*step_, &result);
    AdaptRewardKl(step_->sequences(), result);
    step_.reset();
    SLUICE_RETURN_IF_ERROR(ranks_.passes().AwaitOthers());
    if (k % kStepsPerCheck == kStepsPerCheck - 1) SLUICE_RETURN_IF_ERROR(CheckRanksAgree());
    return result;
  }

  absl::StatusOr<HeldOutSums> DoEvaluate(absl::Span<const Group> groups) {
    return ScoreHeldOut(settings_, groups, ranks_, &updater_.scorer());
  }

  void DoAbandon() {
    step_.reset();
    optimizer_.ZeroGrad();
  }

  absl::Status DoLoad(const TensorSet* weights, const TensorSet* critic) {
    DoAbandon();
    optimizer_.PreserveAll();
    optimizer_.Reset();
    history_.Clear();
    skips_in_a_row_ = 0;
    rules_.reward_kl = settings_.algorithm.advantage.kl;
    if (average_ != nullptr)
      SLUICE_RETURN_IF_ERROR(LoadModel(average_.get(), average_shards_.get(), weights));
    if (critic_ != nullptr) SLUICE_RETURN_IF_ERROR(critic_->Load(critic));
    return LoadModel(model_.get(), shards_.get(), weights);
  }

  absl::Status DoRestore(const TensorSet* weights, const TensorSource* moments, int64_t updates,
                         int64_t skips_in_a_row, const SavedCritic& critic) {
    SLUICE_RETURN_IF_ERROR(DoLoad(weights, weights));
    SLUICE_RETURN_IF_ERROR(CheckFrozenWeights());
    SLUICE_RETURN_IF_ERROR(optimizer_.Restore(moments, updates));
    if (critic_ != nullptr)
      SLUICE_RETURN_IF_ERROR(critic_->Restore(critic.parameters, critic.moments, critic.updates));
    skips_in_a_row_ = skips_in_a_row;
    return absl::OkStatus();
  }

  // `shards` are those of the model, or null.
  absl::Status LoadModel(TrainModel* model, ModelShards* shards, const TensorSet* weights);
  // DATA_LOSS RANKS_DIFFER: the weights of two ranks have become different.
  absl::Status CheckRanksAgree();

  // FAILED_PRECONDITION: the weights without factors, which low-rank training never changes, are
  // not those of the initial model, so the factors belong to another one.
  absl::Status CheckFrozenWeights() const;
  // Adapts the coefficient of the KL in the reward to the KL of a step. A step that has not changed
  // the policy leaves it as it is.
  void AdaptRewardKl(const SequenceBuilder& sequences, const StepResult& result) {
    if (rules_.reward_kl == 0 || !result.skipped.empty() || result.critic_alone) return;
    rules_.reward_kl = AdaptKl(rules_.kl_control, rules_.reward_kl, sequences.reward_kl(),
                               sequences.counts().sequences);
  }

  // Sets the counts and metrics of a finished step.
  void FillResult(const BatchStep& step, StepResult* result) const;

  const Settings settings_;
  Rules rules_;
  Clock* const clock_;
  Ranks ranks_;
  std::unique_ptr<ContextParallel> context_;  // Null if each rank computes its sequences alone.
  std::unique_ptr<TrainModel> model_;
  std::unique_ptr<TrainModel> reference_;  // The initial weights; null if they are not kept.
  std::unique_ptr<TrainModel> average_;    // The averaged weights of prox ewma, else null.
  std::unique_ptr<TrainModel> teacher_;    // Null if there is none.
  // Of prox exact: the weights of older versions, and the model that scores with them.
  std::unique_ptr<TrainModel> past_;
  VersionHistory history_;
  std::unique_ptr<Critic> critic_;  // Null if the job has none.
  PassMemory pass_memory_;
  // Of model_; null if each rank has its whole gradients.
  std::unique_ptr<ModelShards> shards_;
  std::unique_ptr<ModelShards> reference_shards_, average_shards_;  // See ShardsOf().
  Optimizer optimizer_;
  Updater updater_;

  // If the ranks share out the moments, the one or the other.
  std::optional<ShardReader> shard_reader_;
  std::optional<ShardServer> shard_server_;

  std::unique_ptr<BatchStep> step_;  // The step of batch k_; null while no batch is open.
  int64_t k_ = 0;
  int64_t skips_in_a_row_ = 0;
};

absl::Status Trainer::Impl::Follow(const std::function<void(bool now)>& works) {
  while (true) {
    works(false);
    SLUICE_ASSIGN_OR_RETURN(const std::string message, ranks_.collective().Receive());
    works(true);
    Command command;
    SLUICE_CHECK(message.size() >= sizeof(command));
    const size_t groups = message.size() - sizeof(command);
    std::memcpy(&command, message.data() + groups, sizeof(command));
    SLUICE_RETURN_IF_ERROR(Do(command, absl::string_view(message).substr(0, groups)));
  }
}

absl::Status Trainer::Impl::Do(const Command& command, absl::string_view groups) {
  switch (command.kind) {
    case Command::Kind::kLoad: return DoLoad(nullptr, nullptr);
    case Command::Kind::kRestore:
      return DoRestore(nullptr, nullptr, command.number, command.skips_in_a_row,
                       {.updates = command.critic_updates});
    case Command::Kind::kRewardKl: rules_.reward_kl = command.coefficient; return absl::OkStatus();
    case Command::Kind::kReference:
      return LoadModel(reference_.get(), reference_shards_.get(), nullptr);
    case Command::Kind::kTeacher: return LoadModel(teacher_.get(), nullptr, nullptr);
    case Command::Kind::kAdd: {
      SLUICE_ASSIGN_OR_RETURN(std::vector<Group> batch, DecodeGroups(groups));
      return DoAdd(command.number, std::move(batch));
    }
    case Command::Kind::kFinish: return DoFinish(command.number).status();
    case Command::Kind::kAbandon: DoAbandon(); return absl::OkStatus();
    case Command::Kind::kEvaluate: {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<Group> rows, DecodeGroups(groups));
      return DoEvaluate(rows).status();
    }
    case Command::Kind::kWeights: return shards_->Store(nullptr);
    case Command::Kind::kSnapshot: {
      Optimizer::Snapshots snapshots = optimizer_.TakeSnapshots();
      snapshots.parameters.once = false;
      if (optimizer_.shares_parameters()) shard_server_->Add(std::move(snapshots.parameters));
      shard_server_->Add(std::move(snapshots.moments));
      if (critic_ != nullptr) shard_server_->Add(critic_->optimizer().TakeSnapshots().moments);
      return absl::OkStatus();
    }
  }
  return absl::InternalError("rank 0 asks for what this build does not know");
}

absl::Status Trainer::Impl::LoadModel(TrainModel* model, ModelShards* shards,
                                      const TensorSet* weights) {
  if (shards != nullptr && shards->has_parameters()) return shards->Load(weights);
  if (weights != nullptr) SLUICE_RETURN_IF_ERROR(model->Load(*weights));
  return BroadcastParameters(ranks_, model->parameters());
}

absl::Status Trainer::Impl::CheckRanksAgree() {
  if (!ranks_.many()) return absl::OkStatus();
  std::vector<TrainModel::Parameter> parameters = model_->parameters();
  if (critic_ != nullptr) {
    for (const TrainModel::Parameter& parameter : critic_->parameters())
      parameters.push_back({absl::StrCat("critic ", parameter.name), parameter.tensor});
  }
  struct Sum {
    uint64_t lanes[2] = {0, 0};
    bool operator==(const Sum&) const = default;
  };
  std::vector<Sum> sums(parameters.size());
  const auto add_up = [&](size_t i) {
    const at::Tensor& tensor = parameters[i].tensor;
    kernels::AddFingerprint(0, tensor.const_data_ptr<float>(), sizeof(float), 0,
                            static_cast<uint64_t>(tensor.numel()), sums[i].lanes);
  };
  // Of parameters in parts there is one copy. Then this compares what the ranks gather.
  size_t first = 0;
  if (optimizer_.shares_parameters()) {
    first = model_->parameters().size();
    SLUICE_RETURN_IF_ERROR(shards_->ForEachGathered(add_up));
  }
  ParallelEach(static_cast<int64_t>(sums.size() - first),
               [&](int64_t i) { add_up(first + static_cast<size_t>(i)); });
  SLUICE_ASSIGN_OR_RETURN(const Ranks::Joined<Sum> all, ranks_.Join(sums));
  for (int rank = 1; rank < ranks_.world(); ++rank) {
    for (size_t i = 0; i < sums.size(); ++i) {
      if (all.values[all.first[rank] + i] == all.values[i]) continue;
      return Error(absl::StatusCode::kDataLoss, "RANKS_DIFFER",
                   absl::StrCat("after batch ", k_, " the weight ", parameters[i].name, " of rank ",
                                rank, " is not that of rank 0"));
    }
  }
  return absl::OkStatus();
}

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

  AddRewardMetrics(rules_.advantage, sequences, &result->metrics);
  if (rules_.reward_kl != 0) {
    result->metrics["reward_kl"] = sequences.reward_kl();
    result->metrics["reward_kl_coef"] = rules_.reward_kl;
  }
  if (context_ != nullptr)
    result->metrics["context_passes"] = static_cast<double>(context_->TakePasses());
  const UpdateSums& sums = step.sums();
  if (sums.tokens > 0 && sums.finite()) {
    const double tokens = static_cast<double>(sums.tokens);
    result->metrics["entropy"] = sums.entropy / tokens;
    if (rules_.loss.kl != nullptr) result->metrics["kl"] = sums.kl / tokens;
    AddDistillMetrics(rules_.loss.distill, sums.distill, sums.tokens, &result->metrics);
    if (model_->config().num_experts > 0)
      result->metrics["experts_recorded"] = static_cast<double>(sums.recorded) / tokens;
  }
  if (result->tokens > 0) {
    AddStalenessMetrics(sequences.staleness(), &result->metrics);
    AddMismatch(settings_, rules_.loss, sequences.staleness(), &result->metrics);
    result->metrics["bad_behav"] = static_cast<double>(sums.stats.bad_behav());
  }
}

namespace {
// Each rank has fitted the tokens of a micro-batch to its own memory. Which sequences the ranks
// compute together, and in which parts, follows from them, so all take the smallest.
absl::Status AgreeOnMicroBatches(Collective* collective, Settings* settings) {
  if (collective == nullptr) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          collective->Gather(absl::StrCat(settings->micro_batch_tokens)));
  for (const std::string& one : all) {
    uint32_t tokens = 0;
    if (!absl::SimpleAtoi(one, &tokens) || tokens == 0)
      return absl::InternalError(absl::StrCat("a rank has micro-batches of \"", one, "\" tokens"));
    settings->micro_batch_tokens = std::min(settings->micro_batch_tokens, tokens);
  }
  return absl::OkStatus();
}
}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Settings settings,
                                                         const ModelConfig& config, Clock* clock,
                                                         Collective* collective,
                                                         std::shared_ptr<Collective> snapshots,
                                                         const ModelConfig* teacher_config) {
  SLUICE_RETURN_IF_ERROR(Validate(settings));
  SLUICE_ASSIGN_OR_RETURN(const Rules rules, ResolveRules(settings));
  if (rules.loss.router_balance > 0 && config.num_experts == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm.loss.router_balance is ", rules.loss.router_balance,
                     ", but the model has no experts whose load could be balanced; use 0"));
  }
  SLUICE_RETURN_IF_ERROR(AgreeOnMicroBatches(collective, &settings));
  const bool lent = collective != nullptr && settings.shard == Shard::kParameters;
  // Models that are only read keep nothing for a backward pass.
  const ActivationMemory read{.part_tokens = settings.micro_batch_tokens},
      trained{.recompute = settings.recompute,
              .most_kept_bytes = settings.most_kept_bytes,
              .part_tokens = settings.micro_batch_tokens};
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<TrainModel> model,
                          TrainModel::Create(config, settings.dtype, trained, lent));
  std::unique_ptr<TrainModel> reference;
  if (KeepsInitialWeights(settings)) {
    SLUICE_ASSIGN_OR_RETURN(reference, TrainModel::Create(config, settings.dtype, read, lent));
  }
  std::unique_ptr<TrainModel> average;
  if (rules.loss.prox == ProxMode::kEwma) {
    SLUICE_ASSIGN_OR_RETURN(average, TrainModel::Create(config, settings.dtype, read, lent));
  }
  std::unique_ptr<TrainModel> teacher;
  if (settings.teacher) {
    SLUICE_CHECK(teacher_config != nullptr);
    SLUICE_ASSIGN_OR_RETURN(teacher, TrainModel::Create(*teacher_config, settings.dtype, read));
  }
  std::unique_ptr<TrainModel> past;
  if (KeptVersions(settings, rules) > 0) {
    SLUICE_ASSIGN_OR_RETURN(past, TrainModel::Create(config, settings.dtype, read));
  }
  std::unique_ptr<TrainModel> critic;
  if (HasCritic(settings)) {
    SLUICE_ASSIGN_OR_RETURN(critic,
                            TrainModel::Create(Critic::ConfigOf(config), settings.dtype, trained));
  }
  return std::unique_ptr<Trainer>(new Trainer(
      std::make_unique<Impl>(settings, rules, std::move(model), std::move(reference),
                             std::move(average), std::move(teacher), std::move(past),
                             std::move(critic), clock, collective, std::move(snapshots))));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

absl::Status Trainer::Load(const TensorSet& weights, const TensorSet* critic) {
  return impl_->Load(weights, critic);
}

absl::Status Trainer::Restore(const TensorSet& weights, const TensorSource& moments,
                              int64_t updates, int64_t skips_in_a_row, const SavedCritic& critic) {
  return impl_->Restore(weights, moments, updates, skips_in_a_row, critic);
}

absl::Status Trainer::SetRewardKl(double coefficient) { return impl_->SetRewardKl(coefficient); }

absl::Status Trainer::SetReference(const TensorSet& weights) {
  return impl_->SetReference(weights);
}

absl::Status Trainer::SetTeacher(const TensorSet& weights) { return impl_->SetTeacher(weights); }

absl::Status Trainer::Follow(const std::function<void(bool now)>& works) {
  return impl_->Follow(works);
}

absl::Status Trainer::Add(int64_t k, std::vector<Group> groups) {
  absl::Status status = impl_->Add(k, std::move(groups));
  if (!status.ok()) Abandon();
  return status;
}
absl::StatusOr<StepResult> Trainer::Finish(int64_t k) { return impl_->Finish(k); }
void Trainer::Abandon() { impl_->Abandon(); }
absl::StatusOr<HeldOutSums> Trainer::Evaluate(std::vector<Group> groups) {
  return impl_->Evaluate(std::move(groups));
}

absl::StatusOr<TensorSet> Trainer::Weights(DType dtype) const { return impl_->Weights(dtype); }
void Trainer::SetCheckpointDir(const std::string& dir) { impl_->SetCheckpointDir(dir); }
absl::StatusOr<Trainer::Sources> Trainer::TakeSnapshot() { return impl_->TakeSnapshot(); }
int64_t Trainer::updates() const { return impl_->optimizer().updates(); }
int64_t Trainer::critic_updates() const {
  return impl_->critic() == nullptr ? 0 : impl_->critic()->optimizer().updates();
}
double Trainer::reward_kl() const { return impl_->reward_kl(); }
int64_t Trainer::skips_in_a_row() const { return impl_->skips_in_a_row(); }

void SetComputeThreads(std::function<int()> threads) {
  // The operations that Torch runs itself are the small ones of a step. On one thread their sums
  // are computed in one order. OpenMP then starts no threads, which would spin on cores that other
  // work needs.
  at::set_num_threads(1);
  SetParallelThreads(std::move(threads));
}

}  // namespace sluice::trainer
