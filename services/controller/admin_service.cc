#include "services/controller/admin_service.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/daemon/admin_service.h"
#include "common/meta/backup.h"
#include "common/rpc/convert.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "services/controller/callers.h"
#include "services/controller/translate.h"

namespace sluice::controller {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

// Ids of the jobs that each daemon works for, by its id: those that the person may see.
std::map<std::string, std::vector<std::string>> JobsByDaemon(const Controller& core,
                                                             const Person& person) {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const std::string& id : core.active()) {
    const Job& job = core.jobs().at(id);
    if (!MaySee(person, job)) continue;
    if (!job.assign.queue.empty()) jobs[job.assign.queue].push_back(id);
    for (const Worker& worker : job.assign.workers) jobs[worker.id].push_back(id);
  }
  return jobs;
}

void ToProto(const Daemon& daemon, Instant now, const std::vector<std::string>& jobs,
             admin::v1::Daemon* out) {
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
  out->mutable_jobs()->Add(jobs.begin(), jobs.end());
  out->mutable_jobs()->Add(record.unknown_jobs.begin(), record.unknown_jobs.end());
  out->set_draining(daemon.draining || record.drained);
  out->set_left(daemon.left());
  *out->mutable_silent() = rpc::ToProto(now.mono - daemon.last_heard);
  out->set_lost(!daemon.present());
}

// Sends a copy of the store piece by piece.
class BackupStream : public rpc::WriteStream<admin::v1::BackupResponse> {
 public:
  void SendCopy(std::string copy) {
    copy_ = std::move(copy);
    SendNext();
  }

 private:
  void OnSent() override { SendNext(); }

  void SendNext() {
    if (offset_ == copy_.size()) return End(absl::OkStatus());
    const absl::string_view data = absl::string_view(copy_).substr(offset_, kPieceBytes);
    admin::v1::BackupResponse piece;
    piece.set_offset(offset_);
    piece.set_data(std::string(data));
    piece.set_crc32c(Crc32c(data));
    offset_ += data.size();
    piece.set_end(offset_ == copy_.size());
    Send(std::move(piece));
  }

  // Set once, before the first piece; then used by the thread that sends the next piece.
  std::string copy_;
  size_t offset_ = 0;
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::Daemons(grpc::CallbackServerContext* context,
                                                const admin::v1::DaemonsRequest*,
                                                admin::v1::DaemonsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([person = PersonOf(*context), reactor, response](Controller& core, Instant now) {
    std::map<std::string, std::vector<std::string>> jobs = JobsByDaemon(core, person);
    for (const auto& [id, daemon] : core.fleet().daemons())
      ToProto(daemon, now, jobs[id], response->add_daemons());
    *response->mutable_now() = rpc::ToProto(now.wall);
    rpc::MakeTextValid(response);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const admin::v1::DrainRequest* request,
                                              admin::v1::DrainResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto status = std::make_shared<absl::Status>();
  loop_->Post(
      [request, status](Controller& core, Instant now) {
        *status = core.Drain(now, request->daemon(), request->on());
      },
      [person = PersonOf(*context), reactor, request, status](Controller&) {
        LogAudit(person, request->on() ? "Drain" : "Undrain",
                 {.text = request->daemon(), .kind = "daemon"}, *status);
        reactor->Finish(rpc::ToGrpcStatus(*status));
      });
  return reactor;
}

grpc::ServerWriteReactor<admin::v1::BackupResponse>* AdminService::Backup(
    grpc::CallbackServerContext* context, const admin::v1::BackupRequest*) {
  auto stream = rpc::MakeStream<BackupStream>();
  backups_.Run([this, stream, person = PersonOf(*context)] {
    // One call, so all of it is of the same moment.
    const absl::StatusOr<std::vector<meta::Entry>> entries = store_->List("");
    LogAudit(person, "Backup", {}, entries.status());
    if (entries.ok()) stream->SendCopy(meta::EncodeBackup(*entries));
    else stream->End(entries.status());
  });
  return stream.get();
}

grpc::ServerUnaryReactor* AdminService::Failpoint(grpc::CallbackServerContext* context,
                                                  const admin::v1::FailpointRequest* request,
                                                  admin::v1::FailpointResponse*) {
  return daemon::AnswerFailpoint(*context, *request);
}

}  // namespace sluice::controller
