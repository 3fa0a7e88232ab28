#include "services/rollout/session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "common/weights/file_transport.h"
#include "common/weights/weight_folder.h"
#include "services/rollout/http/model.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::rollout {
namespace {

// Longest time that Stop() waits for the queue's last acknowledgements.
constexpr absl::Duration kFlush = absl::Seconds(5);
// Number of versions whose fingerprints are kept for the API.
constexpr size_t kDigests = 64;

// Computes Session::model_digest(). Files that the model does not have are left out.
std::string ModelDigest(const MadeEngine& made) {
  Sha256Stream digest;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    const absl::StatusOr<std::string> bytes = ReadFile(absl::StrCat(made.model.path, "/", name));
    if (bytes.ok()) digest.Update(absl::StrCat(name, " ", bytes->size(), "\n", *bytes));
  }
  digest.Update(made.fingerprint.bytes());
  return digest.Finish();
}

std::shared_ptr<FileTransport> MakeFolderTransport(const Session::Options& options,
                                                   const SessionSpec& spec) {
  if (spec.weights_dir.empty()) return nullptr;
  return std::make_shared<FileTransport>(
      WeightFolderOf(spec.weights_dir, options.job_name, options.job), options.job);
}

std::optional<BroadcastOptions> MakeBroadcastOptions(const Session::Options& options,
                                                     const SessionSpec& spec) {
  if (spec.broadcast.empty()) return std::nullopt;
  return BroadcastOptions{
      .join = options.join, .host = options.ranks.host, .ports = options.ranks.ports};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const Options& options,
                                                        const job::v1::JobSpec& job_spec,
                                                        const Metrics& metrics, Handlers handlers) {
  SLUICE_ASSIGN_OR_RETURN(SessionSpec spec, ReadSpec(job_spec, options.cores->threads()));
  spec.engine.job = options.job;
  if (!spec.broadcast.empty() && options.ranks.host.empty())
    return NoCollectiveHostError(options.worker, "weights.broadcast is " + spec.broadcast);

  SLUICE_ASSIGN_OR_RETURN(MadeEngine made, MakeEngine(spec.engine));
  if (spec.deterministic && !made.engine->caps().deterministic) {
    return absl::UnimplementedError(
        absl::StrCat("run.deterministic: the engine ", spec.engine.kind,
                     " does not give the same numbers in every batch; use native"));
  }

  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PromptRenderer> renderer,
                          PromptRenderer::Load(made.model, spec.chat_template, spec.sources));
  made.engine->UseTokenizer(&renderer->tokenizer());
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(options.queue, {rpc::Role::kQueue}));
  log::Info("model_loaded", {{"job_id", options.job_name},
                             {"model", made.model.path},
                             {"parameters", made.model.config.NumParameters()},
                             {"slots", made.engine->slots()},
                             {"context", made.engine->max_context()},
                             {"fingerprint", made.fingerprint.hex()}});
  if (const std::vector<std::string>& ignored = made.model.config.ignored; !ignored.empty()) {
    log::Warning("model_keys_ignored", {{"job_id", options.job_name},
                                        {"model", made.model.path},
                                        {"keys", absl::StrJoin(ignored, ", ")}});
  }

  std::unique_ptr<Session> session(new Session(options, std::move(spec), std::move(made),
                                               std::move(renderer), metrics, std::move(handlers)));
  session->queue_ = channel;
  session->client_ = std::make_unique<QueueClient>(
      std::move(channel), QueueClient::Options{.job = options.job,
                                               .worker = options.worker,
                                               .incarnation = options.incarnation,
                                               .cancel = &session->cancel_,
                                               .drain = &session->drain_});
  session->StartParts();
  return session;
}

Session::Session(const Options& options, SessionSpec spec, MadeEngine made,
                 std::unique_ptr<PromptRenderer> renderer, const Metrics& metrics,
                 Handlers handlers)
    : options_(options),
      spec_(std::move(spec)),
      metrics_(metrics),
      handlers_(std::move(handlers)),
      waits_(options.worker),
      remote_scorer_(
          {.job = options.job, .worker = options.worker, .incarnation = options.incarnation},
          &waits_),
      renderer_(std::move(renderer)),
      made_(std::move(made)),
      model_digest_(ModelDigest(made_)),
      layout_id_(LayoutId(made_.layout)),
      relay_(std::make_shared<WeightRelay>(
          WeightRelay::Options{.on_sent = [sent = metrics_.relayed_bytes](uint64_t bytes) {
            sent.Add(static_cast<double>(bytes));
          }})) {}

