#include "services/rollout/program.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/collective/c10d_collective.h"
#include "common/daemon/admin_service.h"
#include "common/log/log.h"
#include "common/models/adapter.h"
#include "common/rpc/convert.h"
#include "grpcpp/impl/service_type.h"
#include "services/rollout/api_model.h"
#include "services/rollout/http/server.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::rollout {
namespace {
// Time for the API to send its last errors after the jobs have ended.
constexpr absl::Duration kLastAnswers = absl::Seconds(1);
// Time for running answers to end before a job leaves this worker in the phase HOLD. What is
// sampled of the others goes to the queue, and other workers go on with them.
constexpr absl::Duration kHandOver = absl::Seconds(1);

// Returns true if other rollout daemons work for the job too. The peers include this daemon.
bool HasOtherRollouts(const registry::v1::Assignment& assignment) {
  return absl::c_count_if(assignment.peers(), [](const common::v1::Worker& peer) {
           return peer.role() == rpc::v1::ROLE_ROLLOUT;
         }) > 1;
}

// Addresses of those that serve weights.
struct WeightHolders {
  std::string trainer;  // Of rank 0; empty if there is none for now.
  std::vector<RelayMember> rollouts;
};

WeightHolders WeightHoldersOf(const registry::v1::Assignment& assignment) {
  WeightHolders holders;
  // The addresses are those of the trainers and then those of the rollouts, each in the order of
  // the peers.
  int next = 0;
  for (const rpc::v1::Role role : {rpc::v1::ROLE_TRAINER, rpc::v1::ROLE_ROLLOUT}) {
    for (const common::v1::Worker& peer : assignment.peers()) {
      if (peer.role() != role || next >= assignment.weights_size()) continue;
      const std::string& address = assignment.weights(next++);
      if (role == rpc::v1::ROLE_ROLLOUT) holders.rollouts.push_back({peer.id(), address});
      else if (holders.trainer.empty()) holders.trainer = address;
    }
  }
  return holders;
}

}  // namespace

absl::StatusOr<std::unique_ptr<daemon::Program>> RolloutProgram::Make(const daemon::Host& host) {
  SLUICE_ASSIGN_OR_RETURN(RolloutOptions options, ReadRolloutFlags(*host.flags));
  return std::make_unique<RolloutProgram>(host, std::move(options));
}

RolloutProgram::RolloutProgram(const daemon::Host& host, RolloutOptions options)
    : host_(host),
      options_(std::move(options)),
      waits_(host.flags->id),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return Explain(job); })),
      engine_(&callers_, &guests_),
      weights_(&callers_) {
  weights_.OfferUcx(options_.ucx_devices);
}

RolloutProgram::~RolloutProgram() = default;

std::vector<grpc::Service*> RolloutProgram::services() {
  return {admin_.get(), engine_.service(), weights_.service()};
}

