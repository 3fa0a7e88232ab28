#include "common/collective/c10d_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <latch>
#include <numeric>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Runs `body` on a thread per rank.
void RunRanks(int world, const std::function<void(Collective&)>& body,
              absl::Duration timeout = absl::Seconds(30), PortRange ports = {}) {
  std::signal(SIGPIPE, SIG_IGN);  // See JoinC10d().
  LocalRendezvous rendezvous;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<Collective>> group =
          JoinC10d({.rank = rank, .world = world, .ports = ports, .timeout = timeout}, &rendezvous);
      ASSERT_TRUE(group.ok()) << group.status();
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CollectiveTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CollectiveTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(CollectiveTest, SumsHaveTheSameBitsOnAllRanks) {
  const int world = GetParam();
  // More than one piece, and not a multiple of anything.
  constexpr size_t kCount = (size_t{1} << 24) + 77;
  std::vector<std::vector<float>> sums(world);
  RunRanks(world, [&](Collective& group) {
    std::vector<float> values(kCount);
    SplitMix64 random(100 + group.rank());
    for (float& value : values) value = static_cast<float>(random.Uniform() - 0.5);
    ASSERT_TRUE(group.Sum(absl::MakeSpan(values)).ok());
    sums[group.rank()] = std::move(values);
  });
  for (int rank = 1; rank < world; ++rank) EXPECT_EQ(sums[rank], sums[0]) << rank;
  std::vector<SplitMix64> randoms;
  for (int rank = 0; rank < world; ++rank) randoms.emplace_back(100 + rank);
  for (size_t i = 0; i < kCount; ++i) {
    double sum = 0;
    for (SplitMix64& random : randoms) sum += static_cast<float>(random.Uniform() - 0.5);
    ASSERT_NEAR(sums[0][i], sum, 1e-6) << i;
  }
}

TEST_P(CollectiveTest, OneRankGetsTheSums) {
  const int world = GetParam();
  RunRanks(world, [&](Collective& group) {
    for (int root = 0; root < group.world(); ++root) {
      std::vector<float> values(1000, static_cast<float>(1 + group.rank()));
      ASSERT_TRUE(group.SumTo(root, absl::MakeSpan(values)).ok());
      const float sum = static_cast<float>(world * (world + 1)) / 2;
      if (group.rank() == root) EXPECT_EQ(values, std::vector<float>(1000, sum));
    }
  });
}

TEST_P(CollectiveTest, AllRanksGetWhatOneHas) {
  RunRanks(GetParam(), [](Collective& group) {
    for (int root = 0; root < group.world(); ++root) {
      std::vector<float> values(333, static_cast<float>(group.rank()));
      ASSERT_TRUE(group.Broadcast(root, absl::MakeSpan(values)).ok());
      EXPECT_EQ(values, std::vector<float>(333, static_cast<float>(root)));
    }
  });
}

TEST_P(CollectiveTest, OneRankGivesItsValuesToAnother) {
  RunRanks(GetParam(), [](Collective& group) {
    const int last = group.world() - 1;
    std::vector<float> values(333, static_cast<float>(group.rank()));
    ASSERT_TRUE(group.Transfer(last, 0, absl::MakeSpan(values)).ok());
    const int owner = group.rank() == 0 ? last : group.rank();
    EXPECT_EQ(values, std::vector<float>(333, static_cast<float>(owner)));
  });
}

TEST_P(CollectiveTest, GathersBytesOfAnyLengthInOrderOfRank) {
  RunRanks(GetParam(), [](Collective& group) {
    absl::StatusOr<std::vector<std::string>> all = group.Gather(std::string(group.rank(), 'x'));
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->size(), static_cast<size_t>(group.world()));
    for (int rank = 0; rank < group.world(); ++rank)
      EXPECT_EQ((*all)[rank], std::string(rank, 'x'));
  });
}

TEST_P(CollectiveTest, MessagesOfRankZeroComeInOrder) {
  RunRanks(GetParam(), [](Collective& group) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{3'000'000}}) {
      const std::string message(size, static_cast<char>('a' + size % 7));
      if (group.rank() == 0) {
        ASSERT_TRUE(group.Send(message).ok());
      } else {
        absl::StatusOr<std::string> received = group.Receive();
        ASSERT_TRUE(received.ok()) << received.status();
        EXPECT_EQ(*received, message);
      }
    }
  });
}

TEST_P(CollectiveTest, ARankThatIsGoneIsAnErrorOnTheOthersAtOnce) {
  const int world = GetParam();
  if (world == 1) return;
  RunRanks(
      world,
      [&](Collective& group) {
        if (group.rank() == world - 1) return;  // Destroys its end.
        std::vector<float> values(10, 1);
        const absl::Status status = group.Sum(absl::MakeSpan(values));
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
        EXPECT_EQ(ReasonOf(status), "RANK_LOST") << status;
      },
      /*timeout=*/absl::Hours(1));
}

