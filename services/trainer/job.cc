#include "services/trainer/job.h"

#include <pthread.h>

#include <atomic>
#include <bit>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/cores/core_share.h"
#include "common/daemon/waits.h"
#include "common/log/log.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/convert.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "services/trainer/batch_reader.h"
#include "services/trainer/checkpoint_writer.h"
#include "services/trainer/core/history.h"
#include "services/trainer/core/lineage.h"
#include "services/trainer/core/trainer.h"
#include "services/trainer/demonstrations.h"
#include "services/trainer/evaluator.h"
#include "services/trainer/metrics.h"
#include "services/trainer/publication.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::trainer {
namespace {

// The types that the model's tensors came in, which those of its checkpoints have too. A random
// start has none of its own: it is fp32.
absl::StatusOr<std::map<std::string, DType>> ModelTypes(const ModelDir& model,
                                                        const JobConfig& config) {
  std::map<std::string, DType> types;
  if (config.init_seed.has_value()) return types;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, ReadWeightSpecs(model));
  for (const TensorSpec& spec : specs) types[spec.name] = spec.dtype;
  return types;
}

}  // namespace

class TrainingJob::Impl {
 public:
  Impl(JobConfig config, std::string worker, CoreShare* cores, WeightsServer* weights,
       metrics::Registry* registry, Hooks hooks)
      : config(std::move(config)),
        worker_(std::move(worker)),
        waits_(worker_),
        cores_(cores),
        weights_(weights),
        hooks_(std::move(hooks)),
        metrics_(registry == nullptr ? Metrics() : Metrics(registry, this->config.name)),
        rollouts_(this->config.rollouts) {}

  void Run();
  void Leave(bool checkpoint);
  void SetRollouts(std::vector<std::string> rollouts) ABSL_LOCKS_EXCLUDED(evaluator_mu_);
  std::vector<common::v1::WaitEdge> Explain() const { return waits_.Edges(); }
  void HideWeights() { weights_->SetPublisher(nullptr); }

  const JobConfig config;
  std::thread thread;

 private:
  absl::Status Load();  // The newest checkpoint that verifies, else the model.
  absl::Status LoadModel(const ModelDir& model, TensorSet* initial);
  absl::StatusOr<std::optional<Checkpoint>> FindCheckpoint();
  void TellOfEarlierJobs();
  absl::Status Connect();  // To the queue: Restore, and what runs beside the steps.
  absl::Status Train();    // Steps until the end.
  absl::Status Step();
  // `evaluate`: the version is to be evaluated, so it is published and gets a checkpoint.
  absl::Status Close(const StepResult& result, const std::vector<LineageEntry>& lineage,
                     const BatchReader::Slice& last, bool evaluate, PhaseSeconds* seconds,
                     std::optional<CheckpointWriter::Contents>* checkpoint);
  absl::StatusOr<CheckpointWriter::Contents> MakeCheckpoint(
      std::string cursor, std::shared_ptr<const TensorSet> weights);
  absl::Status WriteCheckpoint(CheckpointWriter::Contents contents);
  absl::Status LastCheckpoint();
  bool CheckpointDue(int64_t version) const;
  bool IsLast(int64_t version) const {
    return config.max_steps >= 0 && version >= config.max_steps;
  }
  absl::Status MakeEvaluator();
  // The version whose evaluation an earlier incarnation left unfinished, published again; nothing:
  // there is none.
  std::optional<LatestVersion> PublishUnevaluated();
  bool EvaluationDue(int64_t version);
  absl::Status StartEvaluation();
  void AwaitOlderEvaluation();
  absl::Status FinishEvaluations();
  void Report(const StepResult& result, const PhaseSeconds& seconds);
  void Happened(common::v1::Severity severity, absl::string_view code, absl::string_view message);
  void Tell(bool ready, absl::string_view phase, absl::string_view cause = "") {
    if (!hooks_.told) return;
    hooks_.told({ready,
                 {config.incarnation, version_},
                 std::string(phase),
                 std::string(cause),
                 Evaluated()});
  }
  EvalTotals Evaluated() const {
    const Evaluator* const made = evaluator();
    return made == nullptr ? EvalTotals() : made->totals();
  }
  // Null: nothing is evaluated, or not yet.
  Evaluator* evaluator() const ABSL_LOCKS_EXCLUDED(evaluator_mu_) {
    MutexLock lock(&evaluator_mu_);
    return evaluator_.get();
  }
  void End(const absl::Status& status);
  absl::StatusOr<std::shared_ptr<const TensorSet>> Snapshot(DType dtype) const;
  daemon::Wait Training(int64_t k) const {
    return {.kind = "CALL",
            .id = "train",
            .cause = absl::StrCat(worker_, " trains batch ", k),
            .next = "the step ends",
            .step = k};
  }
  double Since(absl::Duration start) const {
    return absl::ToDoubleSeconds(clock_->Monotonic() - start);
  }

  const std::string worker_;
  daemon::Waits waits_;
  CoreShare* const cores_;
  WeightsServer* const weights_;
  const Hooks hooks_;
  Metrics metrics_;
  Clock* const clock_ = Clock::Real();

