#include "services/trainer/rendezvous_server.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/status.h"
#include "sluice/collective/v1/collective.grpc.pb.h"

namespace sluice::trainer {
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

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }

  absl::Status Check(const grpc::CallbackServerContext& context,
                     const common::v1::JobRef& caller) const {
    SLUICE_RETURN_IF_ERROR(rpc::CheckJobRef(context, caller.worker(), caller.incarnation()));
    return callers_->Check(caller.job(), caller.worker(), caller.incarnation(),
                           {rpc::Role::kTrainer});
  }

  absl::Status Set(const grpc::CallbackServerContext& context,
                   const collective::v1::SetRequest& request) ABSL_LOCKS_EXCLUDED(mu_) {
    SLUICE_RETURN_IF_ERROR(Check(context, request.call().job()));
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(Begin(request.call().job()));
    const auto former = values_.find(request.key());
    const size_t others =
        bytes_ - (former == values_.end() ? 0 : former->first.size() + former->second.size());
    const size_t bytes = request.key().size() + request.value().size();
    if (bytes > kMaxBytes - others) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the ranks have left ", others, " bytes here, and the limit is ", kMaxBytes));
    }
    bytes_ = others + bytes;
    values_[request.key()] = request.value();
    return absl::OkStatus();
  }

  absl::Status Get(const grpc::CallbackServerContext& context,
                   const collective::v1::GetRequest& request, collective::v1::GetResponse* response)
      ABSL_LOCKS_EXCLUDED(mu_) {
    SLUICE_RETURN_IF_ERROR(Check(context, request.call().job()));
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(Begin(request.call().job()));
    const auto found = values_.find(request.key());
    if (found == values_.end()) {
      return Error(absl::StatusCode::kNotFound, "NOT_YET",
                   absl::StrCat("no rank has set ", request.key(), " yet"));
    }
    response->set_value(found->second);
    return absl::OkStatus();
  }

  // A call of an earlier incarnation may have passed Check() just before the list changed.
  absl::Status Begin(const common::v1::JobRef& caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (job_ == caller.job() && incarnation_ == caller.incarnation()) return absl::OkStatus();
    if (job_ == caller.job() && incarnation_ > caller.incarnation()) {
      return Error(absl::StatusCode::kAborted, "FENCED",
                   absl::StrCat("incarnation ", caller.incarnation(), " < ", incarnation_));
    }
    job_ = caller.job();
    incarnation_ = caller.incarnation();
    values_.clear();
    bytes_ = 0;
    return absl::OkStatus();
  }

  const rpc::CallerTable* const callers_;
  Mutex mu_;
  std::string job_ ABSL_GUARDED_BY(mu_);
  int64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

RendezvousServer::RendezvousServer(const rpc::CallerTable* callers)
    : impl_(std::make_unique<Impl>(callers)) {}
RendezvousServer::~RendezvousServer() = default;
grpc::Service* RendezvousServer::service() { return impl_.get(); }

}  // namespace sluice::trainer
