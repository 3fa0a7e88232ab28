// A peer that shares memory is of the same user, and may be broken or hostile all the same: what it
// names is checked before it is read, and reading it cannot crash the reader.
#include "common/weights/shm_transport.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr char kShmJob[] = "00112233445566778899aabbccddeeff";

// Answers one connection as `answer` says, until that is closed.
class FakeSharer {
 public:
  using Answer =
      std::function<weights::v1::ShareResponse(const weights::v1::ShareRequest& request, int* fd)>;
  explicit FakeSharer(Answer answer)
      : listening_(*shm::Socket::Listen(ShmSocketName(address()))), answer_(std::move(answer)) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeSharer() { thread_.join(); }
  static std::string address() { return absl::StrCat("fake-", getpid()); }

 private:
  void Serve() {
    pollfd ready = {listening_.fd(), POLLIN, 0};
    poll(&ready, 1, -1);
    auto socket = listening_.Accept();
    ASSERT_EQ(socket.status(), absl::OkStatus());
    while (true) {
      const auto packet = socket->Receive(absl::Hours(1));
      if (!packet.ok()) return;
      weights::v1::ShareRequest request;
      ASSERT_TRUE(request.ParseFromString(packet->bytes));
      int fd = -1;
      const weights::v1::ShareResponse response = answer_(request, &fd);
      (void)socket->Send(response.SerializeAsString(), fd);
    }
  }

  shm::Socket listening_;
  const Answer answer_;
  std::thread thread_;
};

FetchEnd FetchOne(const std::string& address, const std::string& id, int* taken,
                  const std::string& worker = "rollout-0") {
  HolderHistory history({.silent = absl::Seconds(60)});
  WantedObjects wanted(
      {&id, 1},
      [&](const std::string&, absl::string_view) {
        ++*taken;
        return absl::OkStatus();
      },
      [](uint64_t) {});
  const auto transport =
      ShmTransport::Connect(address, {.job = kShmJob, .worker = worker, .incarnation = 1});
  EXPECT_EQ(transport.status(), absl::OkStatus());
  if (!transport.ok()) return {transport.status(), std::nullopt};
  return (*transport)
      ->Fetch({.version = {1, 1}, .key = "x", .name = "the sharer", .history = &history}, &wanted);
}

// A memfd of these bytes with these seals.
Fd MakeFile(const std::string& bytes, int seals) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

struct Lie {
  const char* name;
  int seals;
  uint64_t segment_bytes, offset, size;
  uint32_t index = 0, segment = 1;
  bool with_fd = true;
};

class HostileSharerTest : public testing::TestWithParam<Lie> {};

TEST_P(HostileSharerTest, WhatItNamesIsRefusedAndNothingIsTaken) {
  const Lie& lie = GetParam();
  const std::string object(5000, 'x'), id = Sha256(object);
  const Fd file = MakeFile(object, lie.seals);
  int taken = 0;
  FetchEnd end;
  {
    FakeSharer sharer([&](const weights::v1::ShareRequest& request, int* fd) {
      weights::v1::ShareResponse response;
      if (request.segment() != 0) {
        response.set_segment_bytes(lie.segment_bytes);
        if (lie.with_fd) *fd = file.get();
        return response;
      }
      weights::v1::SharedObject& named = *response.add_objects();
      named.set_index(lie.index);
      named.set_segment(lie.segment);
      named.set_offset(lie.offset);
      named.set_size(lie.size);
      return response;
    });
    end = FetchOne(FakeSharer::address(), id, &taken);
  }
  EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
  EXPECT_EQ(end.fault, HolderFault::kLied);
  EXPECT_EQ(taken, 0);
}

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW, kConstant = kFixedSize | F_SEAL_WRITE;
INSTANTIATE_TEST_SUITE_P(
    Each, HostileSharerTest,
    testing::Values(Lie{"NoSeals", 0, 5000, 0, 5000},
                    Lie{"CanBeWritten", kFixedSize, 5000, 0, 5000},
                    Lie{"CanShrink", F_SEAL_GROW | F_SEAL_WRITE, 5000, 0, 5000},
                    Lie{"OtherSize", kConstant, 6000, 0, 5000},
                    Lie{"Huge", kConstant, uint64_t{1} << 60, 0, 5000},
                    Lie{"BehindTheEnd", kConstant, 5000, 1, 5000},
                    Lie{"OffsetWraps", kConstant, 5000, ~uint64_t{0} - 10, 5000},
                    Lie{"OtherBytes", kConstant, 5000, 0, 4999},
                    Lie{"NotAskedFor", kConstant, 5000, 0, 5000, 1},
                    Lie{"NoSegment", kConstant, 5000, 0, 5000, 0, 0},
                    Lie{"NoDescriptor", kConstant, 5000, 0, 5000, 0, 1, false}),
    [](const auto& info) { return info.param.name; });

