// The transport `ucx` with faults that only it has: the holder answers calls, and its memory cannot
// be read, or is not what it says. And the memory that holders stage objects in.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/payload.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "common/weights/grpc_transport.h"
#include "common/weights/ucx_memory.h"
#include "common/weights/ucx_stage.h"
#include "sluice/weights/v1/weights.grpc.pb.h"
#include "tests/common/ucx/peer_bytes.h"
#include "tests/common/ucx/peer_process.h"

namespace sluice {
namespace {

// For the devices "lo", also in the peers. Set while there is one thread.
const int kPlacesByTcp = setenv("UCX_TLS", "tcp", /*overwrite=*/1);

constexpr uint64_t kPlaceBytes = 1 << 20;
constexpr HolderLimits kUcxPatient = {.silent = absl::Hours(1), .starved = absl::Hours(1)};

// Answers each Fetch with one header, and leaves the stream open.
class PlaceSender : public weights::v1::WeightsService::WithRawCallbackMethod_Fetch<
                        weights::v1::WeightsService::Service> {
 public:
  weights::v1::FetchHeader header;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext*,
                                                    const grpc::ByteBuffer*) override {
    auto stream = rpc::MakeStream<rpc::WriteStream<grpc::ByteBuffer>>();
    stream->Send(*rpc::EncodeFrame(header, {}));
    return stream.get();
  }
};

// A holder whose calls are served here, and whose memory is that of another process.
class UcxTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartMemory());
    grpc::Service* const services[] = {&sender_};
    server_ = *rpc::Server::Start({}, services);
    channel_ = *rpc::Connect(server_->address(), {rpc::Role::kRollout});
  }
  // Over TCP, so that the process can hang.
  void StartMemory() {
    auto host = UcxHostProcess::Start("lo", /*seed=*/1, kPlaceBytes);
    ASSERT_EQ(host.status(), absl::OkStatus());
    memory_ = *std::move(host);
    sender_.header.set_size(kPlaceBytes);
    sender_.header.mutable_place()->set_worker(memory_.place.worker);
    sender_.header.mutable_place()->set_key(memory_.place.key);
    sender_.header.mutable_place()->set_address(memory_.place.address);
  }
  void TearDown() override { server_->Drain(absl::ZeroDuration()); }

  FetchEnd Fetch(HolderLimits limits = kUcxPatient, rpc::Cancel* cancel = nullptr,
                 bool with_ucx = true) {
    HolderHistory history(limits);
    const std::string id = Sha256(PeerBytes(1, kPlaceBytes));
    WantedObjects wanted(
        {&id, 1},
        [&](const std::string&, absl::string_view) {
          ++taken_;
          return absl::OkStatus();
        },
        [](uint64_t) {});
    GrpcTransport transport(channel_, {.job = "job", .worker = "rollout-0"},
                            with_ucx ? &ucx_ : nullptr);
    return transport.Fetch({.version = {1, 1},
                            .key = "holder",
                            .name = "the holder",
                            .history = &history,
                            .cancel = cancel},
                           &wanted);
  }
  void StopMemory() {
    memory_.process->Signal(SIGSTOP);
    ASSERT_EQ(memory_.process->AwaitStopped(), absl::OkStatus());
  }

  UcxHostProcess memory_;
  PlaceSender sender_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
  UcxMemory ucx_{"lo"};
  int taken_ = 0;
};

TEST_F(UcxTransportTest, AnObjectIsTakenFromTheMemoryOfTheHolder) {
  EXPECT_EQ(Fetch().status, absl::OkStatus());
  EXPECT_EQ(taken_, 1);
}

