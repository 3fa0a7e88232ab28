// A process that reads along in a store on a real redis-server, and then opens it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/meta/redis.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::meta {
namespace {
using integration::RedisServer;
using ::testing::HasSubstr;

bool Never() { return false; }

std::vector<std::string> Lines(Store& store) {
  std::vector<std::string> lines;
  const std::vector<Entry> entries = *store.List("");
  for (const Entry& entry : entries)
    lines.push_back(absl::StrCat(entry.key, " ", entry.revision, " ", entry.value));
  return lines;
}

class FollowerTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = RedisServer::Start({.durable = true});
    ASSERT_NE(server_, nullptr);
    target_.url = absl::StrCat("redis://", server_->endpoint().str());
    target_.holder = "the leader";
    target_.lease.renew = absl::Milliseconds(50);
    target_.lease.poll = absl::Milliseconds(10);
    store_ = OpenStore();
    follower_ = *RedisFollower::Make(target_);
  }

  std::unique_ptr<Store> OpenStore(RedisCopy* copy = nullptr) {
    absl::StatusOr<std::unique_ptr<Store>> store = OpenRedis(target_, copy);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  absl::Status Follow() { return follower_->Follow(Never); }

  // Ends the leader, takes over with the copy, and compares with a store that reads everything.
  // Returns how many values were read when it took over.
  int64_t TakeOver() {
    store_ = nullptr;
    store_ = OpenStore(&follower_->copy());
    const int64_t read = follower_->copy().values_read();
    const std::vector<std::string> with_copy = Lines(*store_);
    store_ = nullptr;
    store_ = OpenStore();
    EXPECT_EQ(with_copy, Lines(*store_));
    return read;
  }

  std::unique_ptr<RedisServer> server_;
  Target target_;
  std::unique_ptr<Store> store_;  // Of the leader.
  std::unique_ptr<RedisFollower> follower_;
};

TEST_F(FollowerTest, OnlyWhatHasChangedSinceIsReadAtTheTakeOver) {
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(store_->Put(absl::StrCat("key", i), "a").ok());
  ASSERT_EQ(Follow(), absl::OkStatus());
  EXPECT_EQ(follower_->copy().values_read(), 300);
  EXPECT_EQ(follower_->copy().revision(), 300);
  ASSERT_EQ(Follow(), absl::OkStatus());
  EXPECT_EQ(follower_->copy().values_read(), 0);

  ASSERT_TRUE(store_->Put("key7", "b").ok());
  ASSERT_TRUE(store_->Put("new", "c").ok());
  ASSERT_TRUE(store_->Txn({}, {{"key8", std::nullopt}}).ok());
  EXPECT_EQ(TakeOver(), 2);
  EXPECT_EQ(store_->List("")->size(), 300u);
}

TEST_F(FollowerTest, AnEmptyStoreIsFollowedFromItsFirstTransaction) {
  ASSERT_EQ(Follow(), absl::OkStatus());
  ASSERT_TRUE(store_->Put("a", "1").ok());
  ASSERT_EQ(Follow(), absl::OkStatus());
  EXPECT_EQ(follower_->copy().content().at("a").value, "1");
  EXPECT_EQ(TakeOver(), 0);
}

TEST_F(FollowerTest, ATransactionOfThousandsOfKeysIsReadWhole) {
  ASSERT_EQ(Follow(), absl::OkStatus());
  std::vector<Op> ops;
  for (int i = 0; i < 5000; ++i) ops.push_back({absl::StrCat("key", i), absl::StrCat(i)});
  ASSERT_TRUE(store_->Txn({}, ops).ok());
  ASSERT_EQ(Follow(), absl::OkStatus());
  EXPECT_EQ(follower_->copy().values_read(), 5000);
  EXPECT_EQ(TakeOver(), 0);
}

