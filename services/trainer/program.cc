#include "services/trainer/program.h"

#include <grpcpp/impl/codegen/service_type.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/collective/c10d_collective.h"
#include "common/daemon/admin_service.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/cores.h"
#include "common/daemon/ucx.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/convert.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/service.h"
#include "services/trainer/core/trainer.h"
#include "services/trainer/following_job.h"
#include "services/trainer/job.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::trainer {

std::vector<daemon::About::Flag> TrainerFlags() {
  std::vector<daemon::About::Flag> flags = daemon::CollectiveFlags();
  flags.insert(flags.begin(), daemon::CoresFlag());
  flags.push_back(daemon::UcxFlag());
  return flags;
}

absl::StatusOr<std::unique_ptr<daemon::Program>> TrainerProgram::Make(const daemon::Host& host) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<CoreShare> cores, daemon::OpenCores(*host.flags));
  SLUICE_RETURN_IF_ERROR(daemon::CheckUcxFlag(*host.flags));
  return std::make_unique<TrainerProgram>(host, std::move(cores));
}

TrainerProgram::TrainerProgram(const daemon::Host& host, std::shared_ptr<CoreShare> cores)
    : host_(host),
      cores_(std::move(cores)),
      rendezvous_(&callers_),
      weights_(std::make_unique<WeightsServer>(&callers_)),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return Explain(job); })) {
  weights_->OfferUcx(daemon::UcxDevices(*host.flags));
  SetComputeThreads([cores = cores_] { return cores->threads(); });
  metrics::AddDiskMetrics(host.metrics, "checkpoint", [dir = checkpoint_dir_] {
    MutexLock lock(&dir->mu);
    return dir->path;
  });
}

TrainerProgram::~TrainerProgram() = default;

std::vector<grpc::Service*> TrainerProgram::services() {
  return {weights_->service(), rendezvous_.service(), admin_.get()};
}