  // Leave() from any thread.
  std::atomic<bool> leave_{false};
  std::atomic<bool> leave_checkpoint_{false};
  std::atomic<int64_t> version_{0};  // K: steps done.
  rpc::Cancel cancel_reading_;       // Ends waits for data.
  rpc::Cancel cancel_all_;           // Ends every call.
  rpc::Cancel cancel_evaluating_;

  // The `job` thread's, made in this order and destroyed in reverse.
  std::optional<CoreShare::Busy> busy_;  // None while the job waits for data.
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<History> history_;
  RowEncoder encode_row_;
  int64_t experts_ = 0;              // That a token goes through, in all layers; 0: no mixture.
  TrainState state_;                 // As of version_.
  std::string cursor_;               // Of the checkpoint the run goes on from.
  std::string previous_checkpoint_;  // Empty: the run starts from the model.
  std::string lineage_tail_;         // Lines since the last checkpoint.
  std::string why_done_;             // What the queue said when it had no further batch. Empty:
                                     // limits.max_steps was reached.
  int64_t checkpointed_ = -1;        // Version of the last checkpoint.
  absl::Duration checkpointed_at_;   // Monotonic.
  // Seconds that a checkpoint waited for the one before it; the next step reports them.
  double checkpoint_wait_ = 0;
  absl::Duration step_started_;  // Monotonic.
  // Steps with rewards that are not finite, since this process began.
  uint64_t bad_reward_steps_ = 0;
  std::optional<queue::v1::ApplyRequest> last_apply_;
  int64_t hold_until_ = -1;  // During a replay: its end.
  std::unique_ptr<QueueClient> queue_, reading_queue_;
  std::shared_ptr<WeightPublisher> publisher_;
  std::unique_ptr<LeaseKeeper> leases_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<Publication> publication_;
  mutable Mutex evaluator_mu_;  // Guards the pointer, for SetRollouts() and what is told.
  std::vector<std::string> rollouts_ ABSL_GUARDED_BY(evaluator_mu_);  // HOST:PORT
  std::unique_ptr<Evaluator> evaluator_ ABSL_GUARDED_BY(evaluator_mu_);
  int64_t evaluated_ = -1;   // The version handed to the evaluator last.
  mutable Mutex reader_mu_;  // Guards the pointer, for Explain().
  std::unique_ptr<BatchReader> reader_ ABSL_GUARDED_BY(reader_mu_);
};

void TrainingJob::Impl::Run() {
  busy_.emplace(cores_);
  Tell(false, "loading");
  absl::Status status = Load();
  if (status.ok()) status = Connect();
  if (status.ok()) status = Train();
  busy_.reset();
  End(status);
}

absl::Status TrainingJob::Impl::LoadModel(const ModelDir& model, TensorSet* initial) {
  if (config.init_seed.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(*initial, InitWeights(model.config, *config.init_seed));
  } else {
    SLUICE_ASSIGN_OR_RETURN(*initial, ReadWeights(model, DType::kF32));
  }
  return absl::OkStatus();
}

// The checkpoint to go on from; nullopt: the run starts from the model.
absl::StatusOr<std::optional<Checkpoint>> TrainingJob::Impl::FindCheckpoint() {
  if (config.from_version.has_value()) {
    if (*config.from_version == 0) return std::optional<Checkpoint>();
    return store_->At(*config.from_version);
  }

  std::vector<std::string> damaged;
  SLUICE_ASSIGN_OR_RETURN(std::optional<Checkpoint> found, store_->Newest(&damaged));
  const std::string instead =
      found.has_value()
          ? absl::StrCat("the run goes on from ", found->path)
          : "no checkpoint of this job verifies, so the run starts again from the model";
  for (const std::string& what : damaged) {
    log::Error("checkpoint_damaged",
               {{"job_id", config.name}, {"damage", what}, {"instead", instead}});
    Happened(common::v1::SEVERITY_ERROR, "checkpoint_damaged", absl::StrCat(what, "; ", instead));
  }
  if (!found.has_value() && damaged.empty()) TellOfEarlierJobs();
  return found;
}

// A job starts from its model even where an earlier one of its name has left checkpoints; who has
// submitted a job anew may not know.
void TrainingJob::Impl::TellOfEarlierJobs() {
  const std::optional<CheckpointEntry> earlier = FindEarlierJob(config.checkpoint_dir);
  if (!earlier.has_value()) return;
  const std::string what =
      absl::StrCat("this run starts from the model and not from ", earlier->path,
                   ", which is of job ", earlier->state.job,
                   ", an earlier one of this name; to start from those weights, submit "
                   "with model.path: ",
                   earlier->path);
  log::Warning("earlier_job", {{"job_id", config.name}, {"checkpoint", earlier->path}});
  Happened(common::v1::SEVERITY_WARNING, "earlier_job", what);
}