// Makes the parts, each before those that call it. The callbacks of the lease keeper, the rescorer
// and the streamer use parts that are made after them. This is safe because these callbacks run
// only after work was granted, and the admitter starts last.
void Session::StartParts() {
  const auto fail = [this](absl::Status why) { Fail(std::move(why)); };

  // The parts that talk to the queue.
  leases_ = std::make_unique<LeaseKeeper>(
      client_.get(), LeaseKeeper::Options{.on_lost =
                                              [this](const std::vector<std::string>& lost) {
                                                streamer_->AddLostLeases(lost);
                                              },
                                          .on_failed = fail});
  puts_ = std::make_unique<PutStream>(client_.get());
  rescorer_ = std::make_unique<Rescorer>(
      Rescorer::Options{.job_name = options_.job_name, .one_in = options_.rescore_one_in},
      [this](Request request) { loop_->Add({std::move(request)}); }, metrics_);
  probe_ =
      std::make_unique<VersionProbe>([this](Request request) { loop_->Add({std::move(request)}); });
  const ModelConfig& model = made_.model.config;
  streamer_ = std::make_unique<Streamer>(
      Streamer::Options{.job_name = options_.job_name,
                        .piece = spec_.piece,
                        .answer_ends = spec_.answer_ends,
                        .layers = model.num_layers,
                        .experts = model.experts_per_token,
                        .sealed =
                            [this](const Member& member) {
                              rescorer_->OnSealed(member, loop_->stats().version);
                              if (spec_.canary) probe_->OnSealed(member);
                            }},
      client_.get(), leases_.get(), puts_.get(), renderer_.get(), metrics_, fail);

  // The engine, and the work for it.
  loop_ = std::make_unique<StepLoop>(made_.engine.get(), spec_.kv, options_.cores.get(),
                                     static_cast<StepLoop::Sink*>(this));
  streamer_->Start(loop_.get());
  grants_ = std::make_unique<Grants>(
      Grants::Options{
          .job_name = options_.job_name, .worker = options_.worker, .max_prompt = spec_.max_prompt},
      client_.get(), leases_.get(), renderer_.get(), &made_, loop_.get(), &waits_, metrics_);
  admitter_ = std::make_unique<Admitter>(Admitter::Options{.job_name = options_.job_name,
                                                           .worker = options_.worker,
                                                           .group_size = spec_.group_size,
                                                           .slots = made_.engine->slots()},
                                         client_.get(), leases_.get(), streamer_.get(), loop_.get(),
                                         grants_.get(), &waits_, &drain_, fail);

  // New weights, for this engine and for the engines of evaluations.
  weights_ = std::make_unique<WeightSubscriber>(
      WeightSubscriber::Options{
          .job = options_.job,
          .worker = options_.worker,
          .incarnation = options_.incarnation,
          .fan_out = spec_.fan_out,
          .shared_memory = spec_.shared_memory,
          .broadcast = MakeBroadcastOptions(options_, spec_),
          .ucx_devices = spec_.ucx ? std::optional(options_.ucx_devices) : std::nullopt,
          .folder = MakeFolderTransport(options_, spec_),
          .relay = relay_,
          .on_download_failed =
              [this](const absl::Status& why) {
                if (absl::IsDataLoss(why)) metrics_.damaged_downloads.Add();
              },
          .on_download_ended =
              [this](const ObjectFetcher::Stats& stats) {
                metrics_.parent_changes.Add(stats.holders_left);
                metrics_.CountTransports(stats.used_by_transport);
              },
          .has_room = [this] { return loop_->stats().room_for_version; },
          .health = [this] { return TrialHealth(); }},
      made_.layout, made_.fingerprint, [this](StagedWeights staged) {
        metrics_.fetch.Observe(absl::ToDoubleSeconds(staged.fetch));
        metrics_.fetched_bytes.Add(static_cast<double>(staged.bytes));
        if (staged.waited > absl::ZeroDuration())
          metrics_.room.Observe(absl::ToDoubleSeconds(staged.waited));
        made_.engine->PrepareWeights(&staged);
        loop_->Activate(std::move(staged));
      });
  SetRollouts(options_.rollouts);
  SetRewards(options_.rewards);
  SetWeightsSource(options_.weights);
  {
    const WeightFetcher::Caller caller{
        .job = options_.job, .worker = options_.worker, .incarnation = options_.incarnation};
    Evaluations::Options evaluations{.spec = spec_.eval,
                                     .engine = spec_.engine,
                                     .slots = made_.engine->slots(),
                                     .chat_template = spec_.chat_template,
                                     .max_prompt = spec_.max_prompt,
                                     .fetcher = WeightFetcher(caller, made_.layout),
                                     .remote = &remote_scorer_};
    MutexLock lock(&mu_);
    evaluations_ = std::make_unique<Evaluations>(std::move(evaluations));
  }

  watch_ = std::make_unique<QueueWatch>(
      client_.get(),
      QueueWatch::Handlers{
          .on_change = [this](const queue::v1::WatchResponse& change) { OnQueueChange(change); }});
  admitter_->Start();
}

