// The store on a real redis-server to which everything happens: killed connections, lost and late
// answers, pauses, restarts, lost data, and another process that takes the lease.

#include "common/meta/redis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/meta/redis_scripts.h"
#include "tests/integration/harness/redis_server.h"
#include "tests/integration/harness/relay.h"

namespace sluice::meta {
namespace {
using integration::RedisServer;
using integration::Relay;
using testing::HasSubstr;

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = RedisServer::Start({.durable = true});
    ASSERT_NE(server_, nullptr);
    target_.url = absl::StrCat("redis://", server_->endpoint().str());
    target_.holder = "the first";
    target_.lease.renew = absl::Milliseconds(200);
    target_.lease.poll = absl::Milliseconds(50);
  }

  void OpenStore() {
    store_ = nullptr;
    absl::StatusOr<std::unique_ptr<Store>> store = OpenRedis(target_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // Repeats a transaction until the store answers.
  absl::StatusOr<int64_t> Persist(const std::vector<Compare>& compares,
                                  const std::vector<Op>& ops) {
    while (true) {
      absl::StatusOr<int64_t> revision = store_->Txn(compares, ops);
      if (!absl::IsUnavailable(revision.status())) return revision;
    }
  }

  // What a script answers, as words in one text. `args` begins with the caller's lease.
  std::string RunScript(const char* script, const std::vector<std::string>& args) {
    redis::Command command = {"EVAL",           script,          "5",
                              "sluice:lease",   "sluice:state",  "sluice:values",
                              "sluice:rebuilt", "sluice:changes"};
    command.insert(command.end(), args.begin(), args.end());
    const redis::Reply said = server_->Run(command);
    return absl::StrJoin(said.list, " ", [](std::string* out, const redis::Reply& word) {
      absl::StrAppend(out, word.text);
    });
  }

  // Opens the store over a network that is slow from then on.
  void OpenOverSlowNetwork(absl::Duration there, absl::Duration back) {
    relay_ = std::make_unique<Relay>(server_->endpoint().port);
    target_.url = absl::StrCat("redis://127.0.0.1:", relay_->port());
    ASSERT_NO_FATAL_FAILURE(OpenStore());
    ASSERT_TRUE(store_->Put("a", "1").ok());
    AwaitRenewal();  // Both of its connections are there.
    relay_->Delay(there, back);
  }

  // Waits until the store has renewed its lease, so that Redis keeps it for longer than before.
  void AwaitRenewal() {
    const auto ask = [this] { return server_->Run({"PTTL", "sluice:lease"}).number; };
    int64_t left = ask();
    for (int64_t now = ask(); now <= left; now = ask()) left = now;
  }

  std::string RevisionInRedis() { return server_->Run({"HGET", "sluice:state", "revision"}).text; }
  std::string ValueInRedis(const std::string& key) {
    return server_->Run({"HGET", "sluice:values", key}).text;
  }

  std::unique_ptr<RedisServer> server_;
  Target target_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<Store> store_;
};

TEST_F(RedisStoreTest, OneProcessAtATimeHasItAndTheOthersAreToldWho) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  Target other = target_;
  other.holder = "the second";

  const absl::Status held = OpenRedis(other).status();
  EXPECT_TRUE(absl::IsUnavailable(held));
  EXPECT_EQ(ReasonOf(held), "HELD");
  EXPECT_EQ(DetailOf(held).current, "the first");

  store_ = nullptr;  // It gives the lease back.
  target_ = other;
  OpenStore();
  EXPECT_EQ(store_->Get("a")->value, "1");
}

TEST_F(RedisStoreTest, TwoFleetsShareARedisUnderTwoPrefixes) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  Target other = target_;
  other.prefix = "another:fleet";
  const auto second = OpenRedis(other);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(absl::IsNotFound((*second)->Get("a").status()));
}

TEST_F(RedisStoreTest, AWriteWhoseAnswerWasLostIsDoneOnce) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());

  // A stopped Redis gets the request, and executes it once it goes on, after the store has given
  // the answer up.
  server_->Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("b", "2").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Get("b").status())) << "it is not known to be done";
  server_->Signal(SIGCONT);

  const absl::StatusOr<int64_t> revision = Persist({}, {{"b", "2"}});
  ASSERT_TRUE(revision.ok()) << revision.status();
  EXPECT_EQ(*revision, 2);
  EXPECT_EQ(RevisionInRedis(), "2");
  EXPECT_EQ(ValueInRedis("b"), "2 2");
}

