#include "services/trainer/job.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/failpoint.h"
#include "common/base/reused_memory.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/base/watchdog.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/cores/core_share.h"
#include "common/log/log.h"
#include "common/models/flops.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "common/weights/weight_mirror.h"
#include "services/trainer/canary_trial.h"
#include "services/trainer/core/step_metrics.h"
#include "services/trainer/core/trainer.h"
#include "services/trainer/demonstrations.h"
#include "services/trainer/held_out_rows.h"
#include "services/trainer/job_checkpoints.h"
#include "services/trainer/job_context.h"
#include "services/trainer/job_evaluations.h"
#include "services/trainer/job_memory.h"
#include "services/trainer/job_queue.h"
#include "services/trainer/publication.h"
#include "services/trainer/rank_link.h"
#include "services/trainer/step_reporter.h"
#include "services/trainer/teacher.h"

namespace sluice::trainer {
namespace {
// Neither loading nor training one batch takes as long as this. Waits are not watched.
constexpr absl::Duration kLongestWork = absl::Hours(1);

std::optional<double> FindMetric(const StepResult& result, const std::string& name) {
  const auto found = result.metrics.find(name);
  return found == result.metrics.end() ? std::nullopt : std::optional(found->second);
}
}  // namespace

class TrainingJob::Impl {
 public:
  Impl(JobConfig config, std::string worker, CoreShare* cores, WeightsServer* weights,
       metrics::Registry* registry, Hooks hooks)
      : job_{.config = std::move(config),
             .worker = std::move(worker),
             .event_sink = std::move(hooks.on_event)},
        cores_(cores),
        weights_(weights),
        on_standing_(std::move(hooks.on_standing)),
        metrics_(registry == nullptr ? Metrics()
                                     : Metrics(registry, job_.config.name,
                                               MeasurePeakFlops(job_.config.settings.dtype) *
                                                   job_.config.ranks.world)),
        reporter_(&job_, &metrics_, std::move(hooks.on_step)),
        queue_(&job_),
        checkpoints_(&job_, &metrics_),
        trial_(&job_),
        evaluations_(&job_) {
    receivers_ = static_cast<int>(job_.config.rollouts.size());
  }

  void Run();
  void Leave(bool checkpoint);
  void SetQueue(const std::string& address) { queue_.MoveTo(address); }
  void SetRollouts(std::vector<std::string> rollouts) {
    receivers_ = static_cast<int>(rollouts.size());
    evaluations_.SetRollouts(std::move(rollouts));
  }
  const JobConfig& config() const { return job_.config; }
  std::vector<common::v1::WaitEdge> Explain() const { return job_.waits.Edges(); }
  void HideWeights() { weights_->SetPublisher(job_.config.id, nullptr); }

  std::thread thread;

 private:
  // A batch that was trained, with the result of its step.
  struct TrainedStep {
    StepResult result;
    JobQueue::TrainedBatch batch;
  };

  // The phases of a run, in their order.
  absl::Status Load();
  absl::Status Connect();
  absl::Status Train();
  void End(const absl::Status& status);

  // Parts of Load() and Connect().
  absl::Status JoinRanks();
  absl::StatusOr<TensorSet> InitialWeights(const ModelDir& model) const;
  std::unique_ptr<WeightMirror> MakeMirror();
  void ServeWeights();
  std::optional<Publication::Canary> CanaryAfter(const JobQueue::Restored& restored);
  absl::StatusOr<PublishedVersion> PublishAgain(int64_t version);
  std::optional<PublishedVersion> PublishUnfinishedEvaluation();

  // Parts of a step.
  absl::Status Step();
  absl::StatusOr<TrainedStep> TrainBatch(int64_t k, PhaseSeconds* seconds);
  absl::StatusOr<std::optional<CheckpointContents>> ApplyAndPublish(const TrainedStep& step,
                                                                    bool evaluate,
                                                                    PhaseSeconds* seconds);
  absl::StatusOr<CheckpointContents> MakeCheckpoint(std::string cursor);
  absl::Status CheckSkips(const StepResult& result) const;
  void Report(const StepResult& result, const PhaseSeconds& seconds);

  // Going back to an older version.
  absl::Status AskRollback(int64_t version);
  void CloseDesk();  // No call of AskRollback() runs from here on.
  absl::Status RollbackStatus() const;
  static std::string RollbackCause(int64_t version) {
    return absl::StrCat("it was asked to go back to version ", version);
  }
  void GoBack(const absl::Status& why, PolicyVersion promoted);

  // Parts of the end.
  absl::Status WriteLastCheckpoint();
  absl::Status FinishEvaluations();

  absl::Status StartEvaluation();
  absl::StatusOr<Evaluation> EvaluateHeldOut(absl::Status* trainer_status);
  absl::StatusOr<std::shared_ptr<const TensorSet>> Snapshot(DType dtype) const;
  void OfferWeights(std::shared_ptr<const TensorSet> weights);
  void ReportStanding(bool ready, absl::string_view phase, absl::string_view cause = "") const;
  int64_t version() const { return state_.version.number; }  // Number of applied steps.
  // version(), as this incarnation publishes it.
  PolicyVersion policy_version() const { return {job_.config.incarnation, version()}; }