absl::Status TrainingJob::Impl::Load() {
  const auto loads =
      waits_.Begin({.kind = "STORE",
                    .id = config.checkpoint_dir,
                    .cause = absl::StrCat(worker_, " loads the newest checkpoint, or the model")});
  SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(config.model_dir));
  if (const std::vector<std::string>& ignored = model.config.ignored; !ignored.empty()) {
    log::Warning(
        "model_keys_ignored",
        {{"job_id", config.name}, {"model", model.path}, {"keys", absl::StrJoin(ignored, ", ")}});
  }
  experts_ =
      model.config.num_experts > 0 ? model.config.num_layers * model.config.experts_per_token : 0;
  SLUICE_ASSIGN_OR_RETURN(trainer_, Trainer::Create(config.settings, model.config, clock_));
  if (config.settings.kind == Settings::Kind::kSft) {
    SLUICE_ASSIGN_OR_RETURN(encode_row_, MakeRowEncoder(model, config));
  }
  SLUICE_ASSIGN_OR_RETURN(auto model_types, ModelTypes(model, config));
  store_ = std::make_unique<CheckpointStore>(
      CheckpointStore::Options{.dir = config.checkpoint_dir,
                               .job = config.id,
                               .source = model,
                               .model_types = std::move(model_types),
                               .keep_last = config.keep_last,
                               .keep_every_steps = config.keep_every_steps});
  SLUICE_RETURN_IF_ERROR(store_->Prepare());
  SLUICE_ASSIGN_OR_RETURN(std::optional<Checkpoint> found, FindCheckpoint());

  TensorSet initial;
  if (!found.has_value() || config.settings.reference)
    SLUICE_RETURN_IF_ERROR(LoadModel(model, &initial));
  if (config.settings.reference) SLUICE_RETURN_IF_ERROR(trainer_->SetReference(initial));
  state_ = {.job = config.id, .seed = config.seed, .ledger_hash = FirstLedgerHash()};
  if (found.has_value()) {
    state_ = found->state;
    cursor_ = std::move(found->cursor);
    previous_checkpoint_ = found->path;
    checkpointed_ = state_.version.number;
    // The process that wrote it may have died before it told.
    Happened(common::v1::SEVERITY_INFO, "checkpoint_loaded", found->path);
    SLUICE_RETURN_IF_ERROR(
        trainer_->Restore(found->model, found->optimizer, state_.updates, state_.skips_in_a_row));
  } else {
    SLUICE_RETURN_IF_ERROR(trainer_->Load(initial));
  }
  version_ = state_.version.number;
  checkpointed_at_ = clock_->Monotonic();

  history_ = std::make_unique<History>(
      config.checkpoint_dir, config.incarnation, [this](const std::string& text) {
        log::Warning("history", {{"job_id", config.name}, {"cause", text}});
        Happened(common::v1::SEVERITY_WARNING, "history", text);
      });
  history_->Begin(version_);
  log::Info("model_loaded", {{"job_id", config.name},
                             {"version", version_.load()},
                             {"checkpoint", previous_checkpoint_}});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TensorSet>> TrainingJob::Impl::Snapshot(DType dtype) const {
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, trainer_->Weights(dtype));
  return std::make_shared<const TensorSet>(std::move(weights));
}

absl::Status TrainingJob::Impl::Connect() {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel, rpc::Connect(config.queue));
  QueueClient::Options options{.job = config.id,
                               .worker = worker_,
                               .incarnation = config.incarnation,
                               .cancel = &cancel_all_};
  queue_ = std::make_unique<QueueClient>(channel, options);
  options.cancel = &cancel_reading_;
  reading_queue_ = std::make_unique<QueueClient>(channel, options);

  queue::v1::RestoreRequest restore;
  restore.set_cursor(cursor_);
  restore.set_checkpoint(previous_checkpoint_);
  restore.set_mode(config.requeue ? queue::v1::RESTORE_MODE_REQUEUE
                                  : queue::v1::RESTORE_MODE_REPLAY);
  const absl::StatusOr<queue::v1::RestoreResponse> answer = [&] {
    const auto asks = waits_.Begin(
        {.kind = "DAEMON",
         .id = "queue",
         .at = "queue",
         .cause = absl::StrCat(worker_, " asks the queue to restore version ", version_.load())});
    return queue_->Restore(std::move(restore));
  }();
  SLUICE_RETURN_IF_ERROR(answer.status());
  const queue::v1::RestoreResponse& restored = *answer;
  if (restored.version() != version_ || restored.ledger().hash() != state_.ledger_hash) {
    return absl::DataLossError(absl::StrCat("the queue restored version ", restored.version(),
                                            " with ledger hash ", ToHex(restored.ledger().hash()),
                                            "; the checkpoint holds version ", version_.load(),
                                            " with ", ToHex(state_.ledger_hash)));
  }
  std::optional<PolicyVersion> published;
  if (restored.published_size() > 0) published = rpc::FromProto(restored.published(0).version());
  if (restored.end() > version_) hold_until_ = restored.end();

  publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = config.id, .retain_versions = config.retain_versions},
      clock_);
  SLUICE_RETURN_IF_ERROR(MakeEvaluator());
  const std::optional<LatestVersion> unevaluated = PublishUnevaluated();
  leases_ = std::make_unique<LeaseKeeper>(
      queue_.get(), LeaseKeeper::Options{.lost = [](const auto&) {}, .failed = [](auto) {}});
  writer_ = std::make_unique<CheckpointWriter>(
      store_.get(), queue_.get(), clock_, previous_checkpoint_,
      [this](const std::string& path, const TrainState& state, double seconds) {
        metrics_.Checkpoint(seconds);
        Happened(common::v1::SEVERITY_INFO, "checkpoint", path);
        log::Info("checkpoint", {{"job_id", config.name},
                                 {"version", state.version.number},
                                 {"path", path},
                                 {"seconds", seconds}});
      });
  publication_ = std::make_unique<Publication>(publisher_.get(), queue_.get(), clock_, published,
                                               [this] { cancel_reading_.Trigger(); });

  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights,
                          Snapshot(config.settings.dtype));
  const auto publishes =
      waits_.Begin({.kind = "VERSION",
                    .id = PolicyVersion{config.incarnation, version_}.str(),
                    .cause = absl::StrCat(worker_, " publishes its first version")});
  publication_->Offer(std::move(weights), {config.incarnation, version_},
                      hold_until_ >= 0 ? std::optional<int64_t>(hold_until_) : std::nullopt);
  SLUICE_RETURN_IF_ERROR(publication_->Flush());
  weights_->SetPublisher(publisher_);
  if (unevaluated.has_value()) evaluator()->Start(*unevaluated);
  else if (EvaluationDue(version_)) SLUICE_RETURN_IF_ERROR(StartEvaluation());
  MutexLock lock(&reader_mu_);
  reader_ = std::make_unique<BatchReader>(reading_queue_.get(), leases_.get(),
                                          BatchReader::Options{.first = version_,
                                                               .end = config.max_steps,
                                                               .stream = Streams(config.settings),
                                                               .experts = experts_,
                                                               .encode_row = encode_row_});
  return absl::OkStatus();
}

