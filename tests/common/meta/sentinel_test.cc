// The store on a real Redis with a replica and three Sentinels: killed masters, replicas that lag,
// masters that come back, and a process that the network cuts off.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/meta/redis.h"
#include "tests/integration/harness/redis_group.h"
#include "tests/integration/harness/relay.h"

namespace sluice::meta {
namespace {
using integration::RedisGroup;
using integration::Relay;
using testing::HasSubstr;

// A user for replication, which a test turns off to make the replica lag, and one for the
// Sentinels, from which a test takes the right to make a Redis a replica.
std::vector<std::string> Users() {
  return {"--user", "copy",         "on",     ">copy",        "~*",   "&*",
          "+@all",  "--masteruser", "copy",   "--masterauth", "copy", "--user",
          "watch",  "on",           ">watch", "~*",           "&*",   "+@all"};
}
const std::vector<std::string>& WatchLines() {
  static const auto* const lines = new std::vector<std::string>{
      "sentinel auth-user sluice-store watch", "sentinel auth-pass sluice-store watch"};
  return *lines;
}

class SentinelStoreTest : public testing::Test {
 protected:
  void StartGroup(RedisGroup::Options options = {}) {
    group_ = RedisGroup::Start(std::move(options));
    ASSERT_NE(group_, nullptr);
    target_.url = group_->url();
    target_.holder = "the first";
    target_.lease.renew = absl::Milliseconds(200);
    target_.lease.poll = absl::Milliseconds(50);
    ASSERT_EQ(group_->server(0)
                  .Run({"HSET", "sluice:state", "format", "1", "term", group_->FirstTerm()})
                  .kind,
              redis::Reply::Kind::kNumber);
  }

  void OpenStore() {
    store_ = nullptr;
    absl::StatusOr<std::unique_ptr<Store>> store = OpenRedis(target_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  // Repeats a transaction until the store answers.
  absl::Status Persist(const std::string& key, const std::string& value) {
    while (true) {
      const absl::Status status = store_->Txn({}, {{key, value}}).status();
      if (!absl::IsUnavailable(status)) return status;
    }
  }

  std::string ValueAt(int server, const std::string& key) {
    const redis::Command get = {"HGET", "sluice:values", key};
    redis::Reply reply = group_->server(server).Run(get);
    // Whoever becomes master or replica ends the connections that it has.
    if (reply.kind == redis::Reply::Kind::kError) reply = group_->server(server).Run(get);
    return reply.text;
  }

  // Waits until replication has brought it there.
  void AwaitValue(int server, const std::string& key, const std::string& value) {
    while (ValueAt(server, key) != value) {
    }
  }

  // From now on the replica gets nothing from the master.
  void StopReplication() {
    group_->server(0).Run({"ACL", "SETUSER", "copy", "off"});
    group_->server(0).Run({"CLIENT", "KILL", "TYPE", "replica"});
    ASSERT_TRUE(group_->AwaitInfo(0, "connected_slaves:0"));
  }

  // Opens a store that reaches the group through relays alone, and writes a = 1, also to the
  // replica. `other` is for a second process, which needs no relays.
  void OpenBehindRelays(Target* other) {
    std::vector<int> ports;
    for (const int port : group_->ports()) {
      relays_.push_back(std::make_unique<Relay>(port));
      ports.push_back(relays_.back()->port());
    }
    target_.lease.ttl = absl::Seconds(3);
    target_.lease.margin = absl::Seconds(1);
    *other = target_;
    other->holder = "the second";
    target_.url = group_->UrlOf(ports);
    ASSERT_NO_FATAL_FAILURE(OpenStore());
    ASSERT_TRUE(store_->Put("a", "1").ok());
    AwaitValue(1, "a", "1 1");
  }

  std::unique_ptr<RedisGroup> group_;
  std::vector<std::unique_ptr<Relay>> relays_;
  Target target_;
  std::unique_ptr<Store> store_;
};

TEST_F(SentinelStoreTest, AKilledMasterIsFollowedByTheReplicaWithAllThatWasAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(StartGroup());
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  constexpr int kWrites = 400;
  std::atomic<int> written = 0;
  std::thread writer([&] {
    for (int i = 0; i < kWrites; ++i) {
      const absl::Status status = Persist(absl::StrCat("key", i), absl::StrCat(i));
      ASSERT_TRUE(status.ok()) << status;
      ++written;
    }
  });

  while (written < kWrites / 4) {
  }
  group_->server(0).Kill();
  const absl::Time killed = absl::Now();
  const int before = written;
  while (written < before + 2) {
  }
  std::printf("[failover] %.2f s from the kill to the next write; written back %d times\n",
              absl::ToDoubleSeconds(absl::Now() - killed),
              static_cast<int>(store_->times_rebuilt()));
  writer.join();

  EXPECT_TRUE(group_->AwaitMaster(1));
  for (int i = 0; i < kWrites; ++i) {
    EXPECT_THAT(ValueAt(1, absl::StrCat("key", i)), testing::EndsWith(absl::StrCat(" ", i)));
  }
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_EQ(store_->List("")->size(), static_cast<size_t>(kWrites));
}

TEST_F(SentinelStoreTest, WhatTheReplicaLackedIsWrittenBackAndTheOldMasterIsNeverWrittenAgain) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.args = Users()}));
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_TRUE(store_->Put("a", "1").ok());
  ASSERT_TRUE(store_->Put("deleted", "2").ok());
  AwaitValue(1, "deleted", "2 2");
  ASSERT_NO_FATAL_FAILURE(StopReplication());
  ASSERT_TRUE(store_->Put("b", "3").ok());
  ASSERT_TRUE(store_->Txn({}, {{"deleted", std::nullopt}}).ok());
  ASSERT_EQ(ValueAt(1, "b"), "") << "the replica does not lag";