// Runs on the watch's thread.
void Session::OnQueueChange(const queue::v1::WatchResponse& change) {
  // A restarted queue does not know which versions engines hold, and may have lost leases. A Renew
  // tells it the versions, and tells us the lost leases.
  const int64_t before = queue_incarnation_;
  if (change.queue_incarnation() != 0) queue_incarnation_ = change.queue_incarnation();
  if (before != 0 && before != queue_incarnation_) leases_->RenewNow();

  if (change.cancel_size() > 0)
    streamer_->AddCancelHints({change.cancel().begin(), change.cancel().end()});
}

Session::~Session() { Stop(absl::ZeroDuration()); }

void Session::MoveQueue(const std::string& address) {
  log::Info("queue_moved", {{"job_id", options_.job_name}, {"address", address}});
  if (const absl::Status moved = queue_->MoveTo(address); !moved.ok())
    log::Error("bad_queue_address", {{"job_id", options_.job_name}, {"error", moved}});
}

void Session::SetWeightsSource(const std::string& address) {
  weights_->SetSource(address);
  MutexLock lock(&mu_);
  trainer_ = address;
}

void Session::SetRollouts(std::vector<RelayMember> rollouts) {
  weights_->SetMembers(std::move(rollouts));
}

void Session::SetRewards(std::vector<std::string> rewards) {
  remote_scorer_.SetRewards(std::move(rewards));
}

absl::StatusOr<uint64_t> Session::Evaluate(const PublishedVersion& version,
                                           const std::string& dataset, Evaluations::Done done) {
  MutexLock lock(&mu_);
  if (evaluations_ == nullptr || trainer_.empty()) {
    return absl::UnavailableError(
        "the job is leaving this worker, or has no trainer; ask again later");
  }
  return evaluations_->Start({.version = version, .dataset = dataset, .trainer = trainer_},
                             std::move(done));
}

void Session::CancelEvaluation(uint64_t task) {
  MutexLock lock(&mu_);
  if (evaluations_ != nullptr) evaluations_->Cancel(task);
}

void Session::Stop(absl::Duration grace) {
  // Destroying the evaluations waits for their thread, so it happens without the lock.
  std::unique_ptr<Evaluations> evaluations;
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopping_, true)) return;
    evaluations = std::move(evaluations_);
  }
  evaluations.reset();

  // Admit no more work, and let running answers end within `grace`.
  drain_.Trigger();
  streamer_->CloseRoom();
  admitter_->Stop();
  if (grace > absl::ZeroDuration()) streamer_->AwaitEmpty(grace);
  loop_->Stop();
  weights_.reset();

  // Send all sampled tokens to the queue, so that a later attempt continues after them.
  if (grace > absl::ZeroDuration()) {
    // A queue that is gone must not keep this daemon until it is killed.
    if (!streamer_->FlushPieces(kFlush)) {
      log::Warning("flush_failed",
                   {{"job_id", options_.job_name}, {"error", "the queue does not answer"}});
    } else if (absl::Status flushed = puts_->Flush(kFlush); !flushed.ok()) {
      log::Warning("flush_failed", {{"job_id", options_.job_name}, {"error", flushed}});
    }
  }

  cancel_.Trigger();
  watch_.reset();
  leases_->Stop();
  streamer_->Stop();
  puts_->Stop();
  ReleaseLeases(streamer_->leases());
}

// Gives leases back, so that other workers can go on at once. It uses a client of its own, because
// `cancel_` has ended the calls of the session's client.
void Session::ReleaseLeases(const std::vector<std::string>& leases) const {
  if (leases.empty()) return;
  QueueClient client(queue_, {.job = options_.job,
                              .worker = options_.worker,
                              .incarnation = options_.incarnation,
                              .give_up = absl::Seconds(2)});
  queue::v1::ReleaseRequest release;
  release.mutable_leases()->Add(leases.begin(), leases.end());
  release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  const absl::Status released = client.Release(std::move(release)).status();
  log::Info("leases_released",
            {{"job_id", options_.job_name}, {"leases", leases.size()}, {"result", released}});
}

