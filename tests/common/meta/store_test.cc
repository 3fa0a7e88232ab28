// The conformance suite of job stores, which runs against each kind of the registry, and tests of
// SQLite alone.

#include "common/meta/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/meta/backup.h"
#include "common/meta/sqlite.h"
#include "tests/integration/harness/redis_group.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::meta {
namespace {

using integration::RedisGroup;
using integration::RedisServer;
using ::testing::ElementsAre;

std::vector<std::string> Keys(const std::vector<Entry>& entries) {
  std::vector<std::string> keys;
  for (const Entry& entry : entries) keys.push_back(entry.key);
  return keys;
}

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice_meta_XXXXXX").string();
    SLUICE_CHECK(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string path;
};

class StoreTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    target_.holder = "the test";
    // Otherwise to open an empty Redis would take seconds.
    target_.lease.renew = absl::Milliseconds(200);
    target_.lease.poll = absl::Milliseconds(50);
    if (GetParam() == "sqlite") {
      target_.url = absl::StrCat("sqlite:", dir_.path, "/store");
    } else if (absl::EndsWith(GetParam(), "+sentinel")) {
      RedisGroup* const group = SharedGroup(absl::StartsWith(GetParam(), "rediss"));
      ASSERT_NE(group, nullptr);
      target_.url = group->url();
      target_.ca_file = group->server(0).endpoint().ca_file;
      group->server(0).Run({"FLUSHALL"});
      group->server(0).Run({"HSET", "sluice:state", "term", group->FirstTerm()});
    } else {
      RedisServer::Options options{.durable = true};
      if (GetParam() == "rediss")
        options.tls_dir = integration::MakeRedisTlsDir(dir_.path + "/tls");
      server_ = RedisServer::Start(options);
      ASSERT_NE(server_, nullptr);
      target_.url = absl::StrCat(GetParam(), "://", server_->endpoint().str());
      target_.ca_file = server_->endpoint().ca_file;
    }
    Reopen();
  }

  // Sentinels need seconds until they know each other, so all tests of this process share a group.
  static RedisGroup* SharedGroup(bool tls) {
    static const TempDir dir;
    static std::unique_ptr<RedisGroup> groups[2];
    if (groups[tls] == nullptr) {
      groups[tls] = RedisGroup::Start(
          {.tls_dir = tls ? integration::MakeRedisTlsDir(dir.path + "/tls") : ""});
    }
    return groups[tls].get();
  }

  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<Store>> store = Open(target_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  TempDir dir_;
  std::unique_ptr<RedisServer> server_;
  Target target_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreTest, GetAnswersWhatPutWroteWithItsRevision) {
  const absl::StatusOr<int64_t> revision = store_->Put("names/a", std::string("\0\xff", 2));
  ASSERT_TRUE(revision.ok());

  const absl::StatusOr<Entry> entry = store_->Get("names/a");

  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(entry->value, std::string("\0\xff", 2));
  EXPECT_EQ(entry->revision, *revision);
}