absl::Status TrainerProgram::Start(const std::string& address, const std::string& ops) {
  if (host_.flags->controller.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "pass --controller HOST:PORT"},
                     "sluice-trainer needs a controller");
  }
  SLUICE_ASSIGN_OR_RETURN(ranks_, daemon::ReadCollectiveFlags(*host_.flags, address));
  if (!ranks_.host.empty()) {
    weights_->SetBroadcasts(std::make_unique<BroadcastServer>(
        BroadcastServer::Options{.join = JoinC10d, .host = ranks_.host, .ports = ranks_.ports},
        &rendezvous_));
  }
  daemon::ControllerLink::Options options{.controller = host_.flags->controller,
                                          .id = host_.flags->id,
                                          .role = rpc::Role::kTrainer,
                                          .addresses = {{"grpc", address}, {"ops", ops}},
                                          .labels = {{"pool", host_.flags->pool}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.on_assigned = [this](const registry::v1::HeartbeatResponse& response) {
    OnAssignments(response);
  };
  handlers.on_drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.on_refused = [this](absl::Status why) { host_.stop(std::move(why)); };
  // Without it weights still go to the rollouts by calls.
  if (const absl::Status shared = weights_->ShareMemory(address); !shared.ok())
    log::Warning("no_shared_memory", {{"error", shared}});
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  return absl::OkStatus();
}

absl::Status TrainerProgram::CheckReady() {
  MutexLock lock(&mu_);
  if (draining_) return absl::UnavailableError("the trainer is draining");
  return link_ != nullptr && link_->incarnation() > 0
             ? absl::OkStatus()
             : absl::UnavailableError("the trainer has not registered with the controller yet");
}

// A trainer works for one job, which is the first one of the list.
void TrainerProgram::OnAssignments(const registry::v1::HeartbeatResponse& response) {
  for (const registry::v1::Assignment& assignment : response.jobs())
    callers_.SetJob(assignment.job(), daemon::CallersOf(assignment));
  FollowAssignment(response.jobs_size() == 0 ? nullptr : &response.jobs(0));
}

void TrainerProgram::FollowAssignment(const registry::v1::Assignment* assignment) {
  std::shared_ptr<AssignedJob> current;
  bool draining = false;
  {
    MutexLock lock(&mu_);
    current = job_;
    draining = draining_;
  }

  const bool same = current != nullptr && assignment != nullptr &&
                    current->config().id == assignment->job() &&
                    current->config().incarnation == assignment->incarnation();
  const bool runs =
      assignment != nullptr && assignment->phase() == registry::v1::ASSIGNMENT_PHASE_RUN;

  // A job that drains needs its queue too, for its last checkpoint.
  if (same && assignment->queues_size() > 0) current->SetQueue(assignment->queues(0));
  if (draining) {
    // The controller has given the job to another trainer, or has ended it, before this one had
    // left: its last checkpoint would wait for a queue that does not list it any more. A rank whose
    // group has ended would wait for the others.
    const bool keeps = same && (runs || assignment->checkpoint() ||
                                assignment->phase() == registry::v1::ASSIGNMENT_PHASE_HOLD);
    if (current != nullptr && !keeps) current->Leave(false);
    return;
  }
  if (same && runs) return current->SetRollouts(RolloutsOf(*assignment));
  if (same) {
    // STOP or HOLD: the job leaves. Its phase `left` then removes its progress.
    current->Leave(assignment->checkpoint() ||
                   assignment->phase() == registry::v1::ASSIGNMENT_PHASE_HOLD);
    return;
  }

  if (current != nullptr) {
    const std::string id = current->config().id;
    current->Leave(false);
    {
      MutexLock lock(&mu_);
      job_.reset();
    }
    current.reset();  // Waits for its threads.
    SetCheckpointDir("");
    if (assignment == nullptr || assignment->job() != id) {
      link_->RemoveProgress(id);
      callers_.RemoveJob(id);
    }
  }
  if (runs) StartJob(*assignment);
}

void TrainerProgram::StartJob(const registry::v1::Assignment& assignment) {
  const std::string id = assignment.job();
  lines_.emplace(id, assignment.spec().name());
  absl::StatusOr<JobConfig> config = ConfigOf(assignment);
  if (config.ok() && !config->broadcast.empty() && ranks_.host.empty())
    config = NoCollectiveHostError(host_.flags->id, "weights.broadcast is " + config->broadcast);
  const int64_t incarnation = assignment.incarnation();
  if (!config.ok()) {
    log::Error("job_refused", {{"job_id", assignment.spec().name()}, {"error", config.status()}});
    return ReportStanding(id, incarnation,
                          {false, {incarnation, 0}, "failed", StatusText(config.status())});
  }
  log::Info("job_started", {{"job_id", config->name}, {"incarnation", incarnation}});

  config->ranks.host = ranks_.host;
  config->ranks.ports = ranks_.ports;
  const auto on_standing = [this, id, incarnation](const JobStanding& standing) {
    ReportStanding(id, incarnation, standing);
  };
  if (config->ranks.rank > 0) {
    auto job = std::make_shared<FollowingJob>(*std::move(config), host_.flags->id, cores_.get(),
                                              on_standing);
    MutexLock lock(&mu_);
    job_ = std::move(job);
    return;
  }

  SetCheckpointDir(config->checkpoint_dir);
  TrainingJob::Hooks hooks;
  hooks.on_standing = on_standing;
  hooks.on_step = [this](const job::v1::StepReport& report) { link_->ReportStep(report); };
  hooks.on_event = [this](common::v1::Event event) { link_->RaiseEvent(std::move(event)); };
  auto job = std::make_shared<TrainingJob>(*std::move(config), host_.flags->id, cores_.get(),
                                           weights_.get(), host_.metrics, std::move(hooks));
  MutexLock lock(&mu_);
  job_ = std::move(job);
}

void TrainerProgram::SetCheckpointDir(const std::string& path) {
  MutexLock lock(&checkpoint_dir_->mu);
  checkpoint_dir_->path = path;
}

void TrainerProgram::ReportStanding(const std::string& job, int64_t incarnation,
                                    const JobStanding& standing) {
  if (standing.phase == "left" || standing.phase == "fenced") return link_->RemoveProgress(job);
  registry::v1::Progress progress;
  progress.set_job(job);
  progress.set_incarnation(incarnation);
  progress.set_ready(standing.ready);
  *progress.mutable_version() = rpc::ToProto(standing.version);
  progress.set_step(standing.version.number);
  progress.set_phase(standing.phase);
  progress.set_cause(standing.cause);
  if (const EvalTotals& evaluated = standing.evaluated; evaluated.versions > 0) {
    job::v1::EvalSummary& summary = *progress.mutable_eval();
    summary.set_versions(evaluated.versions);
    summary.set_first(evaluated.first);
    summary.set_last(evaluated.last);
    summary.set_best(evaluated.best);
    summary.set_best_version(evaluated.best_version);
    summary.set_best_checkpoint(evaluated.best_checkpoint);
  }
  link_->SetProgress(progress);
}

void TrainerProgram::Drain() {
  std::shared_ptr<AssignedJob> job;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    job = job_;
  }
  if (link_ != nullptr) link_->SetDraining();
  if (job != nullptr) {
    job->Leave(/*checkpoint=*/true);
    job->Wait();
  }
  if (link_ != nullptr) {
    link_->Flush(absl::Seconds(2));
    link_->Stop();
  }
  {
    MutexLock lock(&mu_);
    job_.reset();
  }
  job.reset();
  weights_->Shutdown();
}

std::vector<common::v1::WaitEdge> TrainerProgram::Explain(const std::string& job) const {
  std::shared_ptr<AssignedJob> current;
  {
    MutexLock lock(&mu_);
    current = job_;
  }
  if (current == nullptr || current->config().id != job) return {};
  return current->Explain();
}

}  // namespace sluice::trainer