absl::Status TrainingJob::Impl::Train() {
  Tell(true, "training");
  step_started_ = clock_->Monotonic();
  absl::Status status;
  while (status.ok() && !leave_ && (config.max_steps < 0 || version_ < config.max_steps))
    status = Step();
  if (ReasonOf(status) == "END") {  // The data is used up, or the queue has lower limits.
    log::Info("data_ended",
              {{"job_id", config.name}, {"version", version_.load()}, {"why", status}});
    why_done_ = std::string(status.message());
    status = absl::OkStatus();
  }
  if (absl::IsCancelled(status) && !publication_->status().ok()) status = publication_->status();
  if (leave_ && (status.ok() || absl::IsCancelled(status))) {
    trainer_->Abandon();
    if (!leave_checkpoint_) return absl::CancelledError("told to leave");
    status = absl::OkStatus();
  }
  if (status.ok()) status = LastCheckpoint();
  if (status.ok() && !leave_) status = FinishEvaluations();
  const auto flushes =
      waits_.Begin({.kind = "STORE",
                    .id = config.checkpoint_dir,
                    .cause = absl::StrCat(worker_, " writes the last checkpoint")});
  if (status.ok()) status = publication_->Flush();
  if (status.ok()) status = writer_->Flush();
  return status;
}

absl::Status TrainingJob::Impl::Step() {
  const int64_t k = version_;
  PhaseSeconds seconds;
  std::vector<LineageEntry> lineage;
  BatchReader::Slice slice;
  BatchReader* reader;
  {
    MutexLock lock(&reader_mu_);
    reader = reader_.get();
  }
  do {
    const absl::Duration start = clock_->Monotonic();
    absl::StatusOr<BatchReader::Slice> next = [&] {
      const auto waits = waits_.Begin({.kind = "BATCH",
                                       .id = absl::StrCat(k),
                                       .at = "queue",
                                       .cause = absl::StrCat(worker_, " waits for batch ", k),
                                       .step = k});
      busy_.reset();
      auto read = reader->Next();
      busy_.emplace(cores_);
      return read;
    }();
    seconds.wait_data += Since(start);
    if (!next.ok()) return next.status();
    slice = *std::move(next);
    if (slice.k != k)
      return absl::InternalError(absl::StrCat("a slice of batch ", slice.k, " came for batch ", k));
    for (const Group& group : slice.groups) {
      for (const Trajectory& trajectory : group.members)
        lineage.push_back(MakeLineageEntry(k, group.id, trajectory, ""));
    }
    const auto trains = waits_.Begin(Training(k));
    SLUICE_RETURN_IF_ERROR(trainer_->Add(k, std::move(slice.groups)));
  } while (!slice.closed);

  const absl::StatusOr<StepResult> finished = [&] {
    const auto trains = waits_.Begin(Training(k));
    return trainer_->Finish(k);
  }();
  SLUICE_RETURN_IF_ERROR(finished.status());
  const StepResult& result = *finished;
  for (LineageEntry& entry : lineage) entry.skipped = result.skipped;
  seconds.forward_backward = result.seconds_forward_backward;
  seconds.optim = result.seconds_optim;
  const bool evaluate = EvaluationDue(k + 1);
  std::optional<CheckpointWriter::Contents> checkpoint;
  SLUICE_RETURN_IF_ERROR(Close(result, lineage, slice, evaluate, &seconds, &checkpoint));

  AwaitOlderEvaluation();

  // The step is in the history before a checkpoint can hold it, so that a kill in between leaves no
  // gap. The report of the last step also carries the last evaluation, and the checkpoint does not
  // wait for that.
  const bool awaits_evaluation = IsLast(version_) && evaluator() != nullptr;
  if (!awaits_evaluation) Report(result, seconds);
  if (checkpoint.has_value()) SLUICE_RETURN_IF_ERROR(WriteCheckpoint(*std::move(checkpoint)));
  if (evaluate) SLUICE_RETURN_IF_ERROR(StartEvaluation());
  if (awaits_evaluation) {
    SLUICE_RETURN_IF_ERROR(FinishEvaluations());
    Report(result, seconds);
  }
  if (config.settings.skip_limit > 0 && result.skips_in_a_row >= config.settings.skip_limit) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "SKIPPED",
        absl::StrCat(result.skips_in_a_row, " steps in a row changed nothing (", result.skipped,
                     "), the last one step ", k, "; limits.skipped_steps is ",
                     config.settings.skip_limit, ". ", SkipText(result.skipped)));
  }
  if (evaluator() != nullptr) SLUICE_RETURN_IF_ERROR(evaluator()->status());
  SLUICE_RETURN_IF_ERROR(publication_->status());
  return writer_->status();
}