TEST_F(RedisStoreTest, AnotherWriteComesAfterTheOneWhoseAnswerWasLost) {
  OpenStore();
  server_->Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("a", "1").status()));
  server_->Signal(SIGCONT);

  const absl::StatusOr<int64_t> revision = Persist({}, {{"a", "2"}});

  ASSERT_TRUE(revision.ok()) << revision.status();
  EXPECT_EQ(*revision, 2);
  EXPECT_EQ(ValueInRedis("a"), "2 2");
}

TEST_F(RedisStoreTest, OverASlowNetworkWritesAreDoneAndTheLeaseIsKept) {
  target_.lease.ttl = absl::Seconds(5);
  target_.lease.margin = absl::Seconds(1);
  ASSERT_NO_FATAL_FAILURE(OpenOverSlowNetwork(absl::Milliseconds(300), absl::Milliseconds(300)));

  // For longer than a lease lasts that is not renewed.
  int64_t revision = 1;
  for (const absl::Time end = absl::Now() + target_.lease.ttl; absl::Now() < end;) {
    const absl::StatusOr<int64_t> written = Persist({{"a", revision}}, {{"a", "2"}});
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(*written, ++revision);
    EXPECT_EQ(store_->CheckMayAct(), absl::OkStatus());
  }
  EXPECT_EQ(store_->times_rebuilt(), 0);
  relay_->Delay(absl::ZeroDuration(), absl::ZeroDuration());  // To end sooner.
}

TEST_F(RedisStoreTest, OverANetworkThatIsTooSlowAWriteIsGivenUpInTimeAndIsDoneOnce) {
  ASSERT_NO_FATAL_FAILURE(OpenOverSlowNetwork(absl::Milliseconds(1500), absl::ZeroDuration()));

  const absl::Time begin = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("b", "2").status()));
  EXPECT_LE(absl::Now() - begin, absl::Seconds(4)) << "the limit that redis.h names";
  EXPECT_TRUE(absl::IsNotFound(store_->Get("b").status())) << "it is not known to be done";
  while (ValueInRedis("b").empty()) {  // It arrives after the store has given it up.
  }

  relay_->Delay(absl::ZeroDuration(), absl::ZeroDuration());
  const absl::StatusOr<int64_t> revision = Persist({}, {{"b", "2"}});
  ASSERT_TRUE(revision.ok()) << revision.status();
  EXPECT_EQ(*revision, 2);
  EXPECT_EQ(RevisionInRedis(), "2");
  EXPECT_EQ(ValueInRedis("b"), "2 2");
}

TEST_F(RedisStoreTest, OverANetworkThatIsTooSlowTheLeaseIsGivenUpBeforeAnotherOneLeads) {
  target_.lease.ttl = absl::Seconds(2);
  target_.lease.margin = absl::Milliseconds(500);
  Target other = target_;  // It is near Redis.
  other.holder = "the second";
  ASSERT_NO_FATAL_FAILURE(OpenOverSlowNetwork(absl::Milliseconds(1500), absl::ZeroDuration()));

  // The next renewal arrives late, so the lease lasts longer than its holder knows.
  absl::StatusOr<std::unique_ptr<Store>> opened = absl::UnavailableError("");
  while (!opened.ok()) opened = OpenRedis(other);
  EXPECT_TRUE(absl::IsUnavailable(store_->CheckMayAct())) << "two lead at once";
  const std::unique_ptr<Store> second = *std::move(opened);

  ASSERT_TRUE(second->Put("a", "2").ok());
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("a", "3").status()));
  relay_->Delay(absl::ZeroDuration(), absl::ZeroDuration());
  EXPECT_EQ(ReasonOf(Persist({}, {{"a", "4"}}).status()), "LEASE_LOST");
  EXPECT_EQ(ValueInRedis("a"), "2 2");
}

