#include "services/reward/service.h"

#include <utility>

#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "sluice/reward/v1/reward.grpc.pb.h"

namespace sluice::reward {
namespace {

// Ends a call with the answer, whose texts come from users' programs and may be any bytes.
template <typename Response>
void FinishWith(grpc::ServerUnaryReactor* reactor, absl::StatusOr<Response> answer,
                Response* response) {
  if (answer.ok()) {
    *response = *std::move(answer);
    rpc::MakeTextValid(response);
  }
  reactor->Finish(rpc::ToGrpcStatus(answer.status()));
}

class RewardServiceImpl final : public v1::RewardService::CallbackService {
 public:
  RewardServiceImpl(
      std::function<absl::StatusOr<v1::DescribeResponse>(const std::string&)> describe,
      std::function<void(const std::string&, const std::string&, JobRewards::Reloaded)> reload)
      : describe_(std::move(describe)), reload_(std::move(reload)) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    FinishWith(reactor, describe_(request->call().job().job()), response);
    return reactor;
  }

  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context,
                                   const v1::ReloadRequest* request,
                                   v1::ReloadResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reload_(request->call().job().job(), request->reward(),
            [reactor, response](absl::StatusOr<v1::ReloadResponse> answer) {
              FinishWith(reactor, std::move(answer), response);
            });
    return reactor;
  }

 private:
  const std::function<absl::StatusOr<v1::DescribeResponse>(const std::string&)> describe_;
  const std::function<void(const std::string&, const std::string&, JobRewards::Reloaded)> reload_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRewardService(
    std::function<absl::StatusOr<v1::DescribeResponse>(const std::string& job)> describe,
    std::function<void(const std::string& job, const std::string& reward,
                       JobRewards::Reloaded done)>
        reload) {
  return std::make_unique<RewardServiceImpl>(std::move(describe), std::move(reload));
}

}  // namespace sluice::reward