// Tells the queue that step k is done, and hands the new version to those that publish it. Where a
// checkpoint is due, *checkpoint is what it is made of.
absl::Status TrainingJob::Impl::Close(const StepResult& result,
                                      const std::vector<LineageEntry>& lineage,
                                      const BatchReader::Slice& last, bool evaluate,
                                      PhaseSeconds* seconds,
                                      std::optional<CheckpointWriter::Contents>* checkpoint) {
  const int64_t k = result.k;
  const std::string canonical = CanonicalBytes(lineage);
  const std::string hash = NextLedgerHash(state_.ledger_hash, k, canonical);
  if (Crc32c(canonical) != last.crc32c) {
    return absl::DataLossError(absl::StrCat("batch ", k, ": CRC32C of what was trained on is ",
                                            Crc32c(canonical), ", the queue says ", last.crc32c));
  }
  const bool due = CheckpointDue(k + 1) || evaluate;
  SLUICE_FAILPOINT_STATUS("trainer.step.before_apply");
  absl::Duration start = clock_->Monotonic();
  leases_->Forget(last.lease);
  queue::v1::ApplyRequest apply;
  apply.set_k(k);
  apply.set_lease(last.lease);
  apply.set_crc32c(last.crc32c);
  apply.set_skipped(result.skipped);
  apply.set_want_cursor(due);
  last_apply_ = apply;
  const absl::StatusOr<queue::v1::ApplyResponse> answer = [&] {
    const auto applies = waits_.Begin(
        {.kind = "DAEMON",
         .id = "queue",
         .at = "queue",
         .cause = absl::StrCat(worker_, " has trained batch ", k, " and tells the queue"),
         .step = k});
    return queue_->Apply(std::move(apply));
  }();
  SLUICE_RETURN_IF_ERROR(answer.status());
  const queue::v1::ApplyResponse& applied = *answer;
  seconds->apply = Since(start);
  SLUICE_FAILPOINT_STATUS("trainer.step.after_apply");
  if (applied.ledger().hash() != hash) {
    return absl::DataLossError(absl::StrCat("batch ", k, ": the ledger's hash is ",
                                            ToHex(applied.ledger().hash()),
                                            ", what was trained on gives ", ToHex(hash)));
  }
  state_.ledger_hash = hash;
  state_.version = {config.incarnation, k + 1};
  state_.updates = trainer_->updates();
  state_.skips_in_a_row = trainer_->skips_in_a_row();
  version_ = k + 1;
  for (const LineageEntry& entry : lineage) lineage_tail_ += LineageLine(entry);
  {
    MutexLock lock(&reader_mu_);
    reader_->Applied(k);
  }

  start = clock_->Monotonic();
  std::shared_ptr<const TensorSet> weights;
  const bool publish = version_ % config.publish_every_steps == 0 || IsLast(version_) || evaluate;
  if (publish) {
    SLUICE_ASSIGN_OR_RETURN(weights, Snapshot(config.settings.dtype));
    const bool replaying = hold_until_ > version_;
    publication_->Offer(weights, state_.version,
                        replaying ? std::optional<int64_t>(hold_until_) : std::nullopt);
  }
  seconds->publish = Since(start);
  seconds->checkpoint = std::exchange(checkpoint_wait_, 0);
  if (!due) return absl::OkStatus();
  start = clock_->Monotonic();
  if (!publish || config.settings.dtype != DType::kF32) {
    SLUICE_ASSIGN_OR_RETURN(weights, Snapshot(DType::kF32));
  }
  SLUICE_ASSIGN_OR_RETURN(*checkpoint, MakeCheckpoint(applied.cursor(), std::move(weights)));
  seconds->checkpoint += Since(start);
  return absl::OkStatus();
}

