#include "common/collective/rendezvous_server.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/status.h"
#include "sluice/collective/v1/collective.grpc.pb.h"

namespace sluice {
namespace {

// Far more than a thousand ranks need, each of which sets one value for each of the others.
constexpr size_t kMaxBytes = size_t{64} << 20;

}  // namespace

class RendezvousServer::Impl final : public collective::v1::RendezvousService::CallbackService {
 public:
  explicit Impl(const rpc::CallerTable* callers) : callers_(callers) {}

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context,
                                const collective::v1::SetRequest* request,
                                collective::v1::SetResponse*) override {
    return Answer(context, Set(*context, *request));
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const collective::v1::GetRequest* request,
                                collective::v1::GetResponse* response) override {
    return Answer(context, Get(*context, *request, response));
  }

  std::shared_ptr<LocalRendezvous> AddGroup(const std::string& job, const std::string& group,
                                            std::set<std::string> workers)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto kept = std::make_shared<LocalRendezvous>(kMaxBytes);
    MutexLock lock(&mu_);
    groups_[group] = {job, std::move(workers), kept};
    return kept;
  }
  void RemoveGroup(const std::string& group) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    groups_.erase(group);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }

  // What the group of a call has kept. `Request` is that of Set or Get.
  template <typename Request>
  absl::StatusOr<std::shared_ptr<LocalRendezvous>> Find(const grpc::CallbackServerContext& context,
                                                        const Request& request)
      ABSL_LOCKS_EXCLUDED(mu_) {
    const common::v1::JobRef& caller = request.call().job();
    SLUICE_RETURN_IF_ERROR(rpc::CheckJobRef(context, caller.worker(), caller.incarnation()));
    const rpc::Role role = request.group().empty() ? rpc::Role::kTrainer : rpc::Role::kRollout;
    SLUICE_RETURN_IF_ERROR(
        callers_->Check(caller.job(), caller.worker(), caller.incarnation(), {role}));
    MutexLock lock(&mu_);
    if (request.group().empty()) return FindTrainers(caller);
    const auto found = groups_.find(request.group());
    if (found == groups_.end() || found->second.job != caller.job() ||
        !found->second.workers.contains(caller.worker())) {
      return Error(absl::StatusCode::kNotFound, "GONE",
                   absl::StrCat("there is no group ", request.group(), " with ", caller.worker()));
    }
    return found->second.kept;
  }

  // A call of an earlier incarnation may have passed the check just before the list changed.
  absl::StatusOr<std::shared_ptr<LocalRendezvous>> FindTrainers(const common::v1::JobRef& caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (job_ == caller.job() && incarnation_ == caller.incarnation()) return trainers_;
    if (job_ == caller.job() && incarnation_ > caller.incarnation()) {
      return Error(absl::StatusCode::kAborted, "FENCED",
                   absl::StrCat("incarnation ", caller.incarnation(), " < ", incarnation_));
    }
    job_ = caller.job();
    incarnation_ = caller.incarnation();
    return trainers_ = std::make_shared<LocalRendezvous>(kMaxBytes);
  }

  absl::Status Set(const grpc::CallbackServerContext& context,
                   const collective::v1::SetRequest& request) {
    SLUICE_ASSIGN_OR_RETURN(const auto kept, Find(context, request));
    return kept->Set(request.key(), request.value());
  }

  absl::Status Get(const grpc::CallbackServerContext& context,
                   const collective::v1::GetRequest& request,
                   collective::v1::GetResponse* response) {
    SLUICE_ASSIGN_OR_RETURN(const auto kept, Find(context, request));
    absl::StatusOr<std::string> value = kept->Get(request.key(), absl::ZeroDuration());
    if (!value.ok()) {
      return Error(absl::StatusCode::kNotFound, "NOT_YET",
                   absl::StrCat("no rank has set ", request.key(), " yet"));
    }
    response->set_value(*std::move(value));
    return absl::OkStatus();
  }

  struct Group {
    std::string job;
    std::set<std::string> workers;
    std::shared_ptr<LocalRendezvous> kept;
  };

  const rpc::CallerTable* const callers_;
  Mutex mu_;
  std::string job_ ABSL_GUARDED_BY(mu_);
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  // Of the trainers of `job_`.
  std::shared_ptr<LocalRendezvous> trainers_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<LocalRendezvous>(kMaxBytes);
  std::map<std::string, Group> groups_ ABSL_GUARDED_BY(mu_);  // By name.
};

RendezvousServer::RendezvousServer(const rpc::CallerTable* callers)
    : impl_(std::make_unique<Impl>(callers)) {}
RendezvousServer::~RendezvousServer() = default;
grpc::Service* RendezvousServer::service() { return impl_.get(); }
std::shared_ptr<LocalRendezvous> RendezvousServer::AddGroup(const std::string& job,
                                                            const std::string& group,
                                                            std::set<std::string> workers) {
  return impl_->AddGroup(job, group, std::move(workers));
}
void RendezvousServer::RemoveGroup(const std::string& group) { impl_->RemoveGroup(group); }

}  // namespace sluice