TEST_F(UcxTransportTest, AHolderWhoseMemoryHangsIsLeftInItsTimeAndTheNextOneIsRead) {
  ASSERT_EQ(Fetch().status, absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(StopMemory());
  const FetchEnd end = Fetch({.silent = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(end.status)) << end.status;
  EXPECT_EQ(end.fault, HolderFault::kSilent);

  ASSERT_NO_FATAL_FAILURE(StartMemory());
  EXPECT_EQ(Fetch().status, absl::OkStatus());
  EXPECT_EQ(taken_, 2);
}

TEST_F(UcxTransportTest, AHolderWhoseMemoryIsGoneIsLeftAtOnce) {
  ASSERT_EQ(Fetch().status, absl::OkStatus());
  memory_.process->Signal(SIGKILL);
  ASSERT_TRUE(memory_.process->Await(integration::kLong).ok());
  for (int turn = 0; turn < 2; ++turn) {
    const FetchEnd end = Fetch();
    EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
    EXPECT_EQ(end.fault, HolderFault::kGone);
  }
  EXPECT_EQ(taken_, 1);
}

TEST_F(UcxTransportTest, ACancelEndsAReadThatWaits) {
  ASSERT_NO_FATAL_FAILURE(StopMemory());
  rpc::Cancel cancel;
  std::thread canceller([&] { cancel.Trigger(); });
  EXPECT_TRUE(absl::IsCancelled(Fetch(kUcxPatient, &cancel).status));
  canceller.join();

  ASSERT_NO_FATAL_FAILURE(StartMemory());
  EXPECT_EQ(Fetch().status, absl::OkStatus()) << "the next one is not cancelled";
}

TEST_F(UcxTransportTest, APlaceOfWhatWasNotAskedForOrOfOtherBytesIsALie) {
  const weights::v1::FetchHeader right = sender_.header;
  for (const char* lie : {"index", "too large", "shorter", "elsewhere"}) {
    SCOPED_TRACE(lie);
    sender_.header = right;
    if (lie == std::string("index")) sender_.header.set_index(1);
    if (lie == std::string("too large")) sender_.header.set_size(UcxStage::kMostBytes + 1);
    if (lie == std::string("shorter")) sender_.header.set_size(kPlaceBytes - 1);
    if (lie == std::string("elsewhere")) {
      sender_.header.mutable_place()->set_address(memory_.place.address + 1);
      sender_.header.set_size(kPlaceBytes - 1);
    }
    const FetchEnd end = Fetch();
    EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
    EXPECT_EQ(end.fault, HolderFault::kLied);
  }
  sender_.header = right;
  const FetchEnd end = Fetch(kUcxPatient, nullptr, /*with_ucx=*/false);
  EXPECT_EQ(end.fault, HolderFault::kLied) << "nobody asked for places: " << end.status;
  EXPECT_EQ(taken_, 0);
}

class UcxStageTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(stage_.Start(), absl::OkStatus()); }
  std::optional<UcxStage::Staged> Stage(uint64_t seed, uint64_t bytes,
                                        absl::Duration now = absl::ZeroDuration()) {
    return stage_.Stage("job", absl::StrCat("id-", seed), PeerBytes(seed, bytes), now);
  }
  static absl::string_view At(const UcxStage::Staged& staged) {
    return {reinterpret_cast<const char*>(staged.place.address), staged.place.bytes};
  }

  UcxStage stage_{"shm"};
};

TEST_F(UcxStageTest, WhoWantsTheSameObjectGetsTheSamePlaceButNotThatOfAnotherJob) {
  const auto one = Stage(1, 1000), again = Stage(1, 1000), two = Stage(2, 1000);
  ASSERT_TRUE(one && again && two);
  EXPECT_EQ(one->place.address, again->place.address);
  EXPECT_NE(one->place.address, two->place.address);
  EXPECT_EQ(At(*one), PeerBytes(1, 1000));
  const auto other = stage_.Stage("other job", "id-1", "other bytes", absl::ZeroDuration());
  EXPECT_NE(other->place.address, one->place.address);
}

TEST_F(UcxStageTest, WhatIsTooLargeIsNotStaged) {
  EXPECT_TRUE(Stage(1, UcxStage::kMostBytes).has_value());
  EXPECT_FALSE(Stage(2, UcxStage::kMostBytes + 1).has_value());
}

TEST_F(UcxStageTest, WhenAllMemoryIsHeldNothingIsStagedUntilSomebodyLetsGo) {
  std::deque<UcxStage::Staged> held;
  for (uint64_t i = 0; i < UcxStage::kMostSegments; ++i)
    held.push_back(*Stage(i, UcxStage::kMostBytes));
  EXPECT_FALSE(Stage(99, 1).has_value());
  held.pop_front();
  EXPECT_TRUE(Stage(99, 1).has_value());
}

TEST_F(UcxStageTest, MemoryThatNobodyHasHeldForAWhileIsUsedAgainBeforeMoreIsTaken) {
  const uint64_t first = Stage(1, UcxStage::kMostBytes)->place.address;
  EXPECT_NE(Stage(2, UcxStage::kMostBytes, UcxStage::kKeep)->place.address, first);
  EXPECT_EQ(Stage(3, UcxStage::kMostBytes, UcxStage::kKeep + absl::Seconds(1))->place.address,
            first);
}

// Holders come and go, and time passes.
TEST_F(UcxStageTest, WhatIsHeldStaysAsItIsWhateverElseIsStaged) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SplitMix64 random(seed);
    absl::Duration now;
    std::map<uint64_t, std::pair<uint64_t, UcxStage::Staged>> held;  // Size and place by id.
    for (int step = 0; step < 300; ++step) {
      now += absl::Milliseconds(random.Below(500));
      const uint64_t id = seed * 1000 + random.Below(60);
      if (random.Below(3) == 0 && !held.empty()) {
        held.erase(held.begin());
        continue;
      }
      const uint64_t bytes = (id * 7919) % (4 << 20) + 1;
      if (auto staged = Stage(id, bytes, now); staged.has_value())
        held.insert_or_assign(id, std::pair(bytes, *std::move(staged)));
    }
    EXPECT_FALSE(held.empty());
    for (const auto& [id, of] : held)
      EXPECT_TRUE(At(of.second) == PeerBytes(id, of.first)) << "seed " << seed << " id " << id;
  }
}

}  // namespace
}  // namespace sluice