bool TrainingJob::Impl::CheckpointDue(int64_t version) const {
  if (IsLast(version)) return true;
  if (config.checkpoint_every_steps > 0 && version % config.checkpoint_every_steps == 0)
    return true;
  return clock_->Monotonic() - checkpointed_at_ >= config.checkpoint_every;
}

absl::StatusOr<CheckpointWriter::Contents> TrainingJob::Impl::MakeCheckpoint(
    std::string cursor, std::shared_ptr<const TensorSet> weights) {
  SLUICE_ASSIGN_OR_RETURN(TensorSet moments, trainer_->Moments());
  return CheckpointWriter::Contents{.model = std::move(weights),
                                    .optimizer = std::move(moments),
                                    .state = state_,
                                    .cursor = std::move(cursor),
                                    .lineage_tail = std::exchange(lineage_tail_, "")};
}

absl::Status TrainingJob::Impl::WriteCheckpoint(CheckpointWriter::Contents contents) {
  checkpointed_ = version_;
  checkpointed_at_ = clock_->Monotonic();
  const absl::Duration start = clock_->Monotonic();
  const auto writes = waits_.Begin(
      {.kind = "STORE",
       .id = config.checkpoint_dir,
       .cause = absl::StrCat(worker_, " waits for the checkpoint before this one to be written"),
       .step = version_});
  const absl::Status status = writer_->Write(std::move(contents));
  checkpoint_wait_ = Since(start);
  return status;
}

// At the end of the run, unless the version has one: the last Apply is repeated, now for its
// cursor.
absl::Status TrainingJob::Impl::LastCheckpoint() {
  if (checkpointed_ == version_ || !last_apply_.has_value()) return absl::OkStatus();
  last_apply_->set_want_cursor(true);
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::ApplyResponse applied, queue_->Apply(*last_apply_));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights, Snapshot(DType::kF32));
  SLUICE_ASSIGN_OR_RETURN(CheckpointWriter::Contents contents,
                          MakeCheckpoint(applied.cursor(), std::move(weights)));
  return WriteCheckpoint(std::move(contents));
}

void TrainingJob::Impl::Report(const StepResult& result, const PhaseSeconds& seconds) {
  metrics_.Step(result, seconds, version_);
  job::v1::StepReport report;
  report.set_job(config.id);
  report.set_k(result.k);
  *report.mutable_version() = rpc::ToProto(state_.version);
  *report.mutable_at() = rpc::ToProto(clock_->Now());
  auto& values = *report.mutable_values();
  for (const auto& [name, value] : result.metrics) values[name] = value;
  values["reward_count"] = static_cast<double>(result.reward_count);
  if (result.reward_count > 0) values["reward_mean"] = result.reward_mean;
  values["tokens"] = static_cast<double>(result.tokens);
  values["sequences"] = static_cast<double>(result.sequences);
  values["loss"] = result.loss;
  values["grad_norm"] = result.grad_norm;
  values["lr"] = result.lr;
  values["skipped"] = result.skipped.empty() ? 0 : 1;
  values["seconds_wait_data"] = seconds.wait_data;
  values["seconds_forward_backward"] = seconds.forward_backward;
  values["seconds_optim"] = seconds.optim;
  values["seconds_apply"] = seconds.apply;
  values["seconds_publish"] = seconds.publish;
  values["seconds_checkpoint"] = seconds.checkpoint;
  const absl::Duration now = clock_->Monotonic();
  values["seconds_step"] = absl::ToDoubleSeconds(now - std::exchange(step_started_, now));
  for (const auto& [staleness, tokens] : result.staleness)
    (*report.mutable_staleness())[absl::StrCat(staleness)] = tokens;
  if (evaluator() != nullptr) {
    const std::map<std::string, double> evaluated = evaluator()->TakeValues(result.k);
    metrics_.Evaluated(evaluated);
    values.insert(evaluated.begin(), evaluated.end());
  }
  if (!result.skipped.empty()) {
    log::Warning("step_skipped",
                 {{"job_id", config.name}, {"k", result.k}, {"reason", result.skipped}});
    Happened(common::v1::SEVERITY_WARNING, "step_skipped",
             absl::StrCat("step ", result.k, " skipped (", result.skipped,
                          "): ", SkipText(result.skipped)));
  }
  history_->Append({.step = result.k,
                    .version = state_.version,
                    .at = rpc::FromProto(report.at()),
                    .values = {values.begin(), values.end()},
                    .staleness = result.staleness});
  const auto bad_rewards = result.metrics.find("bad_rewards");
  const bool has_bad_rewards = bad_rewards != result.metrics.end() && bad_rewards->second > 0;
  // A verifier that is broken spoils every step: the event is told ever more seldom.
  if (has_bad_rewards && std::has_single_bit(++bad_reward_steps_)) {
    Happened(common::v1::SEVERITY_WARNING, "bad_rewards",
             absl::StrCat("step ", result.k, ": the rewards of ", bad_rewards->second,
                          " answers are not finite; these answers have no advantage"));
  }
  if (hooks_.stepped) hooks_.stepped(report);
  Tell(true, "training");
}