  const ReusedMemory memory_;  // Of the `job` thread; outlives all that the thread makes.
  JobContext job_;
  CoreShare* const cores_;
  WeightsServer* const weights_;
  const std::function<void(const Standing& standing)> on_standing_;
  Metrics metrics_;

  // Set by Leave() from any thread; all else is the `job` thread's.
  std::atomic<bool> leave_{false};
  std::atomic<bool> leave_checkpoint_{false};
  std::atomic<int> receivers_{0};  // Rollouts that fetch weights. Set from any thread.

  // Empty while the job waits for data, because other daemons may use its cores then.
  std::optional<CoreShare::Busy> busy_;
  Watchdog::Loop watched_{ProcessWatchdog(), "train"};

  // Made in this order and destroyed in reverse: later ones hold pointers to earlier ones.
  RankLink ranks_;
  std::unique_ptr<Trainer> trainer_;
  StepReporter reporter_;
  JobQueue queue_;
  JobCheckpoints checkpoints_;
  std::unique_ptr<WeightMirror> mirror_;  // Of the publisher. Null: the job has no weights.dir.
  std::shared_ptr<WeightPublisher> publisher_;
  CanaryTrial trial_;
  std::unique_ptr<Publication> publication_;
  JobEvaluations evaluations_;

  TrainState state_;  // State after the last applied step.
  // Cursor and path of the checkpoint from which the run goes on; empty if there is none.
  std::string cursor_, checkpoint_;
  bool requeue_ = false;                 // See JobQueue::Restore().
  RowEncoder encode_row_;                // Of supervised jobs.
  std::optional<HeldOutRows> held_out_;  // Of supervised jobs with evaluations.
  // Number of experts that a token goes through, over all layers; 0 if the model has no experts.
  int64_t experts_ = 0;
  // While version() is below it, the queue replays batches, and the engines keep what they hold
  // until this version.
  int64_t replay_end_ = 0;
  // What the queue said when it had no further batch. Empty if limits.max_steps was reached.
  std::string why_done_;

  // Where calls of Rollback find this object, as long as it is there.
  struct RollbackDesk {
    Mutex mu;
    Impl* job ABSL_GUARDED_BY(mu) = nullptr;
  };
  const std::shared_ptr<RollbackDesk> desk_ = std::make_shared<RollbackDesk>();
  mutable Mutex rollback_mu_;
  std::optional<int64_t> rollback_
      ABSL_GUARDED_BY(rollback_mu_);  // The version that was asked for.
};

void TrainingJob::Impl::Run() {
  memory_.UseOnThisThread();
  busy_.emplace(cores_);
  ReportStanding(false, "loading");
  watched_.Begin("loads the newest checkpoint, or the model", kLongestWork);
  absl::Status status = Load();
  watched_.Rest();
  if (status.ok()) status = Connect();
  if (status.ok()) status = Train();
  busy_.reset();
  CloseDesk();
  // A person may have asked for a rollback before the first step, or after the last one.
  if (const absl::Status asked = RollbackStatus();
      !asked.ok() && (status.ok() || absl::IsCancelled(status)))
    status = asked;
  End(status);
}

// Load: takes the newest checkpoint that verifies, else the model. -----------------------------

absl::Status TrainingJob::Impl::Load() {
  const JobConfig& config = job_.config;
  const auto loads = job_.waits.Begin(
      {.kind = "STORE",
       .id = config.checkpoint_dir,
       .cause = absl::StrCat(job_.worker, " loads the newest checkpoint, or the model")});

  SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(config.model_dir));
  if (const std::vector<std::string>& ignored = model.config.ignored; !ignored.empty()) {
    log::Warning(
        "model_keys_ignored",
        {{"job_id", config.name}, {"model", model.path}, {"keys", absl::StrJoin(ignored, ", ")}});
  }
  if (model.config.num_experts > 0)
    experts_ = model.config.num_layers * model.config.experts_per_token;
  SLUICE_ASSIGN_OR_RETURN(const std::optional<ModelDir> teacher, ReadTeacher(config, model));
  const ModelConfig* const teacher_config = teacher.has_value() ? &teacher->config : nullptr;
  SLUICE_ASSIGN_OR_RETURN(const Settings settings,
                          FitIntoMemory(config, model.config, teacher_config));
  if (settings.micro_batch_tokens < config.settings.micro_batch_tokens) {
    job_.RaiseEvent(common::v1::SEVERITY_INFO, "micro_batches_lowered",
                    absl::StrCat("micro-batches have at most ", settings.micro_batch_tokens,
                                 " tokens instead of trainer.batching.micro_batch_tokens ",
                                 config.settings.micro_batch_tokens,
                                 ", so that the trainer fits into its memory (`sluice plan`)"));
  }
  SLUICE_RETURN_IF_ERROR(JoinRanks());
  SLUICE_ASSIGN_OR_RETURN(trainer_,
                          Trainer::Create(settings, model.config, job_.clock, ranks_.collective(),
                                          ranks_.snapshots(), teacher_config));
  if (teacher.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(const TensorSet weights, ReadWeights(*teacher, DType::kF32));
    SLUICE_RETURN_IF_ERROR(trainer_->SetTeacher(weights));
  }
  if (config.supervised()) {
    SLUICE_ASSIGN_OR_RETURN(encode_row_, MakeRowEncoder(model, config, config.sources));
    if (evaluations_.enabled()) {
      SLUICE_ASSIGN_OR_RETURN(HeldOutRows rows, HeldOutRows::Read(model, config));
      held_out_.emplace(std::move(rows));
    }
  }