  group_->server(0).Kill();
  ASSERT_TRUE(Persist("c", "5").ok());

  EXPECT_GE(store_->times_rebuilt(), 1);
  EXPECT_EQ(ValueAt(1, "a"), "1 1");
  EXPECT_EQ(ValueAt(1, "b"), "3 3");
  EXPECT_EQ(ValueAt(1, "deleted"), "");
  EXPECT_EQ(ValueAt(1, "c"), "5 5");

  // It comes back as a master, with what it had, and the Sentinels make it a replica. The new
  // master is kept so busy that the Sentinels might replace it too, after the second that they
  // wait.
  for (int sentinel = 0; sentinel < 3; ++sentinel) {
    const redis::Reply set = group_->Ask(
        sentinel, {"SENTINEL", "SET", "sluice-store", "down-after-milliseconds", "60000"});
    ASSERT_EQ(set.text, "OK");
  }
  ASSERT_TRUE(group_->server(0).Restart().ok());
  int writes = 0;
  do {
    ASSERT_TRUE(Persist("d", absl::StrCat(++writes)).ok());
  } while (!absl::StrContains(group_->server(0).Run({"INFO", "replication"}).text,
                              "master_link_status:up"));
  AwaitValue(0, "d", absl::StrCat(5 + writes, " ", writes));
  // The store writes by scripts, and replication does not.
  EXPECT_THAT(group_->server(0).Run({"INFO", "commandstats"}).text,
              testing::Not(HasSubstr("cmdstat_eval:")));
}