TEST_P(StoreTest, AnEmptyValueIsNotAnAbsentOne) {
  ASSERT_TRUE(store_->Put("a", "").ok());
  EXPECT_EQ(store_->Get("a").value().value, "");
  EXPECT_EQ(store_->Get("b").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreTest, PutWithAStaleRevisionLosesAndTellsTheCurrentOne) {
  const int64_t first = *store_->Put("daemons/r0", "1", 0);
  const int64_t second = *store_->Put("daemons/r0", "2", first);

  const absl::Status lost = store_->Put("daemons/r0", "3", first).status();

  EXPECT_EQ(lost.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(lost), "LOST_RACE");
  EXPECT_EQ(DetailOf(lost).current, absl::StrCat(second));
  EXPECT_EQ(store_->Get("daemons/r0").value().value, "2");
}

TEST_P(StoreTest, PutOfANewKeyLosesWhereOneIsThere) {
  ASSERT_TRUE(store_->Put("names/a", "1", 0).ok());
  EXPECT_EQ(ReasonOf(store_->Put("names/a", "2", 0).status()), "LOST_RACE");
}

TEST_P(StoreTest, ATransactionWhoseCompareFailsDoesNothing) {
  ASSERT_TRUE(store_->Put("a", "1").ok());

  const absl::Status lost =
      store_->Txn({{"absent", 0}, {"a", 0}}, {{"b", "x"}, {"a", std::nullopt}}).status();

  EXPECT_EQ(ReasonOf(lost), "LOST_RACE");
  EXPECT_THAT(Keys(*store_->List("")), ElementsAre("a"));
}

TEST_P(StoreTest, ATransactionsOpsHappenInOrderAtOneRevision) {
  const absl::StatusOr<int64_t> revision = store_->Txn(
      {{"a", 0}}, {{"a", "1"}, {"b", "1"}, {"a", std::nullopt}, {"c", "1"}, {"c", "2"}});

  ASSERT_TRUE(revision.ok());
  const std::vector<Entry> all = *store_->List("");
  EXPECT_THAT(Keys(all), ElementsAre("b", "c"));
  EXPECT_EQ(all[0].revision, *revision);
  EXPECT_EQ(all[1].revision, *revision);
  EXPECT_EQ(all[1].value, "2");
}

TEST_P(StoreTest, RevisionsRiseAndAreNotUsedAgainAfterADeleteAndAReopen) {
  const int64_t first = *store_->Put("a", "1");
  const int64_t deleted = *store_->Txn({}, {{"a", std::nullopt}});
  Reopen();
  const int64_t again = *store_->Put("a", "1", 0);
  EXPECT_LT(first, deleted);
  EXPECT_LT(deleted, again);
}

TEST_P(StoreTest, ListGivesAPrefixInByteOrderAndPages) {
  for (const char* key : {"jobs/1/events/01", "jobs/1/events/02", "jobs/1/events/10",
                          "jobs/10/spec", "jobs/1/spec", "jobs/1/event", "jobs0"}) {
    ASSERT_TRUE(store_->Put(key, key).ok());
  }

  EXPECT_THAT(Keys(*store_->List("jobs/1/events/")),
              ElementsAre("jobs/1/events/01", "jobs/1/events/02", "jobs/1/events/10"));
  EXPECT_THAT(Keys(*store_->List("jobs/1/events/", "jobs/1/events/01", 1)),
              ElementsAre("jobs/1/events/02"));
  EXPECT_THAT(Keys(*store_->List("jobs/1/events/", "jobs/1/events/10")), ElementsAre());
  EXPECT_EQ(store_->List("jobs/")->size(), 6u);
  EXPECT_EQ(store_->List("")->size(), 7u);
}

TEST_P(StoreTest, APrefixThatEndsInTheHighestByteStillEnds) {
  ASSERT_TRUE(store_->Put("a\xff", "1").ok());
  ASSERT_TRUE(store_
                  ->Put("a\xff"
                        "b",
                        "1")
                  .ok());
  ASSERT_TRUE(store_->Put("b", "1").ok());

  EXPECT_EQ(store_->List("a\xff")->size(), 2u);
  EXPECT_EQ(store_->List("\xff")->size(), 0u);
}

TEST_P(StoreTest, WhatWasAnsweredIsThereAfterAReopen) {
  ASSERT_TRUE(store_->Put("a", "1").ok());
  ASSERT_TRUE(store_->Put("b", "2").ok());
  Reopen();
  EXPECT_THAT(Keys(*store_->List("")), ElementsAre("a", "b"));
}

TEST_P(StoreTest, AValueOfTheLimitIsKept) {
  const std::string value(16u << 20, 'v');
  ASSERT_TRUE(store_->Put("a", value).ok());
  Reopen();
  EXPECT_TRUE(store_->Get("a").value().value == value);
}

TEST_P(StoreTest, ItMayBeActedOnWhileItIsOpen) {
  EXPECT_TRUE(store_->CheckMayAct().ok());
  EXPECT_EQ(store_->times_rebuilt(), 0);
}

TEST_P(StoreTest, RefusesAKeyOrValueOverTheLimit) {
  EXPECT_EQ(store_->Put("", "1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Put(std::string(513, 'k'), "1").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Put("a", std::string((16u << 20) + 1, 'v')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->List("")->size(), 0u);
}

TEST_P(StoreTest, OfManyWhoCountByCompareAndSetEachCountsOnce) {
  constexpr int kThreads = 4, kEach = 20;
  std::vector<std::thread> threads;
  std::atomic<int> races = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int done = 0; done < kEach;) {
        const absl::StatusOr<Entry> old = store_->Get("count");
        const int value = old.ok() ? std::stoi(old->value) : 0;
        const absl::StatusOr<int64_t> put =
            store_->Put("count", absl::StrCat(value + 1), old.ok() ? old->revision : 0);
        if (put.ok()) ++done;
        else if (ReasonOf(put.status()) == "LOST_RACE") ++races;
        else FAIL() << put.status();
      }
    });
  }

  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->Get("count").value().value, absl::StrCat(kThreads * kEach))
      << races << " lost races";
}