TEST_F(RedisStoreTest, KilledConnectionsNeitherLoseNorRepeatAWrite) {
  OpenStore();
  std::atomic<bool> over = false;
  std::atomic<int> killed = 0;
  std::thread killer([&] {
    redis::Connection connection(server_->endpoint(), integration::kLong);
    ASSERT_TRUE(connection.Connect().ok());
    const redis::Command kill = {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"};
    while (!over) {
      const auto replies = connection.Run({&kill, 1});
      ASSERT_TRUE(replies.ok()) << replies.status();
      killed += static_cast<int>((*replies)[0].number);
    }
  });

  constexpr int kWrites = 100;
  for (int i = 1; i <= kWrites; ++i) {
    // Each write goes on from the one before, so a lost or repeated one would be seen.
    const absl::StatusOr<int64_t> revision =
        Persist({{"count", i - 1}}, {{"count", absl::StrCat(i)}});
    ASSERT_TRUE(revision.ok()) << revision.status();
    ASSERT_EQ(*revision, i);
  }
  over = true;
  killer.join();

  EXPECT_GT(killed, 10) << "too few connections were killed to show anything";
  EXPECT_EQ(ValueInRedis("count"), absl::StrCat(kWrites, " ", kWrites));
}

TEST_F(RedisStoreTest, AKilledRedisIsReadFromMemoryAndIsWrittenOnceItIsBack) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  server_->Kill();

  EXPECT_TRUE(absl::IsUnavailable(store_->Put("b", "2").status()));
  EXPECT_EQ(store_->Get("a")->value, "1");
  EXPECT_EQ(store_->List("")->size(), 1u);

  ASSERT_TRUE(server_->Restart().ok());
  ASSERT_TRUE(Persist({}, {{"b", "2"}}).ok());
  EXPECT_EQ(store_->times_rebuilt(), 0);
  OpenStore();
  EXPECT_EQ(store_->List("")->size(), 2u);
}

TEST_F(RedisStoreTest, AFlushedRedisGetsEverythingBackWithTheNextWrite) {
  target_.lease.renew = absl::Hours(1);  // The write finds it first.
  target_.lease.ttl = absl::Hours(3);
  ASSERT_NE(server_->Run({"HSET", "sluice:state", "format", "1"}).kind,
            redis::Reply::Kind::kError);  // It is not empty, so to open it takes no hour.
  OpenStore();
  // More than goes in one piece.
  const std::string large(700 << 10, 'x');
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store_->Put(absl::StrCat("large", i), large).ok());
  server_->Run({"FLUSHALL"});

  const absl::StatusOr<int64_t> revision = store_->Put("small", "y");

  ASSERT_TRUE(revision.ok()) << revision.status();
  EXPECT_EQ(*revision, 6);
  EXPECT_EQ(store_->times_rebuilt(), 1);
  OpenStore();
  EXPECT_EQ(store_->List("")->size(), 6u);
  EXPECT_EQ(store_->Get("large4")->value, large);
  EXPECT_EQ(store_->Get("large4")->revision, 5);
}

TEST_F(RedisStoreTest, AFlushedRedisGetsEverythingBackThoughNothingIsWritten) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  server_->Run({"FLUSHALL"});
  while (ValueInRedis("a").empty()) {  // Until the next renewal of the lease.
  }
  EXPECT_EQ(RevisionInRedis(), "1");
  while (store_->times_rebuilt() == 0) {
  }
}

TEST_F(RedisStoreTest, AnEmptyRedisIsNotTakenFromTheProcessThatHasTheData) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  Target other = target_;
  other.holder = "the second";
  other.lease.renew = absl::Seconds(3);  // It gives the first one much time.

  server_->Run({"FLUSHALL"});
  EXPECT_EQ(ReasonOf(OpenRedis(other).status()), "HELD");
  EXPECT_EQ(ValueInRedis("a"), "1 1");
}

TEST_F(RedisStoreTest, ARedisThatWasRolledBackGetsWhatItHasLost) {
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  const std::string files = server_->dir(), copy = files + "_copy";
  std::filesystem::copy(files, copy, std::filesystem::copy_options::recursive);
  ASSERT_TRUE(store_->Put("b", "2").ok());
  ASSERT_TRUE(store_->Txn({}, {{"a", std::nullopt}}).ok());

  server_->Kill();
  std::filesystem::remove_all(files);
  std::filesystem::rename(copy, files);
  ASSERT_TRUE(server_->Restart().ok());
  ASSERT_EQ(RevisionInRedis(), "1") << "the files were not those of before";

  const absl::StatusOr<int64_t> revision = Persist({}, {{"c", "4"}});

  ASSERT_TRUE(revision.ok()) << revision.status();
  EXPECT_EQ(*revision, 4);
  EXPECT_GE(store_->times_rebuilt(), 1);
  OpenStore();
  EXPECT_TRUE(absl::IsNotFound(store_->Get("a").status()));
  EXPECT_EQ(store_->Get("b")->revision, 2);
  EXPECT_EQ(store_->Get("c")->revision, 4);
}