void Session::Fail(absl::Status why) {
  if (absl::IsCancelled(why)) return;  // Stop() has cancelled the calls; this is no failure.
  log::Error("session_ended", {{"job_id", options_.job_name}, {"error", why}});
  handlers_.failed(std::move(why));
}

absl::Status Session::health() const {
  {
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(damage_);
  }
  return health_.status();
}

VersionHealth Session::TrialHealth() const {
  VersionHealth health = probe_->health();
  const RowHealth::Counts drawn = health_.counts();
  health.rows += drawn.rows;
  health.bad_rows += drawn.bad;
  return health;
}

std::vector<common::v1::WaitEdge> Session::Explain() const {
  std::vector<common::v1::WaitEdge> edges = waits_.Edges();
  const EngineStats engine = loop_->stats();
  if (const PutStream::Backlog backlog = puts_->backlog(); backlog.records > 0) {
    edges.push_back(daemon::MakeWaitEdge(
        options_.worker,
        {.kind = "DAEMON",
         .id = "queue",
         .at = "queue",
         .cause = absl::StrCat(options_.worker, " has ", backlog.records, " pieces (",
                               backlog.bytes, " B) that the queue has not acknowledged"),
         .next = "they are sent again if the connection breaks"}));
  }
  std::optional<ObjectFetcher::Wait> object;
  std::optional<WeightSubscriber::RoomWait> room;
  {
    MutexLock lock(&mu_);
    if (!damage_.ok()) {
      edges.push_back(daemon::MakeWaitEdge(
          options_.worker,
          {.kind = "VERSION",
           .id = "whole",
           .at = "trainer",
           .cause = absl::StrCat(options_.worker, " samples nothing: ", damage_.message()),
           .next = "it fetches a whole version and goes on"}));
    }
    if (!stopping_) {
      object = weights_->wait();
      room = weights_->room_wait();
    }
  }
  if (room.has_value()) {
    edges.push_back(daemon::MakeWaitEdge(
        options_.worker,
        {.kind = "VERSION",
         .id = room->version.str(),
         .cause =
             absl::StrCat(options_.worker, " has version ", room->version.str(), ", and holds ",
                          engine.versions, " (weights.resident_versions): ", engine.oldest_answers,
                          " answers are still of version ", engine.oldest_version.str()),
         .next = "the last of these answers ends, or the queue drops it"}));
    *edges.back().mutable_since() = rpc::ToProto(Clock::Real()->Monotonic() - room->since);
  }
  if (object.has_value()) {
    const std::string holder = object->holder == kOriginId ? "trainer" : object->holder;
    edges.push_back(daemon::MakeWaitEdge(
        options_.worker,
        {.kind = "CHUNK",
         .id = object->object,
         .at = holder,
         .cause = absl::StrCat(options_.worker, " fetches version ", object->version.str(), ": ",
                               object->objects, " chunks have not come from ", holder,
                               ", the first of them is ", object->object),
         .next = "another one that has it is asked, if there is one"}));
    *edges.back().mutable_since() = rpc::ToProto(Clock::Real()->Monotonic() - object->since);
  }
  if (engine.running + engine.waiting > 0) {
    const double share = engine.kv_capacity == 0 ? 0
                                                 : 100.0 * static_cast<double>(engine.kv_tokens) /
                                                       static_cast<double>(engine.kv_capacity);
    edges.push_back(daemon::MakeWaitEdge(
        options_.worker, {.kind = "CALL",
                          .id = "decode",
                          .cause = absl::StrFormat("%s samples %d answers, and %d wait for one of "
                                                   "its %d slots; the KV cache is %.0f %% full",
                                                   options_.worker, engine.running, engine.waiting,
                                                   engine.slots, share),
                          .next = "an answer ends"}));
  }
  return edges;
}

// Requests of guests. -----------------------------------------------------------------------------

void Session::AddGuestRequests(std::vector<Request> requests) {
  {
    MutexLock lock(&mu_);
    if (!stopping_) return loop_->Add(std::move(requests));
  }
  StepEvents refused;
  for (const Request& request : requests)
    refused.failures.push_back(
        {request.id,
         absl::UnavailableError("the job is leaving this worker; ask another, or again later")});
  handlers_.guests(std::move(refused));
}

void Session::AbortGuestRequests(const std::vector<uint64_t>& requests) {
  for (uint64_t request : requests) loop_->Abort(request, AbortReason::kCancelled);
}