TEST(ShmTransportTest, AnAnswerAboutWhatWasNotAskedForIsALie) {
  int taken = 0;
  FetchEnd end;
  {
    FakeSharer sharer([](const weights::v1::ShareRequest&, int*) {
      weights::v1::ShareResponse response;
      response.add_missing(7);
      return response;
    });
    end = FetchOne(FakeSharer::address(), Sha256("x"), &taken);
  }
  EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
  EXPECT_EQ(end.fault, HolderFault::kLied);
}

TEST(ShmTransportTest, ASegmentThatWasDroppedBeforeItWasMappedIsAskedForAgain) {
  const std::string object(5000, 'x'), id = Sha256(object);
  const Fd file = MakeFile(object, kConstant);
  int taken = 0;
  uint32_t staged = 0;
  FetchEnd end;
  {
    FakeSharer sharer([&](const weights::v1::ShareRequest& request, int* fd) {
      weights::v1::ShareResponse response;
      if (request.segment() == 0) {
        weights::v1::SharedObject& named = *response.add_objects();
        named.set_segment(++staged);
        named.set_size(object.size());
      } else if (request.segment() < 3) {
        response.set_code(static_cast<uint32_t>(absl::StatusCode::kNotFound));
      } else {
        response.set_segment_bytes(object.size());
        *fd = file.get();
      }
      return response;
    });
    end = FetchOne(FakeSharer::address(), id, &taken);
  }
  EXPECT_EQ(end.status, absl::OkStatus());
  EXPECT_EQ(end.fault, std::nullopt);
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(staged, 3u);
}

TEST(ShmTransportTest, NobodyIsOnThisHost) {
  EXPECT_TRUE(absl::IsUnavailable(ShmTransport::Connect("nobody:1", {}).status()));
}

// The list of workers decides, as in calls.
TEST(ShmTransportTest, OneWhoDoesNotWorkForTheJobGetsNothing) {
  rpc::CallerTable callers;
  callers.SetJob(kShmJob,
                 {{"rollout-0", rpc::Role::kRollout, 1}, {"reward-0", rpc::Role::kReward, 1}});
  WeightsServer weights(&callers);
  const auto relay = std::make_shared<WeightRelay>();
  relay->Begin({.version = {1, 1}, .manifest = Sha256("bytes")},
               {{.version = {.version = {1, 1}}, .manifest = Sha256("bytes")}});
  relay->Add(Sha256("bytes"), std::make_shared<const std::string>("bytes"));
  weights.SetRelay(kShmJob, relay, nullptr);
  const std::string address = absl::StrCat("access-", getpid());
  ASSERT_EQ(weights.ShareMemory(address), absl::OkStatus());

  int taken = 0;
  EXPECT_EQ(FetchOne(address, Sha256("bytes"), &taken).status, absl::OkStatus());
  EXPECT_EQ(taken, 1);
  for (const char* stranger : {"stranger", "reward-0", ""}) {
    const FetchEnd end = FetchOne(address, Sha256("bytes"), &taken, stranger);
    EXPECT_FALSE(end.status.ok()) << stranger;
    EXPECT_EQ(end.fault, HolderFault::kGone);
    EXPECT_EQ(taken, 1) << stranger;
  }

  weights.SetRelay(kShmJob, nullptr, nullptr);
  EXPECT_TRUE(absl::IsUnavailable(FetchOne(address, Sha256("bytes"), &taken).status));
  weights.Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(ShmTransport::Connect(address, {}).status()));
}

}  // namespace
}  // namespace sluice