TEST_F(RedisStoreTest, WhoHasLostTheLeaseWritesNothing) {
  target_.lease = {.ttl = absl::Hours(3),
                   .renew = absl::Hours(1)};  // It does not notice by itself.
  ASSERT_NE(server_->Run({"HSET", "sluice:state", "format", "1"}).kind, redis::Reply::Kind::kError);
  OpenStore();
  ASSERT_TRUE(store_->Put("a", "1").ok());
  server_->Run({"DEL", "sluice:lease"});  // As if it had been paused until the lease ended.
  Target other = target_;
  other.holder = "the second";
  const auto second = OpenRedis(other);
  ASSERT_TRUE(second.ok()) << second.status();

  const absl::Status lost = store_->Put("a", "2").status();

  EXPECT_TRUE(absl::IsAborted(lost));
  EXPECT_EQ(ReasonOf(lost), "LEASE_LOST");
  EXPECT_EQ(DetailOf(lost).current, "the second");
  EXPECT_EQ(ReasonOf(store_->CheckMayAct()), "LEASE_LOST");
  EXPECT_EQ(ValueInRedis("a"), "1 1");
  store_ = nullptr;  // It does not give back what it no longer has.
  EXPECT_TRUE((*second)->Put("a", "3").ok());
}

TEST_F(RedisStoreTest, AnExpiredLeaseIsLostToWhoeverHasHadItSinceEvenIfThatOneIsGone) {
  target_.lease = {.ttl = absl::Hours(3), .renew = absl::Hours(1)};
  ASSERT_NE(server_->Run({"HSET", "sluice:state", "format", "1"}).kind, redis::Reply::Kind::kError);
  OpenStore();
  server_->Run({"DEL", "sluice:lease"});
  ASSERT_TRUE(OpenRedis(target_).ok());  // It has the lease, and gives it back at once.

  EXPECT_EQ(ReasonOf(store_->Put("a", "2").status()), "LEASE_LOST");
}

TEST_F(RedisStoreTest, WhileTheLeaseCannotBeRenewedNothingMayBeActedOn) {
  target_.lease.ttl = absl::Seconds(2);
  target_.lease.margin = absl::Milliseconds(500);
  OpenStore();
  server_->Signal(SIGSTOP);
  while (store_->CheckMayAct().ok()) {
  }
  EXPECT_TRUE(absl::IsUnavailable(store_->CheckMayAct()));
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("a", "1").status()));

  server_->Signal(SIGCONT);
  EXPECT_TRUE(Persist({}, {{"a", "1"}}).ok());
}

TEST_F(RedisStoreTest, AFullRedisIsSaidToBeFullAndTakesMoreLater) {
  OpenStore();
  server_->Run({"CONFIG", "SET", "maxmemory", "1"});
  const absl::Status full = store_->Put("a", "1").status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(ReasonOf(full), "STORE_FULL");
  server_->Run({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(*Persist({}, {{"a", "2"}}), 1);
}

TEST_F(RedisStoreTest, AMasterThatWantsMoreReplicasIsAwayUntilTheyAreThere) {
  OpenStore();
  server_->Run({"CONFIG", "SET", "min-replicas-to-write", "1"});
  const absl::Status refused = store_->Put("a", "1").status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("NOREPLICAS"));
  server_->Run({"CONFIG", "SET", "min-replicas-to-write", "0"});
  EXPECT_EQ(*Persist({}, {{"a", "2"}}), 2);
}

TEST_F(RedisStoreTest, ASettingThatLosesJobsIsRefusedByName) {
  const auto refusal = [&](const std::string& name, const std::string& value,
                           const std::string& good) {
    server_->Run({"CONFIG", "SET", name, value});
    const absl::Status refused = OpenRedis(target_).status();
    server_->Run({"CONFIG", "SET", name, good});
    EXPECT_TRUE(absl::IsFailedPrecondition(refused));
    EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-META-0010");
    EXPECT_THAT(DetailOf(refused).hint, HasSubstr(name));
    return std::string(refused.message());
  };
  EXPECT_THAT(refusal("appendonly", "no", "yes"), HasSubstr("appendonly no"));
  EXPECT_THAT(refusal("appendfsync", "no", "always"), HasSubstr("appendfsync no"));
  EXPECT_THAT(refusal("maxmemory-policy", "allkeys-lru", "noeviction"),
              HasSubstr("maxmemory-policy allkeys-lru"));
  OpenStore();
}

TEST_F(RedisStoreTest, AClusterAndAReplicaAreRefused) {
  server_ = RedisServer::Start({.durable = true, .args = {"--cluster-enabled", "yes"}});
  ASSERT_NE(server_, nullptr);
  target_.url = absl::StrCat("redis://", server_->endpoint().str());
  EXPECT_THAT(std::string(OpenRedis(target_).status().message()), HasSubstr("cluster-enabled"));

  server_ = RedisServer::Start({.durable = true, .args = {"--replicaof", "127.0.0.1 1"}});
  ASSERT_NE(server_, nullptr);
  target_.url = absl::StrCat("redis://", server_->endpoint().str());
  EXPECT_THAT(std::string(OpenRedis(target_).status().message()), HasSubstr("replica"));
}

TEST_F(RedisStoreTest, ANewerFormatAndADamagedValueAreRefused) {
  server_->Run({"HSET", "sluice:state", "format", "2"});
  EXPECT_EQ(DetailOf(OpenRedis(target_).status()).catalogue, "SLUICE-META-0006");

  server_->Run({"HSET", "sluice:state", "format", "1"});
  server_->Run({"HSET", "sluice:values", "a", "no revision"});
  const absl::Status damaged = OpenRedis(target_).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("sluice:values, key a"));
}