absl::Status RolloutProgram::Start(const std::string& address, const std::string& ops) {
  if (host_.flags->controller.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "pass --controller HOST:PORT"},
                     "sluice-rollout needs a controller");
  }
  SLUICE_ASSIGN_OR_RETURN(ranks_, daemon::ReadCollectiveFlags(*host_.flags, address));
  daemon::ControllerLink::Options options{.controller = host_.flags->controller,
                                          .id = host_.flags->id,
                                          .role = rpc::Role::kRollout,
                                          .addresses = {{"grpc", address}, {"ops", ops}},
                                          .labels = {{"pool", host_.flags->pool}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.on_assigned = [this](const registry::v1::HeartbeatResponse& assignments) {
    ApplyAssignments(assignments);
  };
  handlers.on_drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.on_refused = [this](absl::Status why) { host_.stop(std::move(why)); };

  if (!options_.http.empty()) {
    SLUICE_RETURN_IF_ERROR(StartHttp());
    options.addresses["http"] = http_->address();
  }
  // Without it weights still go to other rollouts by calls.
  if (const absl::Status shared = weights_.ShareMemory(address); !shared.ok())
    log::Warning("no_shared_memory", {{"error", shared}});
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  return absl::OkStatus();
}

absl::Status RolloutProgram::StartHttp() {
  if (!options_.http_keys.empty()) {
    SLUICE_ASSIGN_OR_RETURN(http::Keys keys, http::Keys::Load(options_.http_keys));
    keys_ = std::make_unique<http::Keys>(std::move(keys));
  }
  SLUICE_ASSIGN_OR_RETURN(http_, http::Server::Start({.address = options_.http,
                                                      .cert = options_.http_cert,
                                                      .cert_key = options_.http_cert_key},
                                                     {.keys = keys_.get(),
                                                      .guests = &guests_,
                                                      .metrics = http::ApiMetrics(host_.metrics)}));
  log::Info("http_listening", {{"address", http_->address()},
                               {"keys", keys_ != nullptr},
                               {"tls", !options_.http_cert.empty()}});
  return absl::OkStatus();
}

void RolloutProgram::PublishModels(const std::string& id, Job* job) {
  engine_.SetJob(id, job->session);
  weights_.SetRelay(id, job->session->relay(),
                    [session = std::weak_ptr<Session>(job->session)](WeightsCheckDone done) {
                      const std::shared_ptr<Session> held = session.lock();
                      if (held != nullptr) held->CheckWeights(std::move(done));
                      else done(absl::UnavailableError("the job has left this worker"));
                    });
  if (http_ == nullptr) return;

  const auto show = [&](std::shared_ptr<ApiModel> model) {
    job->models.push_back(model->name());
    http_->api().SetModel(std::move(model));
  };

  show(std::make_shared<ApiModel>(job->session));
  for (const auto& [name, dir] : options_.adapters) {
    absl::StatusOr<std::shared_ptr<const Adapter>> adapter =
        Adapter::Read(dir, job->session->model_config());
    if (adapter.ok()) show(std::make_shared<ApiModel>(job->session, name, *std::move(adapter)));
    else
      log::Error("adapter_refused",
                 {{"job_id", job->name}, {"adapter", name}, {"error", adapter.status()}});
  }
}

void RolloutProgram::EndJob(const std::string& id, const Job& job, absl::Duration grace,
                            absl::string_view why) {
  // RemoveModel() fails the calls of the API. After Stop() the session refuses new requests, so
  // RemoveJob() finds all requests of EngineService that are left, and fails them.
  for (const std::string& name : job.models)
    http_->api().RemoveModel(name, absl::UnavailableError(why));
  weights_.SetRelay(id, nullptr, nullptr);
  if (job.session != nullptr) job.session->Stop(grace);
  engine_.RemoveJob(id, absl::UnavailableError(why));
}

absl::Status RolloutProgram::CheckReady() {
  MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("draining");
  if (link_ == nullptr || link_->incarnation() == 0)
    return absl::UnavailableError("not registered with the controller yet");
  for (const auto& [id, job] : jobs_) {
    if (job.session != nullptr)
      SLUICE_RETURN_IF_ERROR(Annotate(job.session->health(), absl::StrCat("job ", job.name)));
  }
  return absl::OkStatus();
}

// Follows the newest list of assignments. It starts sessions for new jobs, ends those of jobs that
// are not listed or not in the phase RUN, and tells a session that its queue has another address.
void RolloutProgram::ApplyAssignments(const registry::v1::HeartbeatResponse& assignments) {
  // Sessions are started and stopped without the lock, since both may take long.
  std::vector<std::pair<std::string, Job>> ended;
  std::vector<const registry::v1::Assignment*> fresh;
  std::set<std::string> kept, held;
  {
    MutexLock lock(&mu_);
    if (draining_) return FollowQueues(assignments);
    for (const registry::v1::Assignment& assignment : assignments.jobs()) {
      if (assignment.phase() == registry::v1::ASSIGNMENT_PHASE_HOLD) held.insert(assignment.job());
      if (assignment.phase() != registry::v1::ASSIGNMENT_PHASE_RUN || assignment.queues_size() == 0)
        continue;
      kept.insert(assignment.job());
      callers_.SetJob(assignment.job(), daemon::CallersOf(assignment));

      const auto it = jobs_.find(assignment.job());
      if (it != jobs_.end() &&
          (it->second.session != nullptr || it->second.queue == assignment.queues(0))) {
        if (it->second.session != nullptr) {
          if (it->second.queue != assignment.queues(0)) {
            it->second.queue = assignment.queues(0);
            it->second.session->MoveQueue(it->second.queue);
          }
          WeightHolders holders = WeightHoldersOf(assignment);
          it->second.session->SetRollouts(std::move(holders.rollouts));
          it->second.session->SetRewards(
              {assignment.rewards().begin(), assignment.rewards().end()});
          it->second.session->SetWeightsSource(holders.trainer);
          it->second.session->SetHasOtherWorkers(HasOtherRollouts(assignment));
        }
        continue;
      }
      if (it != jobs_.end()) {
        ended.emplace_back(it->first, std::move(it->second));
        jobs_.erase(it);
      }
      fresh.push_back(&assignment);
    }

    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (kept.contains(it->first)) {
        ++it;
        continue;
      }
      ended.emplace_back(it->first, std::move(it->second));
      it = jobs_.erase(it);
    }
  }

  for (const auto& [id, job] : ended) {
    EndJob(id, job, held.contains(id) ? kHandOver : absl::ZeroDuration(),
           absl::StrCat("job ", job.name, " has left this worker"));
    if (!kept.contains(id)) callers_.RemoveJob(id);
    link_->RemoveProgress(id);
  }
  ended.clear();
  for (const registry::v1::Assignment* const assignment : fresh) StartJob(*assignment);
}

void RolloutProgram::FollowQueues(const registry::v1::HeartbeatResponse& assignments) {
  for (const registry::v1::Assignment& assignment : assignments.jobs()) {
    const auto it = leaving_.find(assignment.job());
    if (it == leaving_.end() || it->second.session == nullptr || assignment.queues_size() == 0 ||
        it->second.queue == assignment.queues(0))
      continue;
    it->second.queue = assignment.queues(0);
    it->second.session->MoveQueue(it->second.queue);
  }
}

