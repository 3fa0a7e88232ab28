#include "services/queue/program.h"

#include <grpcpp/impl/codegen/service_type.h>

#include "common/base/status.h"
#include "common/daemon/admin_service.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::queue {

absl::StatusOr<std::unique_ptr<daemon::Program>> QueueProgram::Make(const daemon::Host& host) {
  std::optional<DirLock> lock;
  if (!host.flags->data_dir.empty()) {
    SLUICE_RETURN_IF_ERROR(MakeDirs(host.flags->data_dir));
    SLUICE_ASSIGN_OR_RETURN(DirLock taken, DirLock::Take(host.flags->data_dir));
    lock.emplace(std::move(taken));
  }
  return std::unique_ptr<daemon::Program>(new QueueProgram(host, std::move(lock)));
}

QueueProgram::QueueProgram(const daemon::Host& host, std::optional<DirLock> lock)
    : host_(host),
      lock_(std::move(lock)),
      metrics_(std::make_shared<Metrics>(host.metrics)),
      jobs_({.incarnation = host.flags->controller.empty() ? 1 : 0,
             .memory_bytes = host.flags->memory_bytes,
             .added = [metrics = metrics_](const std::shared_ptr<JobRunner>& runner) { metrics->Add(runner); },
             .removed = [metrics = metrics_](const std::shared_ptr<JobRunner>& runner) { metrics->Remove(runner); }}),
      server_(&jobs_, metrics_.get()),
      admin_(daemon::MakeAdminService([this](const std::string& job) { return server_.Explain(job); })) {
  host.metrics->BeforeCollect([metrics = metrics_] { metrics->Update(); });
}

QueueProgram::~QueueProgram() {
  if (link_ != nullptr) link_->Stop();
  server_.Shut();
  jobs_.Shut();
}

std::vector<grpc::Service*> QueueProgram::services() { return {server_.service(), admin_.get()}; }

absl::Status QueueProgram::Start(const std::string& address, const std::string& ops) {
  if (host_.flags->controller.empty()) return absl::OkStatus();  // Jobs come by SetJob; whoever sends it is the controller.
  daemon::ControllerLink::Options options{.controller = host_.flags->controller,
                                          .id = host_.flags->id,
                                          .role = rpc::Role::kQueue,
                                          .addresses = {{"grpc", address}, {"ops", ops}}};
  daemon::ControllerLink::Handlers handlers;
  handlers.registered = [this](int64_t incarnation) { jobs_.SetIncarnation(incarnation); };
  handlers.drain = [this] { host_.stop(absl::OkStatus()); };
  handlers.refused = [this](absl::Status why) { host_.stop(std::move(why)); };
  link_ = std::make_unique<daemon::ControllerLink>(std::move(options), std::move(handlers));
  link_->Start();
  return absl::OkStatus();
}

absl::Status QueueProgram::Ready() {
  if (host_.flags->controller.empty() || (link_ != nullptr && link_->incarnation() > 0)) return absl::OkStatus();
  return absl::UnavailableError("not registered with the controller yet");
}

void QueueProgram::Drain() {
  if (link_ != nullptr) link_->SetDraining();
  jobs_.Shut();
  server_.Shut();
}

}  // namespace sluice::queue