  SLUICE_RETURN_IF_ERROR(checkpoints_.Open(model));
  SLUICE_ASSIGN_OR_RETURN(std::optional<Checkpoint> found, checkpoints_.FindNewest());

  TensorSet initial;
  const bool keeps_initial = KeepsInitialWeights(config.settings);
  if (!found.has_value() || keeps_initial) {
    SLUICE_ASSIGN_OR_RETURN(initial, InitialWeights(model));
  }
  if (keeps_initial) SLUICE_RETURN_IF_ERROR(trainer_->SetReference(initial));
  requeue_ = config.requeue || checkpoints_.BeginsAtFork(found);
  if (found.has_value()) {
    state_ = found->state;
    cursor_ = std::move(found->cursor);
    checkpoint_ = found->path;
    // The process that wrote this checkpoint may have died before it raised the event `checkpoint`,
    // so the controller takes the path from this event too.
    job_.RaiseEvent(common::v1::SEVERITY_INFO, "checkpoint_loaded", checkpoint_);
    SLUICE_RETURN_IF_ERROR(trainer_->Restore(
        found->model, *found->optimizer, state_.updates, state_.skips_in_a_row,
        {found->critic.get(), found->critic_moments.get(), state_.critic_updates}));
    if (AdaptsRewardKl(config.settings))
      SLUICE_RETURN_IF_ERROR(trainer_->SetRewardKl(state_.reward_kl));
  } else {
    const LoraSettings& lora = config.settings.lora;
    state_ = {.job = config.id,
              .seed = config.seed,
              .ledger_hash = FirstLedgerHash(),
              .lora_alpha = lora.rank > 0 ? lora.alpha : 0};
    SLUICE_ASSIGN_OR_RETURN(const std::optional<TensorSet> critic,
                            ReadCriticWeights(config, model));
    SLUICE_RETURN_IF_ERROR(trainer_->Load(initial, critic.has_value() ? &*critic : nullptr));
  }

  reporter_.BeginHistory(version());
  log::Info("model_loaded",
            {{"job_id", config.name}, {"version", version()}, {"checkpoint", checkpoint_}});
  return absl::OkStatus();
}

absl::Status TrainingJob::Impl::JoinRanks() {
  const auto waits = job_.waits.Begin(
      {.kind = "CALL",
       .id = job_.config.ranks.rendezvous,
       .cause = absl::StrCat(job_.worker, " waits until all ", job_.config.ranks.world,
                             " trainer ranks have come")});
  return ranks_.Join(job_.config, job_.worker);
}

absl::StatusOr<TensorSet> TrainingJob::Impl::InitialWeights(const ModelDir& model) const {
  if (job_.config.init_seed.has_value()) return InitWeights(model.config, *job_.config.init_seed);
  return ReadWeights(model, DType::kF32);
}

// Connect: restores the queue, publishes the first version, and starts what runs beside the steps.