TEST(CollectiveAbortTest, EndsAWaitForARankThatDoesNotCome) {
  std::latch done(1);
  RunRanks(
      2,
      [&](Collective& group) {
        if (group.rank() == 1) return done.wait();  // It is there, but makes no call.
        std::thread aborts([&] { group.Abort(); });
        std::vector<float> values(10, 1);
        EXPECT_TRUE(absl::IsCancelled(group.Sum(absl::MakeSpan(values))));
        EXPECT_TRUE(absl::IsCancelled(group.Send("too late")));
        aborts.join();
        done.count_down();
      },
      /*timeout=*/absl::Hours(1));
}

TEST(CollectiveAbortTest, EndsAWaitForAMessage) {
  std::latch done(1);
  RunRanks(
      2,
      [&](Collective& group) {
        if (group.rank() == 0) return done.wait();
        std::thread aborts([&] { group.Abort(); });
        EXPECT_TRUE(absl::IsCancelled(group.Receive().status()));
        aborts.join();
        done.count_down();
      },
      /*timeout=*/absl::Hours(1));
}

// What rank 0 sends in these tests.
std::string StreamBytes(uint64_t bytes) {
  std::string out(bytes, '\0');
  SplitMix64 random(bytes);
  for (char& c : out) c = static_cast<char>(random.Next());
  return out;
}

// Sends `bytes`, or receives them into *received, until all have passed or `most` buckets have.
absl::Status RunStream(Collective& group, const std::string& bytes, uint64_t bucket_bytes,
                       std::string* received, uint64_t most = UINT64_MAX) {
  absl::Status status = group.StartStream(bytes.size(), bucket_bytes);
  for (uint64_t i = 0; status.ok() && i < most; ++i) {
    const absl::StatusOr<absl::Span<char>> bucket = group.NextBucket();
    if (!bucket.ok() || bucket->empty()) return bucket.status();
    if (group.rank() == 0) bytes.copy(bucket->data(), bucket->size(), i * bucket_bytes);
    else received->append(bucket->data(), bucket->size());
  }
  return status;
}

TEST_P(CollectiveTest, AStreamBringsTheBytesOfRankZeroToAllInOrder) {
  for (const uint64_t size : {0, 1, 999, 1000, 1001, 5000, 50'003}) {
    const std::string bytes = StreamBytes(size);
    RunRanks(GetParam(), [&](Collective& group) {
      for (int again = 0; again < 2; ++again) {
        std::string received;
        ASSERT_EQ(RunStream(group, bytes, 1000, &received), absl::OkStatus()) << size;
        if (group.rank() > 0) EXPECT_TRUE(received == bytes) << size;
      }
    });
  }
}

constexpr uint64_t kStreamBucket = 1 << 20, kStreamBuckets = 40;

class StreamFaultTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OfRank, StreamFaultTest, ::testing::Values(0, 1, 2, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(StreamFaultTest, ARankThatIsGoneEndsTheStreamForThoseBehindItAlone) {
  const int gone = GetParam();
  const std::string bytes = StreamBytes(kStreamBucket * kStreamBuckets);
  RunRanks(
      4,
      [&](Collective& group) {
        std::string received;
        const bool leaves = group.rank() == gone;
        const absl::Status status =
            RunStream(group, bytes, kStreamBucket, &received, leaves ? 5 : UINT64_MAX);
        EXPECT_EQ(bytes.compare(0, received.size(), received), 0);
        if (leaves) {
          EXPECT_EQ(status, absl::OkStatus());
        } else if (group.rank() > gone || (group.rank() == 0 && gone == 1)) {
          EXPECT_EQ(ReasonOf(status), "RANK_LOST") << status;
        } else {
          EXPECT_EQ(status, absl::OkStatus());
          EXPECT_TRUE(group.rank() == 0 || received == bytes);
        }
      },
      /*timeout=*/absl::Hours(1));
}

// Those before it may get all, or wait for it as long as the others do.
TEST_P(StreamFaultTest, ARankThatHangsIsAnErrorOnThoseBehindItAndKeepsNobodyLongerThanTheTimeout) {
  const int hangs = GetParam();
  const std::string bytes = StreamBytes(kStreamBucket * kStreamBuckets);
  std::latch ended(3);
  RunRanks(
      4,
      [&](Collective& group) {
        if (group.rank() == hangs) return ended.wait();
        std::string received;
        const absl::Status status = RunStream(group, bytes, kStreamBucket, &received);
        if (!status.ok() || group.rank() > hangs) {
          EXPECT_EQ(ReasonOf(status), "RANK_LOST") << status;
        }
        ended.count_down();
      },
      /*timeout=*/absl::Milliseconds(300));
}

TEST(CollectiveAbortTest, EndsAStream) {
  std::latch done(1);
  RunRanks(
      2,
      [&](Collective& group) {
        if (group.rank() == 0) return done.wait();
        std::thread aborts([&] { group.Abort(); });
        std::string received;
        const absl::Status status = RunStream(group, StreamBytes(1000), 100, &received);
        EXPECT_TRUE(absl::IsCancelled(status)) << status;
        aborts.join();
        done.count_down();
      },
      /*timeout=*/absl::Hours(1));
}

TEST(LocalRendezvousTest, KeepsNoMoreThanItMayAndEndsWaitsWhenItCloses) {
  LocalRendezvous rendezvous(10);
  EXPECT_EQ(rendezvous.Set("a", "12345678"), absl::OkStatus());
  EXPECT_EQ(rendezvous.Set("a", "123456789"), absl::OkStatus()) << "it replaces the former value";
  EXPECT_TRUE(absl::IsResourceExhausted(rendezvous.Set("b", "")));
  std::thread closes([&] { rendezvous.Close(); });
  EXPECT_TRUE(absl::IsCancelled(rendezvous.Get("c", absl::Hours(1)).status()));
  closes.join();
}

TEST(CollectiveJoinTest, ARankThatNeverComesIsAnError) {
  LocalRendezvous rendezvous;
  const auto group = JoinC10d({.rank = 0, .world = 2, .meet = absl::Milliseconds(50)}, &rendezvous);
  EXPECT_EQ(ReasonOf(group.status()), "RANK_LOST") << group.status();
}

TEST(CollectiveJoinTest, ARankThatComesAndIsLostBeforeItIsConnectedIsAnError) {
  for (int rank = 0; rank < 2; ++rank) {
    LocalRendezvous rendezvous;
    ASSERT_TRUE(rendezvous.Set(absl::StrCat("here/", 1 - rank), "").ok());
    const auto group = JoinC10d(
        {.rank = rank, .world = 2, .timeout = absl::Hours(1), .connect = absl::Milliseconds(100)},
        &rendezvous);
    EXPECT_EQ(ReasonOf(group.status()), "RANK_LOST") << group.status();
  }
}

TEST(CollectiveJoinTest, AnAddressOfAnotherMachineIsRefused) {
  LocalRendezvous rendezvous;
  const auto group = JoinC10d({.rank = 0, .world = 1, .host = "192.0.2.1"}, &rendezvous);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kInvalidArgument) << group.status();
}

TEST(CollectiveJoinTest, ARankOutsideOfTheGroupIsRefused) {
  LocalRendezvous rendezvous;
  EXPECT_EQ(JoinC10d({.rank = 2, .world = 2}, &rendezvous).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Listens on a port of loopback that the kernel gives.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd.get(), 1), 0);
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  const Fd fd;
  int port = 0;
};

