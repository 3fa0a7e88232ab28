#include "services/rollout/session.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "services/rollout/convert.h"
#include "services/rollout/http/model.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::rollout {
namespace {

// Members of one Admit, so that several workers share a step.
constexpr uint32_t kAdmitAtOnce = 64;
// Longest wait for the last acknowledgements.
constexpr absl::Duration kFlush = absl::Seconds(5);
// Versions whose digests are kept for the API.
constexpr size_t kDigests = 64;
// Between tries while a job is being set up.
constexpr absl::Duration kNotYet = absl::Milliseconds(100);

common::v1::TrajectoryRef RefOf(const queue::v1::Grant& grant, const queue::v1::Member& member) {
  common::v1::TrajectoryRef ref;
  ref.set_group(grant.group());
  ref.set_member(member.member());
  ref.set_attempt(member.attempt());
  return ref;
}

queue::v1::DropItem DropGroup(const queue::v1::Grant& grant, const char* reason) {
  queue::v1::DropItem item;
  item.mutable_ref()->set_group(grant.group());
  item.set_lease(grant.members(0).lease().id());
  item.set_reason(reason);
  return item;
}

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

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const Options& options,
                                                        const job::v1::JobSpec& job_spec,
                                                        const Metrics& metrics, Handlers handlers) {
  SLUICE_ASSIGN_OR_RETURN(SessionSpec spec, ReadSpec(job_spec, options.cores->threads()));
  spec.engine.job = options.job;
  SLUICE_ASSIGN_OR_RETURN(MadeEngine made, MakeEngine(spec.engine));
  if (spec.deterministic && !made.engine->caps().deterministic) {
    return absl::UnimplementedError(
        absl::StrCat("run.deterministic: the engine ", spec.engine.kind,
                     " does not give the same numbers whatever the batch; use native"));
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PromptRenderer> renderer,
                          PromptRenderer::Load(made.model, spec.chat_template, spec.sources));
  made.engine->UseTokenizer(&renderer->tokenizer());
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel, rpc::Connect(options.queue));
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
  session->Begin();
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
      renderer_(std::move(renderer)),
      made_(std::move(made)),
      model_digest_(ModelDigest(made_)),
      layout_id_(made_.layout->layout_id()) {}

// Starts the parts, each before those that call it.
void Session::Begin() {
  LeaseKeeper::Options leases;
  leases.lost = [this](const std::vector<std::string>& lost) { streamer_->Lost(lost); };
  leases.failed = [this](absl::Status why) { Fail(std::move(why)); };
  leases_ = std::make_unique<LeaseKeeper>(client_.get(), std::move(leases));
  puts_ = std::make_unique<PutStream>(client_.get());
  const ModelConfig& model = made_.model.config;
  rescorer_ = std::make_unique<Rescorer>(
      Rescorer::Options{.job_name = options_.job_name, .one_in = options_.rescore_one_in},
      [this](Request request) { loop_->Add({std::move(request)}); }, metrics_);
  streamer_ = std::make_unique<Streamer>(
      Streamer::Options{
          .job_name = options_.job_name,
          .piece = spec_.piece,
          .layers = model.num_layers,
          .experts = model.experts_per_token,
          .sealed =
              [this](const Member& member) { rescorer_->Sealed(member, loop_->stats().version); }},
      client_.get(), leases_.get(), puts_.get(), renderer_.get(), metrics_,
      [this](absl::Status why) { Fail(std::move(why)); });
  loop_ = std::make_unique<StepLoop>(made_.engine.get(), spec_.kv, options_.cores.get(),
                                     static_cast<StepLoop::Sink*>(this));
  streamer_->Start(loop_.get());
  weights_ = std::make_unique<WeightSubscriber>(
      WeightSubscriber::Options{
          .job = options_.job, .worker = options_.worker, .incarnation = options_.incarnation},
      *made_.layout, made_.fingerprint,
      [this](StagedWeights staged) { loop_->Activate(std::move(staged)); });
  SetWeightsSource(options_.weights);
  {
    const WeightFetcher::Caller caller{
        .job = options_.job, .worker = options_.worker, .incarnation = options_.incarnation};
    Evaluations::Options evaluations{.spec = spec_.eval,
                                     .engine = spec_.engine,
                                     .slots = made_.engine->slots(),
                                     .chat_template = spec_.chat_template,
                                     .max_prompt = spec_.max_prompt,
                                     .fetcher = WeightFetcher(caller, *made_.layout)};
    MutexLock lock(&mu_);
    evaluations_ = std::make_unique<Evaluations>(std::move(evaluations));
  }
  QueueWatch::Handlers watch;
  watch.changed = [this](const queue::v1::WatchResponse& change) {
    // A queue that was started anew forgets what its engines hold, and may have lost their leases.
    const int64_t before = queue_incarnation_;
    if (change.queue_incarnation() != 0) queue_incarnation_ = change.queue_incarnation();
    if (before != 0 && before != queue_incarnation_) leases_->RenewNow();
    if (change.cancel_size() > 0)
      streamer_->Cancelled({change.cancel().begin(), change.cancel().end()});
  };
  watch_ = std::make_unique<QueueWatch>(client_.get(), std::move(watch));
  thread_ = std::thread([this] { AdmitLoop(); });
}