absl::Status TrainingJob::Impl::Connect() {
  const JobConfig& config = job_.config;
  SLUICE_RETURN_IF_ERROR(queue_.Connect());
  SLUICE_ASSIGN_OR_RETURN(const JobQueue::Restored restored,
                          queue_.Restore(cursor_, checkpoint_, state_, requeue_));
  replay_end_ = restored.replay_end;

  publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = config.id,
                               .retain_versions = config.retain_versions,
                               .encoding = config.encoding,
                               .on_stored =
                                   [this] {
                                     if (mirror_ != nullptr) mirror_->Write(*publisher_);
                                   }},
      job_.clock);
  std::vector<WeightPublisher::Withdrawn> withdrawn;
  for (const Fork& fork : checkpoints_.forks())
    withdrawn.push_back({fork.withdrawn, fork.version, fork.cause});
  publisher_->SetWithdrawn(std::move(withdrawn));
  if (!config.weights_dir.empty()) mirror_ = MakeMirror();
  SLUICE_RETURN_IF_ERROR(evaluations_.Open(version(), publisher_.get()));
  // The publisher takes versions only in rising order, so the older version is published before the
  // first one of this run.
  const std::optional<PublishedVersion> unfinished = PublishUnfinishedEvaluation();
  checkpoints_.StartWriting(queue_.client(), checkpoint_, version());
  publication_ = std::make_unique<Publication>(
      publisher_.get(), queue_.client(), job_.clock, metrics_.publish(), restored.published,
      CanaryAfter(restored), [this] { queue_.CancelReading(); });

  const auto publishes =
      job_.waits.Begin({.kind = "VERSION",
                        .id = policy_version().str(),
                        .cause = absl::StrCat(job_.worker, " publishes its first version")});
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights,
                          Snapshot(config.settings.dtype));
  OfferWeights(std::move(weights));
  // A version on trial needs a canary that can fetch it; else nobody asks before it is published.
  if (config.canary.has_value()) ServeWeights();
  SLUICE_RETURN_IF_ERROR(publication_->Flush());
  if (!config.canary.has_value()) ServeWeights();

  if (unfinished.has_value()) {
    SLUICE_RETURN_IF_ERROR(evaluations_.Start(*unfinished));
  } else if (evaluations_.CheckDue(version())) {
    SLUICE_RETURN_IF_ERROR(StartEvaluation());
  }
  queue_.StartReading({.first = version(),
                       .end = config.max_steps,
                       .stream = Streams(config.settings),
                       .experts = experts_,
                       .rewards = config.settings.rewards,
                       .encode_row = encode_row_,
                       .skip_bad_rows = config.skip_bad_rows});
  return absl::OkStatus();
}

std::unique_ptr<WeightMirror> TrainingJob::Impl::MakeMirror() {
  const JobConfig& config = job_.config;
  const auto on_change = [this](const absl::Status& status) {
    if (status.ok()) {
      return job_.RaiseEvent(
          common::v1::SEVERITY_INFO, "weights_dir_caught_up",
          absl::StrCat(job_.config.weights_dir, " has the newest version again"));
    }
    log::Error(
        "weights_dir_behind",
        {{"job_id", job_.config.name}, {"folder", job_.config.weights_dir}, {"error", status}});
    job_.RaiseEvent(common::v1::SEVERITY_ERROR, "weights_dir_behind",
                    absl::StrCat("the newest version could not be written to weights.dir, ",
                                 job_.config.weights_dir, ": ", status.message(),
                                 "; rollouts still get it from the trainer. The newest version is "
                                 "written there as soon as the disk takes it"));
  };
  return std::make_unique<WeightMirror>(
      WeightMirror::Options{.on_change = on_change},
      WeightFolderWriter(config.weights_dir, config.id, config.incarnation));
}

void TrainingJob::Impl::ServeWeights() {
  {
    MutexLock lock(&desk_->mu);
    desk_->job = this;
  }
  weights_->SetPublisher(job_.config.id, publisher_,
                         [desk = desk_](int64_t version) -> absl::Status {
                           MutexLock lock(&desk->mu);
                           if (desk->job == nullptr)
                             return absl::UnavailableError("the job leaves this trainer");
                           return desk->job->AskRollback(version);
                         });
}

void TrainingJob::Impl::CloseDesk() {
  MutexLock lock(&desk_->mu);
  desk_->job = nullptr;
}

// Versions up to the one that rollouts were given last are known from their trials, if they lie on
// the branch: a replay makes them again. Later ones are not, even if a checkpoint holds them, nor
// is any if the queue has forgotten what was published.
std::optional<Publication::Canary> TrainingJob::Impl::CanaryAfter(
    const JobQueue::Restored& restored) {
  if (!job_.config.canary.has_value()) return std::nullopt;
  int64_t known = 0;
  if (restored.published.has_value())
    known = std::min(restored.published->number, std::max(restored.replay_end, version()));
  return Publication::Canary{.trial = &trial_, .rules = *job_.config.canary, .known = known};
}

absl::StatusOr<PublishedVersion> TrainingJob::Impl::PublishAgain(int64_t version) {
  SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(job_.config.model_dir));
  TensorSet exact;
  if (version == 0) {
    SLUICE_ASSIGN_OR_RETURN(exact, InitialWeights(model));
  } else {
    SLUICE_ASSIGN_OR_RETURN(Checkpoint checkpoint, checkpoints_.ReadVersion(version));
    exact = std::move(checkpoint.model);
  }
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights,
                          TensorSet::Create(model.config.Parameters(job_.config.settings.dtype)));
  SLUICE_RETURN_IF_ERROR(ConvertTensors(exact, &weights));
  return publisher_->Publish(weights, {job_.config.incarnation, version}, "");
}

// Publishes the version whose evaluation an earlier incarnation left unfinished. Nullopt: there is
// none, or it cannot be published, which is reported as an event.
std::optional<PublishedVersion> TrainingJob::Impl::PublishUnfinishedEvaluation() {
  const std::optional<int64_t> number = evaluations_.FindUnfinished(version());
  if (!number.has_value()) return std::nullopt;

  const absl::StatusOr<PublishedVersion> published = PublishAgain(*number);
  if (!published.ok()) {
    job_.RaiseEvent(
        common::v1::SEVERITY_ERROR, "eval_lost",
        absl::StrCat("version ", *number,
                     " was being evaluated when the trainer ended, and cannot be read again: ",
                     published.status().message(), "; it is not evaluated"));
    return std::nullopt;
  }
  publisher_->Lease(Evaluator::kHolder, {published->manifest}, absl::InfiniteDuration());
  return *published;
}