TEST_F(FollowerTest, AfterAnyTransactionsAndLossesTheCopyIsTheStore) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    for (int turn = 0; turn < 60; ++turn) {
      switch (below(12)) {
        case 0: server_->Run({"XTRIM", "sluice:changes", "MAXLEN", "1"}); break;
        case 1: server_->Run({"DEL", "sluice:changes"}); break;
        case 2:
          // The leader writes everything back with its next transaction or renewal.
          server_->Run({"FLUSHALL"});
          break;
        case 3:
          store_ = nullptr;
          store_ = OpenStore();
          break;
        case 4:
        case 5:
        case 6: (void)Follow(); break;
        default: {
          std::vector<Op> ops;
          for (int i = below(4); i >= 0; --i) {
            ops.push_back({absl::StrCat("key", below(20)), std::nullopt});
            if (below(3) > 0) ops.back().value = absl::StrCat(seed, ".", turn, ".", i);
          }
          ASSERT_TRUE(store_->Txn({}, ops).ok());
        }
      }
    }
    TakeOver();
    follower_ = *RedisFollower::Make(target_);
  }
}

TEST_F(FollowerTest, ACopyThatIsReadWhileAnotherWritesIsExactOnceNobodyWrites) {
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(store_->Put(absl::StrCat("key", i), "a").ok());
  std::atomic<int> follows = 0;
  std::thread writer([&] {
    for (int i = 0; follows < 20; ++i) {
      ASSERT_TRUE(store_
                      ->Txn({}, {{absl::StrCat("key", i % 3000), absl::StrCat(i)},
                                 {absl::StrCat("key", (i * 7) % 3000), std::nullopt}})
                      .ok());
    }
  });
  for (; follows < 20; ++follows) {
    // Every other one reads everything.
    if (follows % 2 == 0) follower_->copy().Take();
    EXPECT_EQ(Follow(), absl::OkStatus());
  }
  writer.join();
  TakeOver();
}

TEST_F(FollowerTest, WhatAFailoverHasLostIsNotMixedWithWhatWasWrittenInstead) {
  ASSERT_TRUE(store_->Put("a", "1").ok());
  const std::string files = server_->dir(), earlier = files + "_earlier";
  std::filesystem::copy(files, earlier, std::filesystem::copy_options::recursive);
  ASSERT_TRUE(store_->Put("lost", "2").ok());
  ASSERT_TRUE(store_->Put("a", "3").ok());
  ASSERT_EQ(Follow(), absl::OkStatus());

  server_->Kill();
  store_ = nullptr;
  std::filesystem::remove_all(files);
  std::filesystem::rename(earlier, files);
  ASSERT_TRUE(server_->Restart().ok());
  server_->Run({"DEL", "sluice:lease"});
  store_ = OpenStore();  // It knows nothing of the lost transactions.
  ASSERT_EQ(*store_->Put("other", "2"), 2);
  ASSERT_EQ(*store_->Put("other", "3"), 3);

  EXPECT_EQ(TakeOver(), 2) << "everything is read again, though the revision is the same";
  EXPECT_TRUE(absl::IsNotFound(store_->Get("lost").status()));
}

TEST_F(FollowerTest, AStoreThatAnOlderBuildWritesIsReadWhenItIsTaken) {
  ASSERT_TRUE(store_->Put("a", "1").ok());
  ASSERT_EQ(Follow(), absl::OkStatus());
  store_ = nullptr;
  // As a build without P:changes writes.
  server_->Run({"HSET", "sluice:values", "a", "2 2"});
  server_->Run({"HSET", "sluice:state", "revision", "2"});

  const absl::Status behind = Follow();
  EXPECT_TRUE(absl::IsUnavailable(behind));
  EXPECT_THAT(std::string(behind.message()), HasSubstr("ends before revision 2"));
  EXPECT_EQ(TakeOver(), 1);
  EXPECT_EQ(store_->Get("a")->value, "2");
}

TEST_F(FollowerTest, AStreamThatCannotBeWrittenDoesNotStopTheStore) {
  server_->Run({"DEL", "sluice:changes"});
  server_->Run({"SET", "sluice:changes", "of another kind"});
  ASSERT_EQ(*store_->Put("a", "1"), 1);
  EXPECT_TRUE(absl::IsUnavailable(Follow()));
  ASSERT_EQ(*store_->Put("a", "2"), 2);
  EXPECT_EQ(Follow(), absl::OkStatus());
  EXPECT_EQ(TakeOver(), 0);
}

TEST_F(FollowerTest, ReadingEndsWhenItIsCancelled) {
  ASSERT_TRUE(store_->Put("a", "1").ok());
  EXPECT_TRUE(absl::IsCancelled(follower_->Follow([] { return true; })));
  EXPECT_EQ(TakeOver(), 1);
}

}  // namespace
}  // namespace sluice::meta