TEST_F(SentinelStoreTest, AMasterWithASettingThatLosesJobsIsNotWrittenUntilItIsPutRight) {
  ASSERT_NO_FATAL_FAILURE(StartGroup());
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_TRUE(store_->Put("a", "1").ok());
  group_->server(1).Run({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});

  group_->server(0).Kill();
  ASSERT_TRUE(group_->AwaitMaster(1));
  absl::Status refused;
  do {
    refused = store_->Put("b", "2").status();
    ASSERT_TRUE(absl::IsUnavailable(refused)) << refused;
  } while (!absl::StrContains(refused.message(), "maxmemory-policy"));
  EXPECT_EQ(ValueAt(1, "b"), "");

  group_->server(1).Run({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  EXPECT_TRUE(Persist("b", "2").ok());
}

TEST_F(SentinelStoreTest, AProcessThatIsCutOffWithTheOldMasterStopsBeforeAnotherOneLeads) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.args = Users(), .lines = WatchLines()}));
  Target other;
  ASSERT_NO_FATAL_FAILURE(OpenBehindRelays(&other));

  // The replica last heard of the lease long ago, so there it looks free.
  ASSERT_NO_FATAL_FAILURE(StopReplication());
  while (group_->server(1).Run({"EXISTS", "sluice:lease"}).number != 0) {
  }
  ASSERT_TRUE(store_->CheckMayAct().ok());
  // The old master does not let the Sentinels make it a replica, as if they did not reach it.
  group_->server(0).Run({"ACL", "SETUSER", "watch", "-replicaof", "-slaveof", "-client"});
  for (const auto& relay : relays_) relay->Cut();
  EXPECT_EQ(group_->Ask(0, {"SENTINEL", "FAILOVER", "sluice-store"}).text, "OK");
  ASSERT_TRUE(group_->AwaitMaster(1));

  ASSERT_TRUE(store_->CheckMayAct().ok()) << "it has stopped too early to show anything";
  absl::StatusOr<std::unique_ptr<Store>> opened = absl::UnavailableError("");
  while (!opened.ok()) opened = OpenRedis(other);
  EXPECT_FALSE(store_->CheckMayAct().ok()) << "two lead at once";
  const std::unique_ptr<Store> second = *std::move(opened);

  ASSERT_TRUE(second->Put("a", "2").ok());
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("a", "3").status()));
  for (const auto& relay : relays_) relay->Heal();
  EXPECT_EQ(ReasonOf(Persist("a", "4")), "LEASE_LOST");
  EXPECT_EQ(ValueAt(1, "a"), "2 2");
}

TEST_F(SentinelStoreTest, WhileMostSentinelsAreAwayNobodyLeadsAndTheStoreIsReadFromMemory) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.replica = false}));
  target_.lease.ttl = absl::Seconds(3);
  target_.lease.margin = absl::Seconds(1);
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_TRUE(store_->Put("a", "1").ok());

  group_->SignalSentinel(0, SIGKILL);
  ASSERT_TRUE(Persist("b", "2").ok());
  group_->SignalSentinel(1, SIGSTOP);
  while (store_->CheckMayAct().ok()) {
  }
  EXPECT_TRUE(absl::IsUnavailable(store_->Put("c", "3").status()));
  EXPECT_EQ(store_->List("")->size(), 2u);
  Target other = target_;
  const absl::Status away = OpenRedis(other).status();
  EXPECT_EQ(DetailOf(away).catalogue, "SLUICE-META-0017");
  EXPECT_THAT(std::string(away.message()), HasSubstr("too few of them answer"));

  group_->SignalSentinel(1, SIGCONT);
  EXPECT_TRUE(Persist("c", "3").ok());
}

TEST_F(SentinelStoreTest, AStoreUnderANewTermIsOpenedOnlyAfterALeaderOfTheOldOneWouldHaveStopped) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.replica = false}));
  target_.lease.ttl = absl::Seconds(3);
  target_.lease.margin = absl::Seconds(1);
  group_->server(0).Run({"HSET", "sluice:state", "term", "7 127.0.0.1:1"});
  // As the leader of the old term does, which has the data in memory.
  group_->server(0).Run({"SET", "sluice:lease", "x the leader", "PX", "60000"});
  const absl::Status held = OpenRedis(target_).status();
  EXPECT_EQ(ReasonOf(held), "HELD");
  EXPECT_EQ(DetailOf(held).current, "the leader");

  group_->server(0).Run({"DEL", "sluice:lease"});
  const absl::Time begin = absl::Now();
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_GE(absl::Now() - begin, target_.lease.ttl);
  EXPECT_EQ(group_->server(0).Run({"HGET", "sluice:state", "term"}).text, group_->FirstTerm());
}