// Train: steps until the end. -------------------------------------------------------------------

absl::Status TrainingJob::Impl::Train() {
  ReportStanding(true, "training");
  reporter_.StartClock();
  absl::Status status;
  while (status.ok() && !leave_ && RollbackStatus().ok() && !job_.config.IsLast(version()))
    status = Step();

  if (ReasonOf(status) == "END") {  // The data is used up, or the queue has lower limits.
    log::Info("data_ended",
              {{"job_id", job_.config.name}, {"version", version()}, {"why", status}});
    why_done_ = std::string(status.message());
    status = absl::OkStatus();
  }
  // A rollback and a failed publication cancel the wait for data.
  if (const absl::Status asked = RollbackStatus(); !asked.ok()) return asked;
  if (absl::IsCancelled(status) && !publication_->status().ok()) status = publication_->status();
  if (leave_ && (status.ok() || absl::IsCancelled(status))) {
    trainer_->Abandon();
    if (!leave_checkpoint_) return absl::CancelledError("the job was told to leave");
    status = absl::OkStatus();
  }

  if (status.ok()) status = WriteLastCheckpoint();
  if (status.ok() && !leave_) status = FinishEvaluations();
  const auto flushes =
      job_.waits.Begin({.kind = "STORE",
                        .id = job_.config.checkpoint_dir,
                        .cause = absl::StrCat(job_.worker, " writes the last checkpoint")});
  // A trainer that leaves does not wait for the trial of a version, which the next one publishes.
  const bool tries = leave_ && job_.config.canary.has_value();
  if (status.ok() && !tries) status = publication_->Flush();
  if (status.ok()) status = checkpoints_.Flush();
  return status;
}

absl::Status TrainingJob::Impl::Step() {
  const int64_t k = version();
  PhaseSeconds seconds;
  SLUICE_ASSIGN_OR_RETURN(const TrainedStep step, TrainBatch(k, &seconds));
  const bool evaluate = evaluations_.CheckDue(k + 1);
  SLUICE_ASSIGN_OR_RETURN(std::optional<CheckpointContents> checkpoint,
                          ApplyAndPublish(step, evaluate, &seconds));
  evaluations_.AwaitBeforeLastStep(version());

  // The step is in the history before a checkpoint can hold it, so that a kill in between leaves no
  // gap. The report of the last step also carries the last evaluation, and the checkpoint does not
  // wait for that.
  const bool report_carries_evaluation = job_.config.IsLast(version()) && evaluations_.enabled();
  if (!report_carries_evaluation) Report(step.result, seconds);
  if (checkpoint.has_value()) {
    SLUICE_RETURN_IF_ERROR(checkpoints_.Write(*std::move(checkpoint)));
  }
  if (evaluate) SLUICE_RETURN_IF_ERROR(StartEvaluation());
  if (report_carries_evaluation) {
    SLUICE_RETURN_IF_ERROR(FinishEvaluations());
    Report(step.result, seconds);
  }

  SLUICE_RETURN_IF_ERROR(CheckSkips(step.result));
  SLUICE_RETURN_IF_ERROR(evaluations_.status());
  SLUICE_RETURN_IF_ERROR(publication_->status());
  return checkpoints_.status();
}

absl::StatusOr<TrainingJob::Impl::TrainedStep> TrainingJob::Impl::TrainBatch(
    int64_t k, PhaseSeconds* seconds) {
  const daemon::Wait trains = {.kind = "CALL",
                               .id = "train",
                               .cause = absl::StrCat(job_.worker, " trains batch ", k),
                               .next = "the step ends",
                               .step = k};
  TrainedStep step{.batch = {.k = k}};
  for (bool closed = false; !closed;) {
    const absl::Duration start = job_.clock->Monotonic();
    busy_.reset();
    absl::StatusOr<BatchReader::Slice> slice = queue_.NextSlice(k);
    busy_.emplace(cores_);
    seconds->wait_data += job_.SecondsSince(start);
    SLUICE_RETURN_IF_ERROR(slice.status());

    if (job_.config.canary.has_value()) trial_.AddRewards(slice->groups);
    for (const Group& group : slice->groups) {
      // To the queue a row is one trajectory, whatever number of answers it has.
      const size_t entries = encode_row_ ? 1 : group.members.size();
      for (size_t i = 0; i < entries; ++i)
        step.batch.lineage.push_back(MakeLineageEntry(k, group.id, group.members[i], ""));
    }
    step.batch.groups += static_cast<uint32_t>(slice->groups.size());
    closed = slice->closed;
    step.batch.lease = slice->lease;
    step.batch.crc32c = slice->crc32c;
    const auto waits = job_.waits.Begin(trains);
    watched_.Begin("trains a batch", kLongestWork);
    absl::Status added = trainer_->Add(k, std::move(slice->groups));
    watched_.Rest();
    SLUICE_RETURN_IF_ERROR(added);
  }

  {
    const auto waits = job_.waits.Begin(trains);
    watched_.Begin("trains a batch", kLongestWork);
    absl::StatusOr<StepResult> result = trainer_->Finish(k);
    watched_.Rest();
    SLUICE_ASSIGN_OR_RETURN(step.result, std::move(result));
  }
  step.batch.skipped = step.result.skipped;
  if (step.result.skipped.empty()) {
    step.batch.ess = FindEffectiveShare(step.result.metrics, job_.config.settings.algorithm.loss);
    step.batch.kl = FindMetric(step.result, "kl_behav_theta_k3");
  }
  for (LineageEntry& entry : step.batch.lineage) entry.skipped = step.result.skipped;
  seconds->forward_backward = step.result.seconds_forward_backward;
  seconds->optim = step.result.seconds_optim;
  return step;
}

