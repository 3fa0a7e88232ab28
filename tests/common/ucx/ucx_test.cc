// Memory of real processes is read over UCX: through shared memory, and by UCX's emulation over TCP
// on loopback, which only tests use.
#include "common/ucx/ucx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "tests/common/ucx/peer_bytes.h"
#include "tests/common/ucx/peer_process.h"

namespace sluice {
namespace {

// For the devices "lo", also in the peers. Set while there is one thread.
const int kTcp = setenv("UCX_TLS", "tcp", /*overwrite=*/1);

constexpr uint64_t kBytes = 8 << 20;

absl::Duration In(absl::Duration time) { return Clock::Real()->Monotonic() + time; }

class UcxTest : public testing::TestWithParam<std::string> {
 protected:
  void StartHost(uint64_t seed = 1) {
    auto host = UcxHostProcess::Start(GetParam(), seed, kBytes);
    ASSERT_EQ(host.status(), absl::OkStatus());
    host_ = *std::move(host);
  }
  void Connect() {
    auto reader = UcxReader::Connect(GetParam(), host_.place.worker, kBytes);
    ASSERT_EQ(reader.status(), absl::OkStatus());
    reader_ = *std::move(reader);
  }
  absl::StatusOr<absl::string_view> ReadAll(absl::Duration within = integration::kLong) {
    return reader_->Read(host_.place, In(within));
  }
  void Stop() {
    host_.process->Signal(SIGSTOP);
    ASSERT_EQ(host_.process->AwaitStopped(), absl::OkStatus());
  }

  UcxHostProcess host_;
  std::unique_ptr<UcxReader> reader_;
};

TEST_P(UcxTest, AnyPartOfTheMemoryIsReadAsItIs) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string bytes = PeerBytes(1, kBytes);
  EXPECT_EQ(*ReadAll(), bytes);

  SplitMix64 random(7);
  for (int i = 0; i < 200; ++i) {
    // Most are small.
    const uint64_t size = 1 + random.Below(uint64_t{1} << (1 + random.Below(22)));
    const uint64_t at = random.Below(kBytes - size + 1);
    UcxPlace part = host_.place;
    part.address += at;
    part.bytes = size;
    const auto read = reader_->Read(part, In(integration::kLong));
    ASSERT_EQ(read.status(), absl::OkStatus());
    ASSERT_TRUE(*read == absl::string_view(bytes).substr(at, size)) << size << " at " << at;
  }
}

TEST_P(UcxTest, AReaderReadsFromTheHostThatItIsConnectedToAndNotMoreThanItHasRoomFor) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  ASSERT_NO_FATAL_FAILURE(Connect());
  UcxPlace place = host_.place;
  place.bytes = kBytes + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(reader_->Read(place, In(integration::kLong)).status()));
  place = host_.place;
  place.worker += "x";
  EXPECT_TRUE(absl::IsInvalidArgument(reader_->Read(place, In(integration::kLong)).status()));
}

TEST_P(UcxTest, AnInterruptedReaderReadsNothingAnyMore) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  ASSERT_NO_FATAL_FAILURE(Connect());
  reader_->Interrupt();
  EXPECT_TRUE(absl::IsCancelled(ReadAll().status()));
}

TEST_P(UcxTest, AHostThatIsGoneIsNotWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  host_.process->Signal(SIGKILL);
  ASSERT_TRUE(host_.process->Await(integration::kLong).ok());
  auto reader = UcxReader::Connect(GetParam(), host_.place.worker, kBytes);
  absl::Status status = reader.status();
  if (reader.ok()) status = (*reader)->Read(host_.place, In(integration::kLong)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

const auto DevicesName = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Each, UcxTest, testing::Values("lo", "shm"), DevicesName);

// Reading needs nothing of the host's process.
class UcxInSharedMemoryTest : public UcxTest {};

TEST_P(UcxInSharedMemoryTest, AHostServesOnWhenReadersAreKilledWhileTheyRead) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  for (int i = 0; i < 8; ++i) {
    auto reader = StartUcxReader(GetParam(), host_.place);
    ASSERT_EQ(reader.status(), absl::OkStatus());
    for (int line = 0; line <= i; ++line)
      ASSERT_EQ((*reader)->ReadLine(integration::kLong).status(), absl::OkStatus());
    (*reader)->Signal(SIGKILL);
    EXPECT_EQ((*reader)->Await(integration::kLong).value_or(0), -SIGKILL);
  }
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(*ReadAll(), PeerBytes(1, kBytes));
  EXPECT_TRUE(host_.process->running());
}

TEST_P(UcxInSharedMemoryTest, WhatAHostThatHangsOrIsDeadHasSharedIsReadAsItIs) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_EQ(ReadAll().status(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Stop());
  EXPECT_EQ(*ReadAll(), PeerBytes(1, kBytes));
  host_.process->Signal(SIGKILL);
  ASSERT_TRUE(host_.process->Await(integration::kLong).ok());
  EXPECT_EQ(*ReadAll(), PeerBytes(1, kBytes));
}

INSTANTIATE_TEST_SUITE_P(Each, UcxInSharedMemoryTest, testing::Values("shm"), DevicesName);

// Here a thread of the host answers.
class UcxOverTcpTest : public UcxTest {};

TEST_P(UcxOverTcpTest, AReadEndsWhenTheHostIsKilled) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    ASSERT_NO_FATAL_FAILURE(StartHost(seed));
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_EQ(ReadAll().status(), absl::OkStatus());
    std::thread killer([&] { host_.process->Signal(SIGKILL); });
    absl::Status status;
    while (status.ok()) status = ReadAll().status();
    killer.join();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    reader_.reset();
  }
}

TEST_P(UcxOverTcpTest, AReadFromAHostThatHangsEndsAtItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  for (const bool connected : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    if (connected) {
      ASSERT_EQ(ReadAll().status(), absl::OkStatus());
      ASSERT_NO_FATAL_FAILURE(Stop());
    }
    EXPECT_TRUE(absl::IsDeadlineExceeded(ReadAll(absl::Milliseconds(50)).status()));
    reader_.reset();
  }
}

TEST_P(UcxOverTcpTest, AnInterruptEndsAReadThatWaits) {
  ASSERT_NO_FATAL_FAILURE(StartHost());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_NO_FATAL_FAILURE(Stop());
  std::thread interrupter([&] { reader_->Interrupt(); });
  EXPECT_TRUE(absl::IsCancelled(ReadAll(absl::Hours(1)).status()));
  interrupter.join();
}

INSTANTIATE_TEST_SUITE_P(Each, UcxOverTcpTest, testing::Values("lo"), DevicesName);

TEST(UcxDevicesTest, DevicesThatWorkAreToldFromThoseThatDoNot) {
  EXPECT_EQ(TryUcx("lo"), absl::OkStatus()) << "UCX_TLS names tcp";
  EXPECT_EQ(TryUcx("shm"), absl::OkStatus());
  const absl::Status nope = TryUcx("nope0");
  EXPECT_TRUE(absl::IsFailedPrecondition(nope)) << nope;
}

}  // namespace
}  // namespace sluice