std::vector<std::string> KindNames() {
  std::vector<std::string> names;
  for (const Kind& kind : Kinds()) names.push_back(kind.name);
  return names;
}
TEST_P(StoreTest, ABackupRestoresEveryEntryIntoAnEmptyStore) {
  // More than one transaction of a restore takes, in number and in bytes.
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(store_->Put(absl::StrCat("large", i), std::string(700 << 10, 'x')).ok());
  std::vector<Op> ops;
  for (int i = 0; i < 1200; ++i) ops.push_back({absl::StrCat("small", i), absl::StrCat(i)});
  ASSERT_TRUE(store_->Txn({}, ops).ok());
  ASSERT_TRUE(store_->Put("zero", std::string("\0\xff", 2)).ok());
  const std::vector<Entry> before = store_->List("").value();
  const std::string copy = EncodeBackup(before);
  for (const Entry& entry : before) ASSERT_TRUE(store_->Txn({}, {{entry.key, std::nullopt}}).ok());

  const absl::StatusOr<std::vector<Entry>> read = DecodeBackup(copy);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(RestoreBackup(*store_, *read, /*replace=*/false), absl::OkStatus());

  const std::vector<Entry> after = store_->List("").value();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].key, before[i].key);
    EXPECT_EQ(after[i].value, before[i].value) << after[i].key;
  }
  EXPECT_FALSE(IsHalfRestored(*store_).value());
}

TEST_P(StoreTest, ARestoreReplacesWhatIsThereOnlyIfToldTo) {
  ASSERT_TRUE(store_->Put("old", "1").ok());
  const std::vector<Entry> entries = {{.key = "new", .value = "2"}};

  EXPECT_EQ(ReasonOf(RestoreBackup(*store_, entries, /*replace=*/false)), "NOT_EMPTY");
  EXPECT_EQ(store_->Get("old").value().value, "1");

  ASSERT_EQ(RestoreBackup(*store_, entries, /*replace=*/true), absl::OkStatus());
  EXPECT_THAT(Keys(store_->List("").value()), ElementsAre("new"));
}

TEST_P(StoreTest, ARestoreThatWasBrokenOffIsSeen) {
  // A value over the limit ends it.
  const std::vector<Entry> entries = {{.key = "a", .value = "1"},
                                      {.key = "b", .value = std::string((16u << 20) + 1, 'x')}};
  EXPECT_FALSE(RestoreBackup(*store_, entries, /*replace=*/false).ok());
  EXPECT_TRUE(IsHalfRestored(*store_).value());

  EXPECT_EQ(RestoreBackup(*store_, {entries[0]}, /*replace=*/true), absl::OkStatus());
  EXPECT_FALSE(IsHalfRestored(*store_).value());
  EXPECT_THAT(Keys(store_->List("").value()), ElementsAre("a"));
}

TEST(BackupTest, EveryCutAndEveryFlippedByteIsFound) {
  const std::string copy =
      EncodeBackup({{.key = "jobs/1/spec", .value = "spec"}, {.key = "names/a", .value = ""}});
  ASSERT_TRUE(DecodeBackup(copy).ok());
  for (size_t i = 0; i < copy.size(); ++i) {
    EXPECT_FALSE(DecodeBackup(copy.substr(0, i)).ok()) << i;
    std::string bad = copy;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(DecodeBackup(bad).ok()) << i;
  }
  EXPECT_FALSE(DecodeBackup(copy + "x").ok());
}

INSTANTIATE_TEST_SUITE_P(EveryKind, StoreTest, testing::ValuesIn(KindNames()),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"+", "_"}});
                         });

TEST(OpenTest, AnUnknownKindIsRefusedWithTheKnownOnes) {
  const absl::Status status = Open({.url = "etcd:here"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("sqlite"));
}

TEST(SqliteTest, AFileThatIsNoDatabaseIsDataLoss) {
  TempDir dir;
  std::ofstream(dir.path + "/store") << std::string(8192, 'x');
  EXPECT_EQ(OpenSqlite(dir.path + "/store").status().code(), absl::StatusCode::kDataLoss);
}

TEST(SqliteTest, AnotherProgramsDatabaseAndANewerFormatAreRefused) {
  TempDir dir;
  const std::string path = dir.path + "/store";
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);

  ASSERT_EQ(sqlite3_exec(db, "CREATE TABLE t (x)", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_EQ(OpenSqlite(path).status().code(), absl::StatusCode::kFailedPrecondition);
  // The id that Sluice gives its files, with the format after the newest.
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA application_id=1397508419; PRAGMA user_version=2", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);

  sqlite3_close(db);
  EXPECT_EQ(OpenSqlite(path).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SqliteTest, AMissingFolderIsNamed) {
  const absl::Status status = OpenSqlite("/nonexistent/folder/meta.db").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nonexistent/folder/meta.db"));
}

}  // namespace
}  // namespace sluice::meta
