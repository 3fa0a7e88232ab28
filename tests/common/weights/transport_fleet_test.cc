// Fleets whose rollouts get versions in different ways. What is compared is the weights that each
// rollout ends with, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/shm/socket.h"
#include "common/weights/convert.h"
#include "common/weights/shm_transport.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/common/weights/fleet.h"

namespace sluice {
namespace {

class EachTransportTest : public FleetTest, public testing::WithParamInterface<std::string> {};

TEST_P(EachTransportTest, ARolloutEndsWithTheSameBitsAndAllOfThemCameByThisTransport) {
  ShareTrainersMemory();
  trainer_.OfferUcx("shm");
  Join(0, {.shared_memory = GetParam() == "shm",
           .folder = GetParam() == "file" ? folder_ : "",
           .ucx_devices = GetParam() == "ucx" ? "shm" : ""});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_EQ(rollout(0).counts().last_fault, "");
  EXPECT_EQ(rollout(0).counts().parent, GetParam() == "file" ? kFolderId : kOriginId);
  ASSERT_EQ(rollout(0).counts().bytes.size(), 1u);
  EXPECT_GT(rollout(0).counts().bytes[GetParam()], 160'000u) << "a whole version came";
}

const auto kEachTransport = testing::Values("grpc", "shm", "file"
#ifdef SLUICE_UCX
                                            ,
                                            "ucx"
#endif
);
INSTANTIATE_TEST_SUITE_P(Each, EachTransportTest, kEachTransport,
                         [](const auto& info) { return info.param; });

#ifdef SLUICE_UCX
TEST_F(FleetTest, RolloutsReadFromTheOneBeforeThemOverUcxWhileItStillReads) {
  trainer_.OfferUcx("shm");
  for (size_t i = 0; i < 3; ++i) rollout(i).OfferUcx("shm");
  for (size_t i = 0; i < 3; ++i) Join(i, {.ucx_devices = "shm", .fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).counts().last_fault, "") << i;
    EXPECT_EQ(rollout(i).counts().bytes.size(), 1u) << i;
    EXPECT_GT(rollout(i).counts().bytes["ucx"], 0u) << i;
    EXPECT_EQ(rollout(i).counts().parent, i == 0 ? "" : rollout(i - 1).id()) << i;
  }
}
#endif

TEST_F(FleetTest, ARolloutGoesOnByCallsIfTheTrainerHasNoUcxAndTheReasonIsNamed) {
  trainer_.OfferUcx(absl::FailedPreconditionError("trainer-0 was started without --ucx-devices"));
  Join(0, {.ucx_devices = "shm"});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).counts().last_fault,
              testing::AllOf(testing::HasSubstr("the trainer by ucx gone"),
                             testing::HasSubstr("trainer-0 was started without --ucx-devices")));
  EXPECT_GT(rollout(0).counts().bytes["grpc"], 0u);
}

TEST_F(FleetTest, AMixedFleetEndsWithTheSameBitsAlsoOneThatJoinsWhenTheTrainerIsDead) {
  ShareTrainersMemory();
  Join(0, {.shared_memory = true, .fan_out = FanOut::kChain});
  Join(1, {.fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1});
  KillTrainer();
  Join(2, {.folder = folder_});
  ASSERT_TRUE(rollout(2).Await(last.version));

  const char* const ways[] = {"shm", "grpc", "file"};
  const std::string parents[] = {"", rollout(0).id(), "weights.dir"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).counts().bytes.size(), 1u) << i;
    EXPECT_GT(rollout(i).counts().bytes[ways[i]], 0u) << i;
    EXPECT_EQ(rollout(i).counts().parent, parents[i]) << i;
  }
}

// A trainer that announces a version and does nothing else.
class Announcer : public weights::v1::WeightsService::Service {
 public:
  explicit Announcer(const PublishedVersion& version) : version_(version) {}

 private:
  grpc::Status Watch(grpc::ServerContext* context, const weights::v1::WatchRequest*,
                     grpc::ServerWriter<weights::v1::Latest>* out) override {
    // A beat now and then, so that the end of the connection is noticed.
    for (out->Write(ToProto(version_)); !context->IsCancelled();) {
      Mutex mu;
      MutexLock lock(&mu);
      CondVar().WaitFor(&mu, absl::Milliseconds(20));
    }
    return grpc::Status::CANCELLED;
  }

  const PublishedVersion version_;
};

TEST_F(FleetTest, AVersionThatTheTrainerHasAnnouncedComesFromTheFolderWhenTheTrainerIsGone) {
  const PublishedVersion last = PublishSome({});
  Announcer announcer(last);
  grpc::Service* const services[] = {&announcer};
  const auto server = *rpc::Server::Start({}, services);
  rollout(0).Join(initial_, {.folder = folder_}, server->address(), {});
  ASSERT_TRUE(rollout(0).AwaitDownloads(1)) << "it has heard of the version";
  rollout(0).SetSource("");
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  server->Drain(absl::ZeroDuration());
}

// The first rollout of a host takes a version by calls, and the others take it from its memory
// while it still comes.
TEST_F(FleetTest, OnAHostWithoutTheTrainerTheFirstRolloutOfTheChainSharesWhatItGets) {
  for (const auto& rollout : rollouts_) rollout->ShareMemory();
  for (size_t i = 0; i < 3; ++i) Join(i, {.shared_memory = true, .fan_out = FanOut::kChain});
  const PublishedVersion last = PublishSome({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).counts().last_fault, "") << i;
    EXPECT_EQ(rollout(i).counts().bytes.size(), 1u) << i;
    EXPECT_GT(rollout(i).counts().bytes[i == 0 ? "grpc" : "shm"], 0u) << i;
    EXPECT_EQ(rollout(i).counts().parent, i == 0 ? "" : rollout(0).id()) << i;
  }
}

// Every object in the folder has a wrong bit: each version is whole and right nevertheless.
TEST_F(FleetTest, WhatIsDamagedInTheFolderComesFromTheTrainer) {
  const PublishedVersion last = PublishSome({});
  const std::string objects = folder_ + "/1/objects/";
  const auto names = ListDir(objects);
  ASSERT_EQ(names.status(), absl::OkStatus());
  for (const std::string& name : *names) {
    std::string bytes = *ReadFile(objects + name);
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_EQ(WriteFileAtomic(objects + name, bytes), absl::OkStatus());
  }
  Join(0, {.folder = folder_});
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).counts().last_fault, testing::HasSubstr("weights.dir lied"));
  EXPECT_EQ(rollout(0).counts().bytes.count("file"), 0u);
}

// Somebody holds the socket of the trainer's memory and never answers.
TEST_F(FleetTest, ARolloutWhoseSharedMemoryDoesNotAnswerGoesOnByCalls) {
  const auto mute = shm::Socket::Listen(ShmSocketName(server_->address()));
  ASSERT_EQ(mute.status(), absl::OkStatus());
  Join(0, {.shared_memory = true, .limits = {.silent = absl::Milliseconds(50)}});
  const PublishedVersion last = PublishSome({0});
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_THAT(rollout(0).counts().last_fault, testing::HasSubstr("the trainer by shm silent"));
  EXPECT_EQ(rollout(0).counts().bytes.count("shm"), 0u);
}

}  // namespace
}  // namespace sluice