// Tells the queue that the step is done, and hands the new version over for publication. Returns
// the contents of a checkpoint to write; nullopt if none is due.
absl::StatusOr<std::optional<CheckpointContents>> TrainingJob::Impl::ApplyAndPublish(
    const TrainedStep& step, bool evaluate, PhaseSeconds* seconds) {
  const JobConfig& config = job_.config;
  const int64_t next = step.batch.k + 1;
  // An evaluation needs a checkpoint, so that a later incarnation can begin it again.
  const bool checkpoint_due = checkpoints_.IsDue(next) || evaluate;

  absl::Duration start = job_.clock->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(JobQueue::Applied applied,
                          queue_.Apply(step.batch, state_.ledger_hash, checkpoint_due));
  seconds->apply = job_.SecondsSince(start);
  state_.ledger_hash = std::move(applied.ledger_hash);
  state_.version = {config.incarnation, next};
  state_.updates = trainer_->updates();
  state_.skips_in_a_row = trainer_->skips_in_a_row();
  state_.critic_updates = trainer_->critic_updates();
  if (AdaptsRewardKl(config.settings)) state_.reward_kl = trainer_->reward_kl();
  checkpoints_.AddLineage(step.batch.lineage);

  start = job_.clock->Monotonic();
  const bool publish = next % config.publish_every_steps == 0 || config.IsLast(next) || evaluate;
  if (publish) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights,
                            Snapshot(config.settings.dtype));
    OfferWeights(std::move(weights));
  }
  seconds->publish = job_.SecondsSince(start);

  seconds->checkpoint = checkpoints_.TakeSecondsWaited();
  if (!checkpoint_due) return std::nullopt;
  return MakeCheckpoint(std::move(applied.cursor));
}

absl::StatusOr<CheckpointContents> TrainingJob::Impl::MakeCheckpoint(std::string cursor) {
  SLUICE_ASSIGN_OR_RETURN(Trainer::Sources sources, trainer_->TakeSnapshot());
  return CheckpointContents{.model = std::move(sources.model),
                            .optimizer = std::move(sources.moments),
                            .critic = std::move(sources.critic),
                            .critic_moments = std::move(sources.critic_moments),
                            .state = state_,
                            .cursor = std::move(cursor),
                            .promoted = job_.config.canary.has_value()
                                            ? std::optional(publication_->published().number)
                                            : std::nullopt};
}

absl::Status TrainingJob::Impl::CheckSkips(const StepResult& result) const {
  const int64_t limit = job_.config.settings.skip_limit;
  if (limit == 0 || result.skips_in_a_row < limit) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, "SKIPPED",
      absl::StrCat(result.skips_in_a_row, " steps in a row did not change the weights (",
                   result.skipped, "); the last of them is step ", result.k,
                   ", and limits.skipped_steps is ", limit, ". ", SkipText(result.skipped)));
}

void TrainingJob::Impl::Report(const StepResult& result, const PhaseSeconds& seconds) {
  reporter_.Report(result, seconds, state_.version, evaluations_.TakeValues(result.k));
  ReportStanding(true, "training");
}

// Has the newest version evaluated.
absl::Status TrainingJob::Impl::StartEvaluation() {
  const auto waits = job_.waits.Begin(
      {.kind = "VERSION",
       .id = policy_version().str(),
       .cause = absl::StrCat(job_.worker,
                             " waits until the version to be evaluated is published, and until the "
                             "previous evaluation has ended")});
  SLUICE_RETURN_IF_ERROR(publication_->Flush());
  // If the data has ended between two versions that are due by weights.every_steps, the last
  // version is not published yet.
  if (publisher_->latest()->version.number != version()) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights,
                            Snapshot(job_.config.settings.dtype));
    OfferWeights(std::move(weights));
    SLUICE_RETURN_IF_ERROR(publication_->Flush());
  }
  if (!held_out_.has_value()) return evaluations_.Start(*publisher_->latest());
  // An error of the trainer, such as a lost rank, ends the job; one of the rows, the evaluation.
  absl::Status trainer_status;
  evaluations_.Record(*publisher_->latest(), [&] { return EvaluateHeldOut(&trainer_status); });
  return trainer_status.ok() ? evaluations_.status() : trainer_status;
}

