#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/harness/process.h"
#include "tests/services/queue/wire.h"

// Clients are killed while they put and get through shared memory. The queue runs in this process;
// each client runs in a process of its own, which is this program again (ClientProcess below).
namespace sluice::queue {
namespace {
using integration::Process;

constexpr int kPieces = 8;
constexpr uint32_t kPieceTokens = 128 << 10;  // 1 MiB of tokens and log-probs.

// Token ids below 2^24 that look random (multiplicative hashing of their places).
std::string Tokens(int piece) {
  std::string bytes(4 * kPieceTokens, '\0');
  for (uint32_t i = 0; i < kPieceTokens; ++i) {
    const uint32_t token = (piece * kPieceTokens + i) * 2654435761u >> 8;
    std::memcpy(bytes.data() + 4 * i, &token, 4);
  }
  return bytes;
}
std::string Logprobs(int piece) {
  std::string bytes(4 * kPieceTokens, '\0');
  for (uint32_t i = 0; i < kPieceTokens; ++i) {
    const float logprob = -static_cast<float>(piece * 1000 + i % 1000) / 1000;
    std::memcpy(bytes.data() + 4 * i, &logprob, 4);
  }
  return bytes;
}

// The number of clients' buffers that the queue has mapped. No client in this process maps one.
int Buffers() {
  const auto maps = ReadFile("/proc/self/maps");
  EXPECT_TRUE(maps.ok());
  int count = 0;
  for (absl::string_view line : absl::StrSplit(*maps, '\n'))
    count += line.find("sluice-queue-put") != absl::string_view::npos;
  return count;
}

class SharedMemoryKillTest : public WireTest {
 protected:
  void SetUp() override {
#ifndef SLUICE_FAILPOINTS
    GTEST_SKIP() << "this build has no failpoints";
#endif
    token_bytes_ = 16'000;  // 16 MB a member.
    ASSERT_NO_FATAL_FAILURE(WireTest::SetUp());
    ASSERT_TRUE(server_.ShareMemory(rpc_->address()).ok());
    Begin();

    admitted_ = Admitted(1);
    client_ = std::make_unique<QueueClient>(
        channel_, QueueClient::Options{.job = kJob,
                                       .worker = "r1",
                                       .incarnation = rollout_incarnation_,
                                       .shared_memory = false});
    sluice::PutStream stream(client_.get());
    ASSERT_TRUE(stream.Put(PromptRecord(grant(), member()), Column(3, 0), nullptr).ok());
    ASSERT_TRUE(stream.Flush(absl::Seconds(60)).ok());

    prompt_ = arena()->use();
  }

  const v1::Grant& grant() const { return admitted_.grants(0); }
  const v1::Member& member() const { return grant().members(0); }
  Arena* arena() { return (*jobs_.Find(kJob))->arena(); }

  // Starts a client. `what`: "put" puts all pieces and prints a line before each; "get" reads them.
  std::unique_ptr<Process> Start(const std::string& what, const std::string& failpoints) {
    auto process = Process::Start(
        {.binary = "/proc/self/exe",
         .args = {"--gtest_filter=ClientProcess.*", "--gtest_also_run_disabled_tests"},
         .env = {
             {"CLIENT_DOES", what},
             {"CLIENT_QUEUE", rpc_->address()},
             {"CLIENT_OWNER", absl::BytesToHexString(RefOf(grant(), member()).SerializeAsString())},
             {"CLIENT_LEASE", absl::BytesToHexString(member().lease().id())},
             {"SLUICE_FAILPOINTS", failpoints}}});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }

  static void AwaitLine(Process& process, absl::string_view wanted) {
    for (int i = 0; i < 1000; ++i) {
      const auto line = process.ReadLine(absl::Seconds(60));
      ASSERT_TRUE(line.ok()) << line.status();
      if (*line == wanted) return;
    }
    FAIL() << wanted << " never came";
  }

  // The queue keeps nothing of a client that is gone.
  void ExpectNoBuffers() {
    EXPECT_TRUE(Becomes([] { return Buffers() == 0; })) << Buffers() << " are left";
  }

  // All pieces are stored, each once: their bytes come back, and they take no more memory.
  void ExpectStoredOnce() {
    common::v1::Want want;
    *want.mutable_owner() = RefOf(grant(), member());
    const auto read = client_->GetAll(member().lease().id(), {&want, 1});
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->size(), static_cast<size_t>(kPieces));
    for (int piece = 0; piece < kPieces; ++piece) {
      EXPECT_TRUE((*read)[piece].fields[0] == Tokens(piece)) << piece;
      EXPECT_TRUE((*read)[piece].fields[1] == Logprobs(piece)) << piece;
    }

    // Each piece is one allocation, which takes 64 bytes more than its payload.
    const auto own = [&] { return arena()->use().used_bytes - prompt_.used_bytes; };
    EXPECT_TRUE(Becomes([&] { return own() == kPieces * (8 * kPieceTokens + 64); })) << own();
  }

