#include "services/trainer/rank_link.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/collective.h"
#include "common/collective/rendezvous_server.h"
#include "common/rpc/caller.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "sluice/collective/v1/collective.pb.h"

namespace sluice::trainer {
namespace {

constexpr char kJob[] = "0123456789abcdef0123456789abcdef";
// Enough for a call that is answered, also on a busy machine; one that is refused for now is
// repeated until then.
constexpr absl::Duration kShort = absl::Seconds(2);

// The RendezvousService of rank 0, as the controller lets two trainers and a rollout know it.
class RankLinkTest : public testing::Test {
 protected:
  RankLinkTest() : service_(&callers_) {
    grpc::Service* services[] = {service_.service()};
    absl::StatusOr<std::unique_ptr<rpc::Server>> server = rpc::Server::Start({}, services);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
    List(1);
  }

  void List(int64_t incarnation) {
    callers_.SetJob(kJob, {{"trainer-0", rpc::Role::kTrainer, incarnation},
                           {"trainer-1", rpc::Role::kTrainer, incarnation},
                           {"rollout-0", rpc::Role::kRollout, 1}});
  }

  JobConfig Config(int rank, int64_t incarnation = 1) {
    JobConfig config;
    config.id = kJob;
    config.incarnation = incarnation;
    config.ranks = {.rank = rank,
                    .world = 2,
                    .rendezvous = server_->address(),
                    .host = "127.0.0.1",
                    .timeout = absl::Seconds(60)};
    config.settings.shard = Shard::kOptimizer;
    return config;
  }

  template <typename Request>
  void SetCall(const std::string& worker, int64_t incarnation, Request* request) {
    request->mutable_call()->mutable_job()->set_job(kJob);
    request->mutable_call()->mutable_job()->set_worker(worker);
    request->mutable_call()->mutable_job()->set_incarnation(incarnation);
  }
  absl::Status Set(const std::string& worker, int64_t incarnation, const std::string& key,
                   const std::string& value, absl::Duration give_up = kShort) {
    collective::v1::SetRequest request;
    SetCall(worker, incarnation, &request);
    request.set_key(key);
    request.set_value(value);
    collective::v1::SetResponse response;
    return rpc::Call(*channel_, request, &response, {.give_up = give_up});
  }
  absl::StatusOr<std::string> Get(const std::string& worker, int64_t incarnation,
                                  const std::string& key) {
    collective::v1::GetRequest request;
    SetCall(worker, incarnation, &request);
    request.set_key(key);
    collective::v1::GetResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(*channel_, request, &response, {.give_up = kShort}));
    return response.value();
  }

  rpc::CallerTable callers_;
  RendezvousServer service_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
};

TEST_F(RankLinkTest, RanksMeetAndAddUp) {
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      RankLink link;
      ASSERT_EQ(link.Join(Config(rank), absl::StrCat("trainer-", rank)), absl::OkStatus());
      ASSERT_NE(link.collective(), nullptr);
      ASSERT_NE(link.snapshots(), nullptr);
      EXPECT_FALSE(link.AbortUnlessJoined());
      float value = static_cast<float>(rank + 1);
      EXPECT_EQ(link.collective()->Sum(absl::MakeSpan(&value, 1)), absl::OkStatus());
      EXPECT_EQ(value, 3);
      EXPECT_TRUE(link.snapshots()->Gather("x").ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(RankLinkTest, OneRankMeetsNobody) {
  JobConfig config = Config(0);
  config.ranks.world = 1;
  RankLink link;
  EXPECT_EQ(link.Join(config, "trainer-0"), absl::OkStatus());
  EXPECT_EQ(link.collective(), nullptr);
}

TEST_F(RankLinkTest, AWaitForRanksThatDoNotComeEndsWithAbort) {
  for (const bool unless_joined : {false, true}) {
    RankLink link;
    std::thread aborts([&] {
      if (unless_joined) EXPECT_TRUE(link.AbortUnlessJoined());
      else link.Abort();
    });
    const absl::Status status = link.Join(Config(0), "trainer-0");
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    aborts.join();
  }
}

TEST_F(RankLinkTest, ATrainerWithoutAnAddressForOthersSaysWhichFlagItLacks) {
  JobConfig config = Config(1);
  config.ranks.host.clear();
  RankLink link;
  const absl::Status status = link.Join(config, "trainer-1");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(DetailOf(status).hint.find("--collective-host"), std::string::npos) << status;
}

TEST_F(RankLinkTest, OnlyTheJobsTrainersUseTheRendezvous) {
  EXPECT_EQ(Set("trainer-1", 1, "k", "v"), absl::OkStatus());
  EXPECT_EQ(*Get("trainer-0", 1, "k"), "v");
  EXPECT_EQ(ReasonOf(Get("trainer-0", 1, "other").status()), "NOT_YET");
  EXPECT_EQ(ReasonOf(Set("rollout-0", 1, "k", "w")), "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(Set("trainer-9", 1, "k", "w")), "NOT_LISTED");
  EXPECT_EQ(*Get("trainer-0", 1, "k"), "v");
}

TEST_F(RankLinkTest, ANewGroupFindsNothingOfTheLastOne) {
  EXPECT_EQ(Set("trainer-1", 1, "k", "v"), absl::OkStatus());
  List(2);
  EXPECT_EQ(ReasonOf(Get("trainer-0", 2, "k").status()), "NOT_YET");
  EXPECT_EQ(ReasonOf(Set("trainer-1", 1, "k", "late")), "FENCED");
  EXPECT_EQ(ReasonOf(Get("trainer-0", 2, "k").status()), "NOT_YET");
}

TEST_F(RankLinkTest, AValueReplacesTheFormerOneAndAllTogetherAreBounded) {
  const std::string big(8 << 20, 'x');
  constexpr absl::Duration kLong = absl::Minutes(1);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Set("trainer-0", 1, "same", big, kLong), absl::OkStatus());
  absl::Status status;
  for (int i = 0; status.ok() && i < 20; ++i)
    status = Set("trainer-0", 1, absl::StrCat("key", i), big, kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace sluice::trainer
