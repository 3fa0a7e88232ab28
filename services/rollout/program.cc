#include "services/rollout/program.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/daemon/admin_service.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "grpcpp/impl/service_type.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::rollout {
namespace {
constexpr char kGraceFlag[] = "--drain-grace";
constexpr absl::Duration kGrace = absl::Seconds(3);
}  // namespace

std::vector<daemon::About::Flag> RolloutProgram::Flags() {
  return {{kGraceFlag, absl::StrCat("time that running answers get to end on SIGTERM; their rest goes on elsewhere; default ", absl::FormatDuration(kGrace)),
           "SLUICE_DRAIN_GRACE"}};
}

absl::StatusOr<std::unique_ptr<daemon::Program>> RolloutProgram::Make(const daemon::Host& host) {
  absl::Duration grace = kGrace;
  const std::string given = host.flags->Own(kGraceFlag);
  if (!given.empty() && (!absl::ParseDuration(given, &grace) || grace <= absl::ZeroDuration())) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "give a duration above 0, as 500ms or 30s"}, absl::StrCat(kGraceFlag, " ", given));
  }
  return std::make_unique<RolloutProgram>(host, grace);
}

RolloutProgram::RolloutProgram(const daemon::Host& host, absl::Duration grace)
    : host_(host),
      grace_(grace),
      waits_(host.flags->id),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return Explain(job); })),
      engine_(MakeEngineService([this] { return AnySession(); })) {}

RolloutProgram::~RolloutProgram() = default;

std::vector<grpc::Service*> RolloutProgram::services() { return {admin_.get(), engine_.get()}; }

absl::Status RolloutProgram::Start(const std::string& address, const std::string& ops) {
  if (host_.flags->controller.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "pass --controller HOST:PORT"}, "sluice-rollout needs a controller");
  }
  daemon::ControllerLink::Options options{.controller = host_.flags->controller,
                                          .id = host_.flags->id,
                                          .role = rpc::Role::kRollout,
                                          .addresses = {{"grpc", address}, {"ops", ops}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.assigned = [this](const registry::v1::HeartbeatResponse& level) { Assigned(level); };
  handlers.drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.refused = [this](absl::Status why) { host_.stop(std::move(why)); };
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  return absl::OkStatus();
}

absl::Status RolloutProgram::Ready() {
  MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("draining");
  return link_ != nullptr && link_->incarnation() > 0 ? absl::OkStatus()
                                                      : absl::UnavailableError("not registered with the controller yet");
}

// The newest list of assignments: starts what is new, ends what is gone, held or stopped, starts anew what moved to another queue.
void RolloutProgram::Assigned(const registry::v1::HeartbeatResponse& level) {
  std::vector<std::pair<std::string, std::shared_ptr<Session>>> ended;  // Stopped without the lock.
  std::vector<const registry::v1::Assignment*> fresh;
  {
    MutexLock lock(&mu_);
    if (draining_) return;
    std::set<std::string> kept;
    for (const registry::v1::Assignment& assignment : level.jobs()) {
      if (assignment.phase() != registry::v1::ASSIGNMENT_PHASE_RUN || assignment.queues_size() == 0) continue;
      kept.insert(assignment.job());
      const auto it = jobs_.find(assignment.job());
      if (it != jobs_.end() && it->second.queue == assignment.queues(0)) {
        if (it->second.session != nullptr) it->second.session->SetWeightsSource(assignment.weights_size() > 0 ? assignment.weights(0) : "");
        continue;
      }
      if (it != jobs_.end()) {
        ended.emplace_back(it->first, std::move(it->second.session));
        jobs_.erase(it);
      }
      fresh.push_back(&assignment);
    }
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (kept.contains(it->first)) {
        ++it;
        continue;
      }
      ended.emplace_back(it->first, std::move(it->second.session));
      it = jobs_.erase(it);
    }
  }
  for (auto& [job, session] : ended) {
    if (session != nullptr) session->Stop(absl::ZeroDuration());
    link_->RemoveProgress(job);
  }
  for (const registry::v1::Assignment* const assignment : fresh) StartJob(*assignment);
}

void RolloutProgram::StartJob(const registry::v1::Assignment& assignment) {
  const std::string id = assignment.job();
  Job job{.queue = assignment.queues(0), .name = assignment.spec().name(), .session = nullptr};
  Tell(id, false, {}, "loading", "");
  {
    MutexLock lock(&mu_);
    loading_ = id;
  }
  const auto loads = waits_.Begin({.kind = "STORE", .id = assignment.spec().model().path().empty() ? assignment.spec().model().init().config() : assignment.spec().model().path(), .cause = absl::StrCat(host_.flags->id, " loads the model")});
  Session::Handlers handlers;
  handlers.serving = [this, id](PolicyVersion version) { Tell(id, true, version, "sampling", ""); };
  handlers.failed = [this, id](absl::Status why) {
    // Fenced: another process works under this id. Else the job cannot go on here; the controller decides.
    Tell(id, false, {}, absl::IsAborted(why) ? "fenced" : "failed", StatusText(why));
  };
  handlers.broken = [this](absl::Status why) { host_.stop(std::move(why)); };
  auto session = Session::Start({.job = id,
                                 .job_name = job.name,
                                 .worker = host_.flags->id,
                                 .incarnation = link_->incarnation(),
                                 .queue = job.queue,
                                 .weights = assignment.weights_size() > 0 ? assignment.weights(0) : "",
                                 .threads = host_.flags->threads > 0 ? host_.flags->threads
                                                                     : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))},
                                assignment.spec(), Metrics(host_.metrics, job.name), std::move(handlers));
  if (session.ok()) {
    job.session = *std::move(session);
  } else {
    log::Error("job_refused", {{"job_id", job.name}, {"error", session.status()}});
    Tell(id, false, {}, "failed", StatusText(session.status()));
  }
  MutexLock lock(&mu_);
  jobs_[id] = std::move(job);
}

void RolloutProgram::Tell(const std::string& job, bool ready, PolicyVersion version, const std::string& phase, const std::string& cause) {
  registry::v1::Progress progress;
  progress.set_job(job);
  progress.set_incarnation(link_->incarnation());
  progress.set_ready(ready);
  *progress.mutable_version() = rpc::ToProto(version);
  progress.set_phase(phase);
  progress.set_cause(cause);
  link_->SetProgress(progress);
}

void RolloutProgram::Drain() {
  {
    MutexLock lock(&mu_);
    draining_ = true;
  }
  if (link_ != nullptr) {
    link_->SetDraining();
    link_->Stop();  // No assignment comes from here on.
  }
  std::map<std::string, Job> jobs;
  {
    MutexLock lock(&mu_);
    jobs.swap(jobs_);
  }
  for (auto& [id, job] : jobs) {
    if (job.session != nullptr) job.session->Stop(grace_);
  }
}

std::shared_ptr<Session> RolloutProgram::AnySession() const {
  MutexLock lock(&mu_);
  for (const auto& [id, job] : jobs_) {
    if (job.session != nullptr) return job.session;
  }
  return nullptr;
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