  v1::AdmitResponse admitted_;
  std::unique_ptr<QueueClient> client_;
  Arena::Use prompt_;
};

TEST_F(SharedMemoryKillTest, AClientKilledBetweenItsCopyAndItsMessageLeavesWhatWasAcknowledged) {
  for (int nth = 1; nth <= kPieces; nth += 2) {
    const auto client = Start("put", absl::StrCat("queue_client.put.after_copy=kill@", nth));
    EXPECT_EQ(*client->Await(absl::Seconds(120)), -SIGKILL) << "it puts through shared memory";
    ExpectNoBuffers();
  }

  const auto client = Start("put", "");  // Puts all again: what is stored is a repeat.
  AwaitLine(*client, "put all");
  EXPECT_EQ(*client->Await(absl::Seconds(120)), 0);
  ExpectNoBuffers();
  ExpectStoredOnce();
}

TEST_F(SharedMemoryKillTest, AClientKilledAtAnyMomentOfItsPutsCorruptsNothing) {
  std::mt19937 random(3);
  for (int kill = 0; kill < 12; ++kill) {
    const auto client = Start("put", "");
    AwaitLine(*client, absl::StrCat("put ", random() % kPieces));
    // The client gets a little further, so that it may be killed at any point.
    for (uint32_t spin = random() % 200'000; spin > 0; --spin) asm volatile("");
    client->Signal(SIGKILL);
    client->Await(absl::Seconds(120)).IgnoreError();
    ExpectNoBuffers();
  }

  const auto client = Start("put", "");
  EXPECT_EQ(*client->Await(absl::Seconds(120)), 0);
  ExpectStoredOnce();
}

TEST_F(SharedMemoryKillTest, AReaderKilledWhileItCopiesHoldsNothing) {
  EXPECT_EQ(*Start("put", "")->Await(absl::Seconds(120)), 0);

  for (const char* place : {"before_copy", "after_copy"}) {
    const auto client = Start("get", absl::StrCat("queue_client.get.", place, "=kill"));
    EXPECT_EQ(*client->Await(absl::Seconds(120)), -SIGKILL) << "it reads through shared memory";
    ExpectNoBuffers();
  }
  ExpectStoredOnce();

  // This reader stops while it has the segments mapped.
  const auto client = Start("get", "queue_client.get.before_copy=stop");
  EXPECT_TRUE(Becomes([] { return Buffers() > 0; }));

  v1::DropRequest drop;
  for (const v1::Member& dropped : grant().members()) {
    v1::DropItem& item = *drop.add_items();
    *item.mutable_ref() = RefOf(grant(), dropped);
    item.set_lease(dropped.lease().id());
    item.set_reason("straggler");
  }
  ASSERT_TRUE(client_->Drop(drop).ok());

  client->Signal(SIGKILL);
  client->Await(absl::Seconds(120)).IgnoreError();
  ExpectNoBuffers();
  EXPECT_TRUE(Becomes([&] { return arena()->use().used_bytes <= prompt_.used_bytes; }))
      << "all memory is there for the next";
}

// The client's process, which only the tests above run.
TEST(ClientProcess, DISABLED_DoesAsTold) {
  common::v1::TrajectoryRef owner;
  ASSERT_TRUE(owner.ParseFromString(absl::HexStringToBytes(getenv("CLIENT_OWNER"))));
  const std::string lease = absl::HexStringToBytes(getenv("CLIENT_LEASE"));
  auto channel = rpc::Connect(getenv("CLIENT_QUEUE"), {rpc::Role::kQueue});
  ASSERT_TRUE(channel.ok());
  QueueClient client(*channel,
                     {.job = "00112233445566778899aabbccddeeff", .worker = "r1", .incarnation = 1});

  const auto say = [](const std::string& line) {
    std::puts(line.c_str());
    std::fflush(stdout);
  };

  if (getenv("CLIENT_DOES") == std::string("get")) {
    common::v1::Want want;
    *want.mutable_owner() = owner;
    EXPECT_TRUE(client.GetAll(lease, {&want, 1}).ok());
    return;
  }

  sluice::PutStream stream(&client);
  for (int piece = 0; piece < kPieces; ++piece) {
    common::v1::Record record;
    *record.mutable_owner() = owner;
    record.set_lease(lease);
    common::v1::Piece& columns = *record.mutable_piece();
    columns.set_at(3 + piece * kPieceTokens);
    columns.set_segment(1);
    columns.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    columns.set_trainable(true);
    columns.set_count(kPieceTokens);
    columns.add_runs()->mutable_version()->set_incarnation(1);
    columns.mutable_runs(0)->set_count(kPieceTokens);

    std::string payload;
    AddField("tokens", common::v1::DTYPE_I32, std::vector<int64_t>{kPieceTokens}, Tokens(piece),
             &record, &payload);
    AddField("logprobs", common::v1::DTYPE_F32, std::vector<int64_t>{kPieceTokens}, Logprobs(piece),
             &record, &payload);

    say(absl::StrCat("put ", piece));
    ASSERT_TRUE(stream
                    .Put(record, payload,
                         [](const PutOutcome& outcome) {
                           EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                         })
                    .ok());
    ASSERT_TRUE(stream.Flush(absl::Seconds(60)).ok());
  }
  say("put all");
}

}  // namespace
}  // namespace sluice::queue