void RolloutProgram::StartJob(const registry::v1::Assignment& assignment) {
  const std::string id = assignment.job();
  Job job{.queue = assignment.queues(0),
          .name = assignment.spec().name(),
          .lines = std::make_shared<log::JobScope>(id, assignment.spec().name()),
          .session = nullptr,
          .models = {}};
  ReportProgress(id, false, {}, "loading", "");
  {
    MutexLock lock(&mu_);
    loading_ = id;
  }
  const auto loads = waits_.Begin({.kind = "STORE",
                                   .id = assignment.spec().model().path().empty()
                                             ? assignment.spec().model().init().config()
                                             : assignment.spec().model().path(),
                                   .cause = absl::StrCat(host_.flags->id, " loads the model")});

  Session::Handlers handlers;
  handlers.serving = [this, id](PolicyVersion version) {
    ReportProgress(id, true, version, "sampling", "");
  };
  handlers.failed = [this, id](absl::Status why) {
    // ABORTED means fenced: a newer process works under this daemon's id. After any other error the
    // job cannot go on here, and the controller decides what happens.
    ReportProgress(id, false, {}, absl::IsAborted(why) ? "fenced" : "failed", StatusText(why));
  };
  handlers.broken = [this](absl::Status why) { host_.stop(std::move(why)); };
  handlers.guests = [this](StepEvents events) { guests_.DeliverEvents(std::move(events)); };

  WeightHolders holders = WeightHoldersOf(assignment);
  auto session =
      Session::Start({.job = id,
                      .job_name = job.name,
                      .worker = host_.flags->id,
                      .incarnation = link_->incarnation(),
                      .queue = job.queue,
                      .weights = holders.trainer,
                      .rollouts = std::move(holders.rollouts),
                      .rewards = {assignment.rewards().begin(), assignment.rewards().end()},
                      .join = JoinC10d,
                      .ranks = ranks_,
                      .cores = options_.cores,
                      .ucx_devices = options_.ucx_devices},
                     assignment.spec(), Metrics(host_.metrics, job.name), std::move(handlers));
  if (session.ok()) {
    job.session = *std::move(session);
    job.session->SetHasOtherWorkers(HasOtherRollouts(assignment));
    PublishModels(id, &job);
  } else {
    log::Error("job_refused", {{"job_id", job.name}, {"error", session.status()}});
    ReportProgress(id, false, {}, "failed", StatusText(session.status()));
  }

  MutexLock lock(&mu_);
  jobs_[id] = std::move(job);
}

void RolloutProgram::ReportProgress(const std::string& job, bool ready, PolicyVersion version,
                                    const std::string& phase, const std::string& cause) {
  registry::v1::Progress progress;
  progress.set_job(job);
  progress.set_incarnation(link_->incarnation());
  progress.set_ready(ready);
  *progress.mutable_version() = rpc::ToProto(version);
  progress.set_phase(phase);
  progress.set_cause(cause);
  link_->SetProgress(progress);
}

void RolloutProgram::EndAllJobs(absl::Duration grace) {
  std::map<std::string, Job> jobs;
  {
    MutexLock lock(&mu_);
    jobs.swap(jobs_);
    leaving_ = jobs;
  }
  for (const auto& [id, job] : jobs) EndJob(id, job, grace, "this server is shutting down");
  MutexLock lock(&mu_);
  leaving_.clear();  // `jobs` still holds the sessions, which are destroyed without the lock.
}

void RolloutProgram::Drain() {
  {
    MutexLock lock(&mu_);
    draining_ = true;
  }
  if (http_ != nullptr) http_->api().Drain();
  if (link_ != nullptr) link_->SetDraining();

  // Calls of the API get the grace time to end. What still runs then ends with an error, for which
  // there is a little more time.
  if (http_ != nullptr && !http_->AwaitIdle(options_.grace)) log::Warning("api_calls_cut_short");

  // Heartbeats go on meanwhile: the controller gives the answers of a daemon that has left to
  // others at once.
  EndAllJobs(options_.grace);
  // After Stop() no assignment can start another session, and until then one may have.
  if (link_ != nullptr) link_->Stop();
  EndAllJobs(absl::ZeroDuration());
  engine_.Shutdown();
  weights_.Shutdown();
  if (http_ == nullptr) return;
  (void)http_->AwaitIdle(kLastAnswers);
  http_->Stop();
}

std::vector<common::v1::WaitEdge> RolloutProgram::Explain(const std::string& job) const {
  std::shared_ptr<Session> session;
  std::vector<common::v1::WaitEdge> loading = waits_.Edges();
  {
    MutexLock lock(&mu_);
    if (loading_ != job) loading.clear();
    const auto it = jobs_.find(job);
    if (it != jobs_.end()) session = it->second.session;
  }
  if (session != nullptr) return session->Explain();
  return loading;
}

}  // namespace sluice::rollout
