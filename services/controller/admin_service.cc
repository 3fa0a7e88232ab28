#include "services/controller/admin_service.h"

#include <memory>

#include "common/base/id.h"
#include "common/daemon/admin_service.h"
#include "common/rpc/convert.h"
#include "common/rpc/text.h"
#include "services/controller/translate.h"

namespace sluice::controller {
namespace {

void ToProto(const Daemon& daemon, Instant now, const Controller& core, admin::v1::Daemon* out) {
  const DaemonRecord& record = daemon.record;
  out->set_daemon(record.id);
  out->set_role(controller::ToProto(record.role));
  out->set_incarnation(record.incarnation);
  out->set_build(record.build);
  out->mutable_addresses()->insert(record.addresses.begin(), record.addresses.end());
  out->mutable_labels()->insert(record.labels.begin(), record.labels.end());
  if (const auto capacity = FromHex(record.capacity); capacity.ok())
    out->mutable_capacity()->ParseFromString(*capacity);
  out->mutable_load()->insert(daemon.load.begin(), daemon.load.end());
  for (const auto& [id, job] : core.jobs()) {
    const bool works = job.assign.Find(record.id) != nullptr ||
                       (job.assign.queue == record.id && job.record.stage != Stage::kOver);
    if (works) out->add_jobs(id);
  }
  out->set_draining(daemon.draining);
  *out->mutable_silent() = rpc::ToProto(now.mono - daemon.last_heard);
  out->set_lost(!daemon.present());
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Daemons(grpc::CallbackServerContext* context,
                                                const admin::v1::DaemonsRequest*,
                                                admin::v1::DaemonsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([reactor, response](Controller& core, Instant now) {
    for (const auto& [id, daemon] : core.fleet().daemons())
      ToProto(daemon, now, core, response->add_daemons());
    *response->mutable_now() = rpc::ToProto(now.wall);
    rpc::MakeTextValid(response);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Failpoint(grpc::CallbackServerContext*,
                                                  const admin::v1::FailpointRequest* request,
                                                  admin::v1::FailpointResponse*) {
  return daemon::AnswerFailpoint(*request);
}

}  // namespace sluice::controller