TEST_F(SentinelStoreTest, ALeaderThatWakesAfterAFailoverLeavesWhatItsSuccessorHasWritten) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.args = Users()}));
  Target other;
  ASSERT_NO_FATAL_FAILURE(OpenBehindRelays(&other));

  // The first one is at a higher revision than its successor will ever be.
  ASSERT_NO_FATAL_FAILURE(StopReplication());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store_->Put("b", absl::StrCat(i)).ok());
  for (const auto& relay : relays_) relay->Cut();
  group_->server(0).Kill();
  ASSERT_TRUE(group_->AwaitMaster(1));
  absl::StatusOr<std::unique_ptr<Store>> second = absl::UnavailableError("");
  while (!second.ok()) second = OpenRedis(other);
  ASSERT_TRUE((*second)->Put("a", "2").ok());
  second = absl::UnavailableError("");  // It ends, and gives the lease back.

  for (const auto& relay : relays_) relay->Heal();
  EXPECT_EQ(ReasonOf(Persist("b", "9")), "LEASE_LOST");
  EXPECT_EQ(ValueAt(1, "a"), "2 2");
}

TEST_F(SentinelStoreTest, WhoIsNamedWronglyIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.replica = false}));
  const std::string hosts = group_->url().substr(0, group_->url().rfind('/'));

  target_.url = absl::StrCat(hosts, "/another");
  const absl::Status unknown = OpenRedis(target_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown));
  EXPECT_EQ(DetailOf(unknown).catalogue, "SLUICE-META-0018");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("it knows no master another"));

  target_.url = group_->UrlOf({group_->server(0).endpoint().port});
  const absl::Status no_sentinel = OpenRedis(target_).status();
  EXPECT_EQ(DetailOf(no_sentinel).catalogue, "SLUICE-META-0018");
  EXPECT_THAT(std::string(no_sentinel.message()), HasSubstr("unknown command"));
}

TEST_F(SentinelStoreTest, OneAddressForAllSentinelsIsRefusedAndOneThatIsAddedLaterStopsNobody) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.replica = false}));
  const std::vector<int> ports = group_->ports();
  for (const std::string& url : {group_->UrlOf({ports[0]}), group_->UrlOf({ports[0], ports[1]})}) {
    target_.url = url;
    const absl::Status refused = OpenRedis(target_).status();
    EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-META-0018") << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("there are 3 Sentinels"));
    EXPECT_EQ(DetailOf(DescribeRedis(target_).status()).catalogue, "SLUICE-META-0018");
  }

  target_.url = group_->url();
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_TRUE(group_->AddSentinel());
  EXPECT_EQ(DetailOf(OpenRedis(target_).status()).catalogue, "SLUICE-META-0018");
  EXPECT_TRUE(Persist("a", "1").ok());
}

TEST_F(SentinelStoreTest, SentinelsAndRedisWithAPasswordAreUsedWithIt) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.password = "hush", .replica = false}));
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenRedis(target_).status()));
  target_.password_file = testing::TempDir() + "/sentinel_password";
  ASSERT_TRUE(WriteFileAtomic(target_.password_file, "hush\n").ok());
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_TRUE(store_->Put("a", "1").ok());
  EXPECT_THAT(DescribeRedis(target_).value_or(""), HasSubstr("the first leads"));
}

TEST_F(SentinelStoreTest, AMasterOffLoopbackIsNotSpokenToInClear) {
  ASSERT_NO_FATAL_FAILURE(StartGroup({.replica = false}));
  for (int i = 0; i < 3; ++i) {
    group_->Ask(i, {"SENTINEL", "REMOVE", "sluice-store"});
    EXPECT_EQ(group_->Ask(i, {"SENTINEL", "MONITOR", "sluice-store", "10.0.0.1", "6379", "2"}).text,
              "OK");
  }
  EXPECT_EQ(DetailOf(OpenRedis(target_).status()).catalogue, "SLUICE-AUTH-0020");
}

TEST(OpenSentinelTest, OffLoopbackTlsAndAPasswordAreNeeded) {
  EXPECT_EQ(
      DetailOf(OpenRedis({.url = "redis+sentinel://127.0.0.1,10.0.0.1/m"}).status()).catalogue,
      "SLUICE-AUTH-0020");
  const absl::Status refused =
      OpenRedis({.url = "rediss+sentinel://127.0.0.1,10.0.0.1/m"}).status();
  EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-AUTH-0022");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the Sentinel at 10.0.0.1:26379 is not"));
}

}  // namespace
}  // namespace sluice::meta