std::optional<PolicyVersion> Session::serving() const {
  MutexLock lock(&mu_);
  return serving_;
}

std::string Session::digest(PolicyVersion version) const {
  MutexLock lock(&mu_);
  const auto found = digests_.find(version);
  return found == digests_.end() ? "" : found->second;
}

// On the step thread. -----------------------------------------------------------------------------

void Session::OnStep(StepEvents events) {
  const auto is_job = [](const auto& event) {
    return OwnerOf(event.request) == RequestOwner::kJob;
  };
  const auto tokens = std::stable_partition(events.tokens.begin(), events.tokens.end(), is_job);
  const auto failures =
      std::stable_partition(events.failures.begin(), events.failures.end(), is_job);
  if (tokens != events.tokens.end() || failures != events.failures.end()) {
    StepEvents others;
    others.tokens.assign(std::make_move_iterator(tokens),
                         std::make_move_iterator(events.tokens.end()));
    others.failures.assign(std::make_move_iterator(failures),
                           std::make_move_iterator(events.failures.end()));
    events.tokens.erase(tokens, events.tokens.end());
    events.failures.erase(failures, events.failures.end());
    rescorer_->TakeEvents(&others);
    probe_->TakeEvents(&others);
    if (!others.tokens.empty() || !others.failures.empty()) handlers_.guests(std::move(others));
  }

  if (health_.CountRows(events))
    log::Error("weights_not_finite", {{"job_id", options_.job_name}, {"error", health_.status()}});

  const bool crowded = !events.tokens.empty() && !HitFailpoint("rollout.step.crowded").ok();
  if (crowded) events.crowded_out.push_back(events.tokens.back().request);
  streamer_->AddStep(std::move(events));
  // A request that was really preempted would wait now, but this one runs on. So wait until the
  // streamer has taken the event; else the answer could end first.
  if (crowded) (void)streamer_->FlushPieces(absl::InfiniteDuration());
}

void Session::OnActivation(const StagedWeights& staged, const Activation& activation) {
  if (!activation.accepted) {
    ++refused_;
    metrics_.refused_activations.Add();
    if (activation.damage.has_value()) OnDamage(*activation.damage);
    weights_->OnRefused(staged.version, activation.cause,
                        activation.blame.empty() ? "" : activation.blame.front());
    return;
  }

  health_.StartVersion(activation.version);
  probe_->StartVersion(activation.version, staged.candidate);
  common::v1::Loaded loaded;
  *loaded.mutable_version() = rpc::ToProto(activation.version);
  loaded.set_verified(true);
  leases_->SetLoaded({loaded});
  weights_->OnActivated(activation.version, staged.state, absl::Seconds(activation.seconds));
  metrics_.pause.Observe(activation.seconds);
  metrics_.verify.Observe(activation.verify_seconds);

  handlers_.serving(activation.version);
  {
    MutexLock lock(&mu_);
    damage_ = absl::OkStatus();
    digests_[activation.version] = staged.state.hex();
    if (digests_.size() > kDigests) digests_.erase(digests_.begin());
    serving_ = activation.version;
  }
  streamer_->SetStanding(false);
  admitter_->SetReady(true);
}

// Asks for no more work, and for a whole version. What the engine has goes on when it is there; if
// it does not come for a while, other workers go on with it. The queue gives no work to an engine
// whose version is not verified, so a parked Admit gets none.
void Session::OnDamage(const WeightDamage& damage) {
  admitter_->SetReady(false);
  streamer_->SetStanding(true);
  metrics_.damaged_weights.Add();
  metrics_.suspect_tokens.Add(static_cast<double>(damage.suspect_tokens));
  std::optional<PolicyVersion> serving;
  {
    MutexLock lock(&mu_);
    damage_ = absl::UnavailableError(damage.cause);
    serving = serving_;
  }
  if (serving.has_value()) {
    common::v1::Loaded loaded;
    *loaded.mutable_version() = rpc::ToProto(*serving);
    loaded.set_verified(false);
    leases_->SetLoaded({loaded});
  }
  weights_->OnDamaged(loop_->stats().version, damage.cause,
                      damage.tensors.empty() ? "" : damage.tensors.front());
}

void Session::OnRoom() { weights_->OnRoom(); }

void Session::OnBroken(absl::Status why) {
  log::Error("engine_broken", {{"job_id", options_.job_name}, {"error", why}});
  handlers_.broken(std::move(why));
}

}  // namespace sluice::rollout
