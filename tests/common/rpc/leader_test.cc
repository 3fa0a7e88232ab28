// Calls to several controllers, of which one leads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/client.h"
#include "common/rpc/leader_search.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/rpc/stream.h"
#include "sluice/admin/v1/admin.grpc.pb.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::rpc {
namespace {

using admin::v1::FailpointRequest;
using admin::v1::FailpointResponse;
using testing::HasSubstr;

// Serves Failpoint, which is a call that is never repeated after an error.
class FakeLeader : public admin::v1::AdminService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context, const FailpointRequest*,
                                      FailpointResponse*) override {
    ++calls;
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::atomic<int> calls = 0;
};

class LeaderTest : public testing::Test {
 protected:
  LeaderTest() {
    grpc::Service* const services[] = {&leader_};
    leader_server_ = *Server::Start({}, services);
    Server::Options options;
    options.refusal = [this] {
      ++refusals_;
      return ErrorWith(absl::StatusCode::kUnavailable,
                       {.reason = kStandby,
                        .catalogue = "SLUICE-TEST-0001",
                        .retry_after = absl::Minutes(1),
                        .current = named_},
                       "this controller is a standby");
    };
    standby_server_ = *Server::Start(options, {});
    named_ = leader_server_->address();
  }

  absl::Status CallOver(const Channel& channel) {
    FailpointResponse response;
    return Call(channel, FailpointRequest(), &response, {.give_up = absl::Minutes(1)});
  }

  FakeLeader leader_;
  std::atomic<int> refusals_ = 0;
  std::string named_;
  std::unique_ptr<Server> leader_server_, standby_server_;
};

TEST_F(LeaderTest, AStandbyRefusesEveryCallWithItsDetails) {
  const auto channel = Connect(standby_server_->address(), {Role::kController});
  FailpointResponse response;
  const absl::Status refused =
      Call(**channel, FailpointRequest(), &response, {.give_up = absl::Seconds(20)});
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(DetailOf(refused).reason, kStandby);
  EXPECT_EQ(DetailOf(refused).current, leader_server_->address());
  EXPECT_EQ(DetailOf(refused).retry_after, absl::Minutes(1));

  ClientStream watch(**channel, *job::v1::WatchRequest::descriptor());
  job::v1::WatchResponse message;
  EXPECT_FALSE(watch.Read(&message));
  EXPECT_EQ(ReasonOf(watch.Finish()), kStandby);
}

TEST_F(LeaderTest, ACallGoesOnToTheLeaderThatAStandbyNamesThoughItsMethodIsNeverRepeated) {
  const auto channel = ConnectToLeader(standby_server_->address());
  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
  EXPECT_EQ(leader_.calls, 2);
  EXPECT_EQ(refusals_, 1) << "the second call asks the leader at once";
  EXPECT_THAT((*channel)->address(), HasSubstr(absl::StrCat("says ", standby_server_->address())));
}

TEST_F(LeaderTest, ACallTriesAllOfTheListIfTheStandbyKnowsNoLeader) {
  named_.clear();
  const auto channel =
      ConnectToLeader(absl::StrCat(standby_server_->address(), ",", leader_server_->address()));
  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
}

TEST_F(LeaderTest, AStreamThatWasRefusedSendsTheNextCallToTheLeader) {
  const auto channel = ConnectToLeader(standby_server_->address());
  ClientStream watch(**channel, *job::v1::WatchRequest::descriptor());
  job::v1::WatchResponse message;
  EXPECT_FALSE(watch.Read(&message));
  EXPECT_EQ(ReasonOf(watch.Finish()), kStandby);

  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
  EXPECT_EQ(refusals_, 1);
}

TEST_F(LeaderTest, SoDoesAStreamThatIsGivenUpWithoutAskingForItsStatus) {
  const auto channel = ConnectToLeader(standby_server_->address());
  {
    ClientStream watch(**channel, *job::v1::WatchRequest::descriptor());
    job::v1::WatchResponse message;
    EXPECT_FALSE(watch.Read(&message));
  }
  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
  EXPECT_EQ(refusals_, 1);
}

TEST_F(LeaderTest, SoDoesAStreamThatIsGivenUpBecauseAWriteFails) {
  const auto channel = ConnectToLeader(standby_server_->address());
  {
    ClientStream watch(**channel, *job::v1::WatchRequest::descriptor());
    while (watch.Write(job::v1::WatchRequest())) {
    }
  }
  EXPECT_EQ(CallOver(**channel), absl::OkStatus());
  EXPECT_EQ(refusals_, 1);
}

TEST_F(LeaderTest, EachAddressOfTheListIsChecked) {
  EXPECT_EQ(ReasonOf(ConnectToLeader("127.0.0.1:1,nonsense").status()), "BAD_ADDRESS");
  EXPECT_EQ(ReasonOf(ConnectToLeader("127.0.0.1:1,10.0.0.1:1").status()), "NOT_LOOPBACK");
  EXPECT_EQ(ReasonOf(ConnectToLeader("").status()), "BAD_ADDRESS");
}

}  // namespace
}  // namespace sluice::rpc