Session::~Session() { Stop(absl::ZeroDuration()); }

void Session::SetWeightsSource(const std::string& address) {
  weights_->SetSource(address);
  MutexLock lock(&mu_);
  trainer_ = address;
}

absl::StatusOr<uint64_t> Session::Evaluate(const LatestVersion& version, const std::string& dataset,
                                           Evaluations::Done done) {
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
  if (!thread_.joinable()) return;
  std::unique_ptr<Evaluations> evaluations;  // Ends without the lock.
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    evaluations = std::move(evaluations_);
    changed_.NotifyAll();
  }
  evaluations.reset();
  drain_.Trigger();
  streamer_->CloseRoom();
  thread_.join();
  if (grace > absl::ZeroDuration()) streamer_->AwaitEmpty(grace);
  loop_->Stop();
  weights_.reset();
  if (grace > absl::ZeroDuration()) {
    streamer_->FlushPieces();
    if (absl::Status flushed = puts_->Flush(kFlush); !flushed.ok()) {
      log::Warning("flush_failed", {{"job_id", options_.job_name}, {"error", flushed}});
    }
  }
  cancel_.Trigger();
  watch_.reset();
  leases_->Stop();
  streamer_->Stop();
  puts_->Stop();
  const std::vector<std::string> left = streamer_->leases();
  if (left.empty()) return;
  // The calls above were cancelled, so the leases go back through a client of their own.
  QueueClient goodbye(queue_, {.job = options_.job,
                               .worker = options_.worker,
                               .incarnation = options_.incarnation,
                               .give_up = absl::Seconds(2)});
  queue::v1::ReleaseRequest release;
  release.mutable_leases()->Add(left.begin(), left.end());
  release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  const auto released = goodbye.Release(std::move(release));
  log::Info(
      "leases_released",
      {{"job_id", options_.job_name}, {"leases", left.size()}, {"result", released.status()}});
}

void Session::Fail(absl::Status why) {
  if (absl::IsCancelled(why)) return;  // Stop() is at work.
  log::Error("session_ended", {{"job_id", options_.job_name}, {"error", why}});
  handlers_.failed(std::move(why));
}

std::vector<common::v1::WaitEdge> Session::Explain() const {
  std::vector<common::v1::WaitEdge> edges = waits_.Edges();
  const EngineStats engine = loop_->stats();
  if (const PutStream::Backlog backlog = puts_->backlog(); backlog.records > 0) {
    edges.push_back(daemon::OwnEdge(
        options_.worker,
        {.kind = "DAEMON",
         .id = "queue",
         .at = "queue",
         .cause = absl::StrCat(options_.worker, " has ", backlog.records, " pieces, ",
                               backlog.bytes, " B, that the queue has not acknowledged"),
         .next = "they are sent again should the connection break"}));
  }
  if (engine.running + engine.waiting > 0) {
    const double share = engine.kv_capacity == 0 ? 0
                                                 : 100.0 * static_cast<double>(engine.kv_tokens) /
                                                       static_cast<double>(engine.kv_capacity);
    edges.push_back(daemon::OwnEdge(
        options_.worker,
        {.kind = "CALL",
         .id = "decode",
         .cause = absl::StrFormat(
             "%s samples %d answers at once, %d wait for one of its %d places; KV cache %.0f %%",
             options_.worker, engine.running, engine.waiting, engine.slots, share),
         .next = "an answer ends"}));
  }
  return edges;
}