// How many sockets of this machine listen on a port of the range.
int CountListening(const PortRange& ports) {
  int listening = 0;
  for (const absl::string_view line :
       absl::StrSplit(ReadFile("/proc/net/tcp").value_or(""), '\n', absl::SkipEmpty())) {
    // "0: 0100007F:733C 00000000:0000 0A ..": number, own address, peer, state.
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int port = 0;
    if (words.size() > 3 && words[3] == "0A" &&
        absl::SimpleHexAtoi(words[1].substr(words[1].find(':') + 1), &port))
      listening += ports.first <= port && port <= ports.last ? 1 : 0;
  }
  return listening;
}

TEST(CollectivePortsTest, EachRankListensOnAFreePortOfTheRange) {
  const Listener taken;
  const PortRange ports = {taken.port, std::min(taken.port + 20, 65535)};
  const int before = CountListening(ports);
  EXPECT_GE(before, 1);

  RunRanks(
      3,
      [&](Collective& group) {
        if (group.rank() == 0) {
          EXPECT_GE(CountListening(ports), before + 3) << ports.text();
        }
        float value = static_cast<float>(group.rank());
        EXPECT_EQ(group.Sum(absl::MakeSpan(&value, 1)), absl::OkStatus());
        EXPECT_EQ(value, 3);
      },
      /*timeout=*/absl::Seconds(30), ports);
}

TEST(CollectivePortsTest, ARangeWithoutAFreePortIsNamedWithTheFlag) {
  const Listener taken;
  LocalRendezvous rendezvous;

  const auto group =
      JoinC10d({.rank = 0, .world = 1, .ports = {taken.port, taken.port}}, &rendezvous);

  EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted) << group.status();
  EXPECT_THAT(group.status().message(), testing::HasSubstr(absl::StrCat(taken.port)));
  EXPECT_THAT(DetailOf(group.status()).hint, testing::HasSubstr("--collective-ports"));
}

TEST(CollectivePortsTest, AnAddressOfAnotherMachineIsRefused) {
  LocalRendezvous rendezvous;
  const auto group =
      JoinC10d({.rank = 0, .world = 1, .host = "192.0.2.1", .ports = {29500, 29600}}, &rendezvous);
  EXPECT_EQ(group.status().code(), absl::StatusCode::kInvalidArgument) << group.status();
}

TEST(PortRangeTest, ReadsARangeOnePortAndNothing) {
  EXPECT_EQ(ParsePortRange("29500-29600")->text(), "29500-29600");
  EXPECT_EQ(ParsePortRange("7000")->text(), "7000");
  EXPECT_TRUE(ParsePortRange("")->any());
  for (const char* wrong :
       {"0", "0-5", "70000", "5-4", "5-", "-5", "5-6-7", "a-b", "1 - x", "1-65536"}) {
    EXPECT_EQ(ParsePortRange(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace sluice