absl::StatusOr<Evaluation> TrainingJob::Impl::EvaluateHeldOut(absl::Status* trainer_status) {
  const auto waits =
      job_.waits.Begin({.kind = "VERSION",
                        .id = policy_version().str(),
                        .cause = absl::StrCat(job_.worker, " evaluates version ", version()),
                        .next = "the next step begins"});
  const auto score = [&](std::vector<Group> rows) -> absl::StatusOr<HeldOutSums> {
    if (evaluations_.cancelled()) return absl::CancelledError("the evaluation was cancelled");
    watched_.Begin("evaluates rows", kLongestWork);
    absl::StatusOr<HeldOutSums> sums = trainer_->Evaluate(std::move(rows));
    watched_.Rest();
    *trainer_status = sums.status();
    return sums;
  };
  return held_out_->Evaluate(score, *job_.clock);
}

absl::Status TrainingJob::Impl::FinishEvaluations() {
  if (!evaluations_.enabled()) return absl::OkStatus();
  if (!evaluations_.HasStarted(version())) SLUICE_RETURN_IF_ERROR(StartEvaluation());
  evaluations_.Await();
  return evaluations_.status();
}

absl::Status TrainingJob::Impl::WriteLastCheckpoint() {
  if (checkpoints_.HasNewest(version())) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(std::optional<std::string> cursor, queue_.CursorOfLastApply());
  if (!cursor.has_value()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(CheckpointContents contents, MakeCheckpoint(*std::move(cursor)));
  return checkpoints_.Write(std::move(contents));
}

absl::StatusOr<std::shared_ptr<const TensorSet>> TrainingJob::Impl::Snapshot(DType dtype) const {
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, trainer_->Weights(dtype));
  return std::make_shared<const TensorSet>(std::move(weights));
}

void TrainingJob::Impl::OfferWeights(std::shared_ptr<const TensorSet> weights) {
  publisher_->SetReceivers(receivers_);
  const bool replaying = replay_end_ > version();
  publication_->Offer(std::move(weights), policy_version(),
                      replaying ? std::optional<int64_t>(replay_end_) : std::nullopt);
}

// End: gives back what is held and says how it ended. -------------------------------------------

void TrainingJob::Impl::End(const absl::Status& status) {
  // After a normal end, batches that were read ahead go back to the queue at once, for the next
  // incarnation.
  queue_.StopReading(/*release=*/status.ok());
  queue_.CancelAll();
  evaluations_.Abandon();
  trial_.Stop();
  const PolicyVersion promoted =
      publication_ == nullptr ? PolicyVersion() : publication_->published();
  publication_.reset();
  checkpoints_.StopWriting();
  queue_.StopRenewing();
  // The other ranks then end too. The trainer holds a connection to them as well.
  trainer_.reset();
  ranks_.Close();

  if (status.ok() && !leave_) {
    log::Info("job_done", {{"job_id", job_.config.name}, {"version", version()}});
    return ReportStanding(true, "done", why_done_);
  }
  const std::string reason = ReasonOf(status);
  const bool cancelled = absl::IsCancelled(status) || reason == "RANK_LOST";
  if (status.ok() || (leave_ && cancelled)) return ReportStanding(false, "left");

  if (reason == "WITHDRAWN" || reason == "ROLLED_BACK") return GoBack(status, promoted);
  log::Error("job_ended",
             {{"job_id", job_.config.name}, {"version", version()}, {"error", status}});
  if (reason == "FENCED") return ReportStanding(false, "fenced", status.message());
  if (reason == "CHECKPOINT_DAMAGED") {
    const std::string cause = absl::StrCat(
        status.message(), "; the trainer goes back to the newest checkpoint that verifies");
    job_.RaiseEvent(common::v1::SEVERITY_ERROR, "checkpoint_damaged", cause);
    return ReportStanding(false, "restore", cause);
  }
  if (reason == "RANKS_DIFFER") {
    const std::string cause =
        absl::StrCat(status.message(), "; all ranks go back to the newest checkpoint");
    job_.RaiseEvent(common::v1::SEVERITY_ERROR, "ranks_differ", cause);
    return ReportStanding(false, "restore", cause);
  }
  // The queue has forgotten the batch, or goes on from elsewhere, or a rank is gone: the next
  // incarnation restores it.
  if (reason == "RESTORE_FIRST" || reason == "GONE" || reason == "LEASE_LOST" ||
      reason == "RANK_LOST")
    return ReportStanding(false, "restore", status.message());
  ReportStanding(false, "failed", StatusText(status));
}

// Going back. -----------------------------------------------------------------------------------