// Requests of guests. -----------------------------------------------------------------------------

void Session::AddApi(std::vector<Request> requests) {
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

void Session::AbortApi(const std::vector<uint64_t>& requests) {
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

// The step thread. --------------------------------------------------------------------------------

void Session::OnStep(StepEvents events) {
  const auto is_job = [](const auto& event) {
    return (event.request & (http::kApiRequest | Rescorer::kRescored)) == 0;
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
    rescorer_->Take(&others);
    if (!others.tokens.empty() || !others.failures.empty()) handlers_.guests(std::move(others));
  }
  if (health_.Stepped(events))
    log::Error("weights_not_finite", {{"job_id", options_.job_name}, {"error", health_.status()}});
#ifdef SLUICE_FAILPOINTS
  const bool crowded = !events.tokens.empty() && !HitFailpoint("rollout.step.crowded").ok();
  if (crowded) events.crowded_out.push_back(events.tokens.back().request);
  streamer_->Stepped(std::move(events));
  // Who is crowded out waits; this one would run to its end before the streamer hears of it.
  if (crowded) streamer_->FlushPieces();
#else
  streamer_->Stepped(std::move(events));
#endif
}

void Session::OnActivation(const StagedWeights& staged, const Activation& activation) {
  if (!activation.accepted) {
    ++refused_;
    metrics_.verify_failures.Add();
    weights_->Refused(staged.version, activation.cause,
                      activation.blame.empty() ? "" : activation.blame.front());
    return;
  }
  health_.Activated(activation.version);
  common::v1::Loaded loaded;
  *loaded.mutable_version() = rpc::ToProto(activation.version);
  loaded.set_verified(true);
  leases_->SetLoaded({loaded});
  weights_->Activated(activation.version, staged.state, absl::Seconds(activation.seconds));
  metrics_.pause.Observe(activation.seconds);
  handlers_.serving(activation.version);
  MutexLock lock(&mu_);
  digests_[activation.version] = staged.state.hex();
  if (digests_.size() > kDigests) digests_.erase(digests_.begin());
  serving_ = activation.version;
  changed_.NotifyAll();
}

void Session::OnBroken(absl::Status why) {
  log::Error("engine_broken", {{"job_id", options_.job_name}, {"error", why}});
  handlers_.broken(std::move(why));
}

// The admit thread. -------------------------------------------------------------------------------

bool Session::AwaitWeights() {
  MutexLock lock(&mu_);
  const auto waits = waits_.Begin(
      {.kind = "VERSION",
       .id = "first",
       .at = "trainer",
       .cause = absl::StrCat(options_.worker, " has no weights that the trainer published"),
       .next = absl::StrCat(options_.worker, " fetches and checks them as soon as they are out")});
  while (!serving_.has_value() && !stopping_) changed_.Wait(&mu_);
  return !stopping_;
}

void Session::AdmitLoop() {
  if (!AwaitWeights()) return;
  absl::Status status = leases_->Sync();
  while (status.ok()) {
    status = AdmitOnce();
    // Not yet set up, or closed: the controller will say.
    if (absl::IsFailedPrecondition(status)) {
      const auto waits =
          waits_.Begin({.kind = "DAEMON",
                        .id = "queue",
                        .at = "queue",
                        .cause = absl::StrCat(options_.worker, " gets no work: ", status.message()),
                        .next = absl::StrCat(options_.worker, " asks again")});
      if (drain_.WaitFor(kNotYet)) return;
      status = leases_->Sync();
    }
  }
  if (!drain_.triggered()) Fail(std::move(status));
}

// CANCELLED: stopping.
absl::Status Session::AdmitOnce() {
  const size_t limit = std::max<size_t>(made_.engine->slots(), spec_.group_size);
  const size_t wanted = std::min<size_t>(spec_.group_size, limit);
  const size_t room = streamer_->AwaitRoom(limit + 1 - wanted);
  if (room == 0) return absl::CancelledError("stopping");
  queue::v1::AdmitRequest request;
  // Whole groups, as many as there is room for.
  const size_t groups =
      std::max<size_t>(1, std::min<size_t>(room + wanted - 1, kAdmitAtOnce) / spec_.group_size);
  request.set_room(static_cast<uint32_t>(groups * spec_.group_size));
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::AdmitResponse response,
                          client_->Admit(std::move(request)));
  std::vector<Member> members;
  std::vector<Request> requests;
  std::vector<queue::v1::DropItem> drops;
  for (const queue::v1::Grant& grant : response.grants()) {
    for (const queue::v1::Member& member : grant.members()) leases_->Hold(member.lease().id());
    SLUICE_RETURN_IF_ERROR(TakeGrant(grant, &members, &requests, &drops));
  }
  const auto resumed = std::count_if(members.begin(), members.end(), [](const Member& m) {
    return !m.trajectory.tokens().empty();
  });
  if (resumed > 0)
    log::Info("answers_resumed",
              {{"job_id", options_.job_name}, {"answers", static_cast<int64_t>(resumed)}});
  if (!drops.empty()) streamer_->Dropped(std::move(drops));
  if (!members.empty()) streamer_->Granted(std::move(members));
  if (!requests.empty()) loop_->Add(std::move(requests));
  return absl::OkStatus();
}

// An error is the job's; what is wrong with a row or a lease ends that group or member alone.
absl::Status Session::TakeGrant(const queue::v1::Grant& grant, std::vector<Member>* members,
                                std::vector<Request>* requests,
                                std::vector<queue::v1::DropItem>* drops) {
  if (grant.members_size() == 0) return absl::OkStatus();
  SamplingParams sampling = FromProto(grant.sampling());
  SLUICE_RETURN_IF_ERROR(CheckSampling(sampling, /*trainable=*/true));
  const auto drop = [&](const char* reason, const std::string& why) {
    log::Warning("prompt_dropped", {{"job_id", options_.job_name},
                                    {"reason", reason},
                                    {"row", grant.row().index()},
                                    {"why", why}});
    for (const queue::v1::Member& member : grant.members()) leases_->Forget(member.lease().id());
    drops->push_back(DropGroup(grant, reason));
    return absl::OkStatus();
  };
  absl::StatusOr<RenderedPrompt> rendered =
      renderer_->Render(grant.row().source(), grant.row().json());
  if (!rendered.ok()) return drop("bad_row", std::string(rendered.status().message()));
  const auto prompt = std::make_shared<const RenderedPrompt>(*std::move(rendered));
  const size_t tokens = prompt->tokens.size();
  if (const size_t limit = std::min<size_t>(spec_.max_prompt, made_.engine->max_context() - 1);
      tokens > limit) {
    return drop("prompt_too_long", absl::StrCat(tokens, " tokens; the limit is ", limit));
  }
  sampling.max_tokens = std::min<uint32_t>(
      sampling.max_tokens, made_.engine->max_context() - static_cast<uint32_t>(tokens));
  const uint64_t engine_group = next_id_++;
  const auto shared = std::shared_ptr<const std::vector<int32_t>>(prompt, &prompt->tokens);
  bool first = true;
  for (const queue::v1::Member& granted : grant.members()) {
    absl::StatusOr<Member> member = TakeMember(grant, granted, prompt);
    if (!member.ok()) {
      if (ReasonOf(member.status()) != "LEASE_LOST" && ReasonOf(member.status()) != "GONE")
        return member.status();
      leases_->Forget(granted.lease().id());
      continue;
    }
    member->put_prompt = first && granted.prefix() == 0;
    first = first && granted.prefix() != 0;
    Request request = MakeRequest(grant, *member, sampling);
    request.group = engine_group;
    request.prompt = shared;
    const std::vector<int32_t>& answer = member->trajectory.tokens();
    const auto stops = [&](int32_t token) {
      const auto has = [token](const std::vector<int32_t>& ids) {
        return std::find(ids.begin(), ids.end(), token) != ids.end();
      };
      return has(sampling.stop_ids) || (!sampling.ignore_eos && has(made_.model.stop_ids));
    };
    if (!answer.empty() && stops(answer.back())) {
      member->trajectory.Finish(FinishReason::kStop);
    } else if (answer.size() >= sampling.max_tokens) {
      member->trajectory.Finish(FinishReason::kLength);
    }
    member->generating = member->trajectory.finish() == FinishReason::kNone;
    if (member->generating) requests->push_back(std::move(request));
    members->push_back(*std::move(member));
  }
  return absl::OkStatus();
}

absl::StatusOr<Member> Session::TakeMember(const queue::v1::Grant& grant,
                                           const queue::v1::Member& granted,
                                           std::shared_ptr<const RenderedPrompt> prompt) {
  const uint32_t base = static_cast<uint32_t>(prompt->tokens.size());
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<PolicyVersion> versions;
  if (granted.prefix() > base) {
    const size_t count = granted.prefix() - base;
    tokens.resize(count);
    logprobs.resize(count);
    versions.resize(count);
    common::v1::Want want;
    *want.mutable_owner() = RefOf(grant, granted);
    want.add_names("tokens");
    want.add_names("logprobs");
    want.set_from(base);
    want.set_to(granted.prefix());
    size_t placed = 0;
    const auto place = [&](const common::v1::Record& record, int field) -> char* {
      const common::v1::Field& f = record.fields(field);
      const uint64_t at = record.piece().at();
      if (!record.has_piece() || at < base || at + record.piece().count() > granted.prefix() ||
          f.bytes() != record.piece().count() * 4ull) {
        return nullptr;
      }
      placed += f.bytes();
      uint64_t t = record.piece().at() - base;
      const uint64_t end = t + record.piece().count();
      for (const common::v1::VersionRun& run : record.piece().runs()) {
        const uint64_t next = std::min<uint64_t>(end, t + run.count());
        std::fill(versions.begin() + static_cast<ptrdiff_t>(t),
                  versions.begin() + static_cast<ptrdiff_t>(next), rpc::FromProto(run.version()));
        t = next;
      }
      if (f.name() == "tokens") return reinterpret_cast<char*>(tokens.data() + (at - base));
      return f.name() == "logprobs" ? reinterpret_cast<char*>(logprobs.data() + (at - base))
                                    : nullptr;
    };
    const auto reads = waits_.Begin({.kind = "DAEMON",
                                     .id = "queue",
                                     .at = "queue",
                                     .cause = absl::StrCat(options_.worker, " reads a prefix of ",
                                                           count, " tokens from the queue")});
    SLUICE_RETURN_IF_ERROR(client_->Get(granted.lease().id(), {want}, place));
    if (placed < count * 8) {
      return Error(
          absl::StatusCode::kNotFound, "GONE",
          absl::StrCat("the queue gave ", placed, " bytes of a prefix of ", count, " tokens"));
    }
    metrics_.resumed.Add();
    metrics_.tokens_resumed.Add(static_cast<double>(count));
  }
  Member member{
      .request = next_id_++,
      .ref = RefOf(grant, granted),
      .lease = granted.lease().id(),
      .prompt = std::move(prompt),
      .granted_under = loop_->stats().version,
      .temperature = static_cast<float>(grant.sampling().temperature()),
      .trajectory = Trajectory(base, std::move(tokens), std::move(logprobs), std::move(versions))};
  if (made_.engine->caps().routing) {
    member.trajectory.RecordRouting(static_cast<uint32_t>(made_.model.config.num_layers *
                                                          made_.model.config.experts_per_token));
  }
  return member;
}

Request Session::MakeRequest(const queue::v1::Grant& grant, const Member& member,
                             const SamplingParams& sampling) const {
  return Request{
      .id = member.request,
      .sampled = member.trajectory.tokens(),
      .seed = grant.seed(),
      .member = member.ref.member(),
      .sampling = sampling,
      .order = member.trajectory.tokens().empty() ? RequestClass::kTrain : RequestClass::kResumed,
      .target_step = grant.step(),
      .routing = made_.engine->caps().routing};
}

}  // namespace sluice::rollout