void TrainingJob::Impl::Happened(common::v1::Severity severity, absl::string_view code,
                                 absl::string_view message) {
  if (!hooks_.happened) return;
  common::v1::Event event;
  event.set_severity(severity);
  event.set_code(std::string(code));
  event.set_message(std::string(message));
  hooks_.happened(std::move(event));
}

absl::Status TrainingJob::Impl::MakeEvaluator() {
  if (config.eval_every_steps == 0) return absl::OkStatus();
  EvaluationLog evaluations(config.checkpoint_dir);
  if (const absl::Status loaded = evaluations.Load(version_); absl::IsDataLoss(loaded)) {
    Happened(common::v1::SEVERITY_WARNING, "evaluations_damaged",
             absl::StrCat(loaded.message(), "; the evaluations so far no longer count"));
  } else if (!loaded.ok()) {
    return loaded;
  }
  Evaluator::Hooks hooks;
  hooks.happened = [this](Evaluator::Severity severity, absl::string_view code,
                          absl::string_view message) {
    const common::v1::Severity to =
        severity == Evaluator::Severity::kInfo      ? common::v1::SEVERITY_INFO
        : severity == Evaluator::Severity::kWarning ? common::v1::SEVERITY_WARNING
                                                    : common::v1::SEVERITY_ERROR;
    Happened(to, code, message);
    log::Info(code, {{"job_id", config.name}, {"what", message}});
  };
  const Evaluator::Options options{.job = config.id,
                                   .job_name = config.name,
                                   .worker = worker_,
                                   .incarnation = config.incarnation,
                                   .dir = config.checkpoint_dir,
                                   .datasets = config.eval_datasets,
                                   .version = version_};
  MutexLock lock(&evaluator_mu_);
  evaluator_ = std::make_unique<Evaluator>(options, std::move(evaluations), publisher_.get(),
                                           &waits_, &cancel_evaluating_, std::move(hooks));
  evaluator_->SetRollouts(rollouts_);
  return absl::OkStatus();
}

std::optional<LatestVersion> TrainingJob::Impl::PublishUnevaluated() {
  const std::optional<int64_t> number = LinkedVersion(config.checkpoint_dir, kEvaluatingLink);
  // That of this very version is begun again because it is due, that of a later one once the run is
  // there.
  if (evaluator() == nullptr || !number.has_value() || *number >= version_) return std::nullopt;

  const auto publish = [&]() -> absl::StatusOr<LatestVersion> {
    SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(config.model_dir));
    TensorSet exact;
    if (*number == 0) {
      SLUICE_RETURN_IF_ERROR(LoadModel(model, &exact));
    } else {
      SLUICE_ASSIGN_OR_RETURN(Checkpoint checkpoint, store_->At(*number));
      exact = std::move(checkpoint.model);
    }
    SLUICE_ASSIGN_OR_RETURN(TensorSet weights,
                            TensorSet::Create(model.config.Parameters(config.settings.dtype)));
    SLUICE_RETURN_IF_ERROR(ConvertTensors(exact, &weights));
    return publisher_->Publish(weights, {config.incarnation, *number}, "");
  };
  const absl::StatusOr<LatestVersion> published = publish();
  if (published.ok()) {
    publisher_->Lease(Evaluator::kHolder, {published->manifest}, absl::InfiniteDuration());
    return *published;
  }
  Happened(common::v1::SEVERITY_ERROR, "eval_lost",
           absl::StrCat("version ", *number,
                        " was being evaluated when the trainer ended, and cannot be read again: ",
                        published.status().message(), "; it is not evaluated"));
  return std::nullopt;
}

// The version is to be evaluated. Where it would be but another evaluation goes on, that is said.
bool TrainingJob::Impl::EvaluationDue(int64_t version) {
  if (evaluator() == nullptr) return false;
  if (IsLast(version)) return true;
  if (version % config.eval_every_steps != 0) return false;
  if (IsLast(version + 1)) {  // No report is left that could carry it beside the last one.
    Happened(common::v1::SEVERITY_INFO, "eval_skipped",
             absl::StrCat("version ", version, " is not evaluated: the last one, ", version + 1,
                          ", follows at once"));
    return false;
  }
  if (!evaluator()->running().has_value()) return true;
  Happened(common::v1::SEVERITY_WARNING, "eval_skipped",
           absl::StrCat("version ", version,
                        " is not evaluated: the evaluation before it still goes on. Raise "
                        "eval.every_steps or eval.share, or ask fewer rows"));
  return false;
}