// Called on a thread of the server, while the job's thread does its work.
absl::Status TrainingJob::Impl::AskRollback(int64_t version) {
  SLUICE_RETURN_IF_ERROR(checkpoints_.CheckCovered(version));
  {
    // A trainer that dies right after it has agreed begins on the new branch.
    MutexLock lock(&rollback_mu_);
    if (rollback_ == version) return absl::OkStatus();
    if (rollback_.has_value()) {
      return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                   absl::StrCat("the run is going back to version ", *rollback_,
                                " already; ask again when it runs"));
    }
    const std::optional<PublishedVersion> newest = publisher_->latest();
    SLUICE_RETURN_IF_ERROR(checkpoints_.AddFork(
        version, newest.has_value() ? newest->version : PolicyVersion{job_.config.incarnation, 0},
        RollbackCause(version)));
    rollback_ = version;
  }
  trial_.Stop();
  queue_.CancelReading();
  evaluations_.Cancel();
  return absl::OkStatus();
}

absl::Status TrainingJob::Impl::RollbackStatus() const {
  MutexLock lock(&rollback_mu_);
  if (!rollback_.has_value()) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, "ROLLED_BACK", RollbackCause(*rollback_));
}

// Gives up the versions after one that is known to be right, and has the next incarnation go on
// from there.
void TrainingJob::Impl::GoBack(const absl::Status& why, PolicyVersion promoted) {
  SLUICE_FAILPOINT("trainer.go_back");
  std::optional<int64_t> asked;
  {
    MutexLock lock(&rollback_mu_);
    asked = rollback_;
  }
  const bool withdrawn = ReasonOf(why) == "WITHDRAWN";
  int64_t most = withdrawn ? promoted.number : std::numeric_limits<int64_t>::max();
  if (asked.has_value()) most = std::min(most, *asked);
  const int64_t to = checkpoints_.FindCovered(most);
  if (to == 0 && asked.value_or(0) > 0) {
    return ReportStanding(
        false, "failed",
        absl::StrCat("the run was asked to go back to version ", *asked,
                     ", but its checkpoint is gone, and no older one is left; `sluice job retry` "
                     "begins again from the model"));
  }
  const std::string cause =
      absl::StrCat(why.message(), "; the run goes on from version ", to,
                   to == 0     ? ", the model"
                   : withdrawn ? ", the newest checkpoint that is known to be right"
                               : ", which a checkpoint holds",
                   ", and what was sampled under later versions is dropped");
  // What a person asked for is noted already.
  if (!asked.has_value() || to < *asked) {
    const absl::Status noted = checkpoints_.AddFork(
        to, withdrawn ? trial_.withdrawn().value_or(policy_version()) : policy_version(),
        std::string(why.message()));
    if (!noted.ok()) return ReportStanding(false, "failed", StatusText(noted));
  }
  log::Warning("goes_back", {{"job_id", job_.config.name}, {"to", to}, {"cause", why}});
  job_.RaiseEvent(withdrawn ? common::v1::SEVERITY_ERROR : common::v1::SEVERITY_WARNING,
                  withdrawn ? "version_withdrawn" : "rolled_back", cause);
  ReportStanding(false, "restore", cause);
}

void TrainingJob::Impl::ReportStanding(bool ready, absl::string_view phase,
                                       absl::string_view cause) const {
  if (!on_standing_) return;
  on_standing_({.ready = ready,
                .version = policy_version(),
                .phase = std::string(phase),
                .cause = std::string(cause),
                .evaluated = evaluations_.totals()});
}

void TrainingJob::Impl::Leave(bool checkpoint) {
  leave_checkpoint_ = checkpoint;
  leave_ = true;
  queue_.CancelReading();
  evaluations_.Cancel();
  trial_.Stop();
  if (checkpoint) {
    // Before the ranks have met there is no step to end and nothing to store.
    ranks_.AbortUnlessJoined();
    return;
  }
  queue_.CancelAll();
  ranks_.Abort();
}

TrainingJob::TrainingJob(JobConfig config, std::string worker, CoreShare* cores,
                         WeightsServer* weights, metrics::Registry* registry, Hooks hooks)
    : impl_(new Impl(std::move(config), std::move(worker), cores, weights, registry,
                     std::move(hooks))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  pthread_setname_np(impl_->thread.native_handle(), "sluice-train");
}

TrainingJob::~TrainingJob() {
  Leave(false);
  Wait();
  impl_->HideWeights();
}

const JobConfig& TrainingJob::config() const { return impl_->config(); }
void TrainingJob::Leave(bool checkpoint) { impl_->Leave(checkpoint); }
void TrainingJob::SetQueue(const std::string& address) { impl_->SetQueue(address); }
void TrainingJob::SetRollouts(std::vector<std::string> rollouts) {
  impl_->SetRollouts(std::move(rollouts));
}
void TrainingJob::Wait() {
  if (impl_->thread.joinable()) impl_->thread.join();
}
std::vector<common::v1::WaitEdge> TrainingJob::Explain() const { return impl_->Explain(); }

}  // namespace sluice::trainer