// After a failover the copy of the lease may end at any moment, while its holder may still act.
TEST_F(RedisStoreTest, ALeaseOfAnEarlierTermThatHasJustEndedIsTakenOnlyByOneThatHasWaited) {
  server_->Run({"HSET", "sluice:state", "format", "1", "revision", "5", "term", "1 a:1"});
  server_->Run({"SET", "sluice:lease", "x the first", "PX", "60000"});
  const std::vector<std::string> in_haste = {"y the second", "10000", "1", "2 b:1", ""};
  EXPECT_EQ(RunScript(kTake, in_haste), "held x the first");
  server_->Run({"DEL", "sluice:lease"});
  EXPECT_EQ(RunScript(kTake, in_haste), "wait");
  EXPECT_EQ(server_->Run({"EXISTS", "sluice:lease"}).number, 0);

  EXPECT_EQ(RunScript(kTake, {"y the second", "10000", "1", "2 b:1", "waited"}), "taken 5");
  // Whoever comes next under that term need not wait, nor need anyone without Sentinels.
  server_->Run({"DEL", "sluice:lease"});
  EXPECT_EQ(RunScript(kTake, {"z the third", "10000", "1", "2 b:1", ""}), "taken 5");
  server_->Run({"DEL", "sluice:lease"});
  EXPECT_EQ(RunScript(kTake, {"z the third", "10000", "1", "", ""}), "taken 5");
}

TEST_F(RedisStoreTest, ALeaderDoesNotReplaceWhatItsSuccessorHasWrittenUnderANewTerm) {
  const std::vector<std::string> renew = {"x the first", "10000", "1000", "2 b:1"};
  server_->Run({"HSET", "sluice:state", "revision", "995", "by", "y the second", "term", "2 b:1"});
  EXPECT_EQ(RunScript(kRenew, renew), "lost y the second");

  // One who led under an earlier term was there before it.
  server_->Run({"HSET", "sluice:state", "revision", "990", "term", "1 a:1"});
  EXPECT_EQ(RunScript(kRenew, renew), "held 990");
  // Now it has led under this one, and finds its own name after its lease has ended.
  server_->Run({"DEL", "sluice:lease"});
  EXPECT_EQ(RunScript(kRenew, renew), "held 990");
}

TEST(OpenRedisTest, OffLoopbackTlsAndAPasswordAreNeeded) {
  EXPECT_EQ(DetailOf(OpenRedis({.url = "redis://10.0.0.1"}).status()).catalogue,
            "SLUICE-AUTH-0020");
  EXPECT_EQ(DetailOf(OpenRedis({.url = "rediss://10.0.0.1"}).status()).catalogue,
            "SLUICE-AUTH-0022");
  EXPECT_EQ(ReasonOf(OpenRedis({.url = "redis://127.0.0.1", .prefix = "a b"}).status()),
            "BAD_PREFIX");
}

}  // namespace
}  // namespace sluice::meta