// Has the newest version evaluated. It is out by now, or soon.
absl::Status TrainingJob::Impl::StartEvaluation() {
  const auto waits =
      waits_.Begin({.kind = "VERSION",
                    .id = PolicyVersion{config.incarnation, version_}.str(),
                    .cause = absl::StrCat(worker_,
                                          " waits until the version to be evaluated is out, and "
                                          "the evaluation before it has ended")});
  SLUICE_RETURN_IF_ERROR(publication_->Flush());
  // weights.every_steps, where the data has ended.
  if (publisher_->latest()->version.number != version_) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSet> weights,
                            Snapshot(config.settings.dtype));
    publication_->Offer(std::move(weights), state_.version);
    SLUICE_RETURN_IF_ERROR(publication_->Flush());
  }
  evaluator()->Await();
  SLUICE_RETURN_IF_ERROR(LinkCheckpoint(config.checkpoint_dir, kEvaluatingLink, version_));
  evaluator()->Start(*publisher_->latest());
  evaluated_ = version_;
  return absl::OkStatus();
}

// A step's report has room for one evaluation, and that of the last step carries the last
// version's. An older one that still goes on therefore has to end before the report of the step
// before.
void TrainingJob::Impl::AwaitOlderEvaluation() {
  const bool last_is_next = IsLast(version_ + 1) && !IsLast(version_);
  if (evaluator() == nullptr || !last_is_next) return;
  const std::optional<PolicyVersion> running = evaluator()->running();
  if (!running.has_value()) return;

  const auto waits = waits_.Begin(
      {.kind = "VERSION",
       .id = running->str(),
       .cause = absl::StrCat(
           worker_, " waits for the evaluation of a version before it trains the last step")});
  evaluator()->Await();
}

// At the end of the run: its last version is evaluated too.
absl::Status TrainingJob::Impl::FinishEvaluations() {
  if (evaluator() == nullptr) return absl::OkStatus();
  if (evaluated_ != version_) SLUICE_RETURN_IF_ERROR(StartEvaluation());
  evaluator()->Await();
  return evaluator()->status();
}

// Gives back what is held and says how it ended.
void TrainingJob::Impl::End(const absl::Status& status) {
  cancel_reading_.Trigger();
  std::unique_ptr<BatchReader> reader;
  {
    MutexLock lock(&reader_mu_);
    reader = std::move(reader_);
  }
  const std::vector<std::string> held =
      reader == nullptr ? std::vector<std::string>() : reader->Stop();
  if (status.ok() && !held.empty()) {  // A batch that was read ahead is for whoever goes on.
    queue::v1::ReleaseRequest release;
    release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
    for (const std::string& lease : held) {
      leases_->Forget(lease);
      release.add_leases(lease);
    }
    if (absl::Status released = queue_->Release(std::move(release)).status(); !released.ok()) {
      log::Warning("release_failed", {{"job_id", config.name}, {"error", released}});
    }
  }
  cancel_all_.Trigger();
  cancel_evaluating_.Trigger();
  if (const std::optional<PolicyVersion> left =
          evaluator() == nullptr ? std::nullopt : evaluator()->running()) {
    Happened(
        common::v1::SEVERITY_WARNING, "eval_abandoned",
        absl::StrCat("the trainer ends while version ", left->number,
                     " is being evaluated; a later incarnation "
                     "of the job evaluates it, and if there is none it stays without a score"));
  }
  publication_.reset();
  writer_.reset();
  leases_.reset();

  const std::string reason = ReasonOf(status);
  if (status.ok() && !leave_) {
    log::Info("job_done", {{"job_id", config.name}, {"version", version_.load()}});
    return Tell(true, "done", why_done_);
  }
  if (status.ok() || (leave_ && absl::IsCancelled(status))) return Tell(false, "left");
  log::Error("job_ended",
             {{"job_id", config.name}, {"version", version_.load()}, {"error", status}});
  if (reason == "FENCED") return Tell(false, "fenced", status.message());
  if (reason == "CHECKPOINT_DAMAGED") {
    const std::string cause = absl::StrCat(
        status.message(), "; the trainer goes back to the newest checkpoint that verifies");
    Happened(common::v1::SEVERITY_ERROR, "checkpoint_damaged", cause);
    return Tell(false, "restore", cause);
  }
  if (reason == "RESTORE_FIRST" || reason == "GONE" || reason == "LEASE_LOST")
    return Tell(false, "restore", status.message());
  Tell(false, "failed", StatusText(status));
}

void TrainingJob::Impl::Leave(bool checkpoint) {
  leave_checkpoint_ = checkpoint;
  leave_ = true;
  cancel_reading_.Trigger();
  cancel_evaluating_.Trigger();
  if (!checkpoint) cancel_all_.Trigger();
}

void TrainingJob::Impl::SetRollouts(std::vector<std::string> rollouts) {
  MutexLock lock(&evaluator_mu_);
  rollouts_ = std::move(rollouts);
  if (evaluator_ != nullptr) evaluator_->SetRollouts(rollouts_);
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

const JobConfig& TrainingJob::config() const { return impl_->config; }
void TrainingJob::Leave(bool checkpoint) { impl_->Leave(checkpoint); }
void TrainingJob::SetRollouts(std::vector<std::string> rollouts) {
  impl_->SetRollouts(std::move(rollouts));
}
void TrainingJob::Wait() {
  if (impl_->thread.joinable()) impl_->thread.join();
}
std::vector<common::v1::WaitEdge> TrainingJob::Explain() const { return impl_->Explain(); }

}  // namespace sluice::trainer
