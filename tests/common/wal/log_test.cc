#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "common/wal/failpoints.h"
#include "tests/common/wal/world.h"

namespace sluice::wal {
namespace {

TEST(WalLogTest, WhatWasAppendedComesBackInOrder) {
  FaultFileSystem system;
  Items items;
  for (int lives = 0; lives < 4; ++lives) {
    Life life(&system);
    ASSERT_TRUE(life.status.ok()) << life.status;

    EXPECT_EQ(life.recovered, items);
    EXPECT_EQ(life.found.last, items.size());
    EXPECT_FALSE(life.found.torn);

    for (int i = 1; i <= 30; ++i) EXPECT_EQ(life.Append(), items.size() + i);
    items = life.items;
  }
}

TEST(WalLogTest, ASnapshotReplacesTheRecordsBeforeItAndTheirSegmentsAreUsedAgain) {
  FaultFileSystem system;
  Life life(&system);
  size_t most = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 60; ++i) life.Append();
    ASSERT_TRUE(life.Flush());
    EXPECT_GT(life.log->BytesSinceSnapshot(), 60 * 48u);  // A frame header has 48 bytes.
    ASSERT_TRUE(life.TakeSnapshot().ok());
    EXPECT_EQ(life.log->BytesSinceSnapshot(), 0u);
    EXPECT_EQ(life.log->stats().snapshot, life.items.size());
    most = std::max(most, system.Snapshot().size());
  }

  EXPECT_LE(most, 8u) << "files: a snapshot, the current segment, some spares";
  life.log.reset();
  Life again(&system);

  EXPECT_EQ(again.recovered, life.items);
  EXPECT_EQ(again.found.snapshot, life.items.size());
  EXPECT_EQ(again.found.records, 0u);
}

TEST(WalLogTest, WhatAFullDiskDoesNotLetASnapshotRemoveGoesAfterTheNext) {
  // The end of the names that cannot be changed, and how many changes of them succeed before.
  for (const auto& [refused, succeed] : {std::pair(".snap", 0), std::pair(".seg", 1)}) {
    SCOPED_TRACE(refused);
    FaultFileSystem system;
    Life life(&system);
    life.Append();
    ASSERT_TRUE(life.TakeSnapshot().ok());
    for (int i = 0; i < 200; ++i) life.Append();
    ASSERT_TRUE(life.Flush());
    ASSERT_GT(life.log->stats().segments, 4u);
    const size_t segments = life.log->stats().segments;

    std::atomic<int> allowed = succeed;
    system.SetFault([&](uint64_t, const std::string& name, const std::string& path) {
      const bool changes_name = name == "remove" || name == "rename";
      return changes_name && absl::EndsWith(path, refused) && allowed-- <= 0
                 ? absl::ResourceExhaustedError("No space left on device")
                 : absl::OkStatus();
    });
    EXPECT_TRUE(life.TakeSnapshot().ok()) << "the new snapshot is in place";
    EXPECT_EQ(life.log->stats().snapshot, life.items.size());
    EXPECT_EQ(life.log->BytesSinceSnapshot(), 0u);
    EXPECT_EQ(life.log->stats().segments, segments - succeed);

    system.SetFault(nullptr);
    life.Append();
    ASSERT_TRUE(life.Flush());
    ASSERT_TRUE(life.TakeSnapshot().ok());
    size_t snapshots = 0, segment_files = 0;
    for (const auto& [path, bytes] : system.Snapshot()) {
      if (absl::EndsWith(path, ".snap")) ++snapshots;
      if (absl::EndsWith(path, ".seg")) ++segment_files;
    }
    EXPECT_EQ(snapshots, 1u);
    EXPECT_EQ(segment_files, life.log->stats().segments);
    EXPECT_LE(segment_files, 2u);
    life.log.reset();

    EXPECT_EQ(Life(&system).recovered, life.items);
  }
}

TEST(WalLogTest, RecordsGoOnWhileASnapshotIsWritten) {
  FaultFileSystem system;
  Life life(&system);
  for (int i = 0; i < 10; ++i) life.Append();
  ASSERT_TRUE(life.Flush());

  // These records come while the snapshot is written. Its sync waits until they are durable.
  system.SetFault([&](uint64_t, const std::string& name, const std::string& path) {
    if (name == "allocate" && path.ends_with("snapshot.tmp")) {
      for (int i = 0; i < 5; ++i) life.Append();
    }
    return absl::OkStatus();
  });

  ASSERT_TRUE(life.TakeSnapshot().ok());
  ASSERT_TRUE(life.Flush());

  life.log.reset();
  Life again(&system);
  EXPECT_EQ(again.recovered, life.items);
  EXPECT_EQ(again.found.snapshot, 10u);
  EXPECT_EQ(again.found.records, 5u);
}

TEST(WalLogTest, ARecordLargerThanASegmentGetsOneOfItsOwn) {
  FaultFileSystem system;
  Life life(&system);
  life.Append();
  life.Append({9, std::string(3000, 'h'), std::string(100000, 'p')});
  life.Append();
  ASSERT_TRUE(life.Flush());
  life.log.reset();

  EXPECT_EQ(Life(&system).recovered, life.items);
}

TEST(WalLogTest, ManyThreadsAppendAndEachPositionIsDurableOnce) {
  FaultFileSystem system;
  Life life(&system);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> sum = 0;

  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) sum += life.log->Append(MakeRecord(MakeItem(i)));
    });
  }

  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 2000u * 2001 / 2);
  EXPECT_TRUE(life.AwaitDurable(2000));
  EXPECT_LT(life.log->stats().syncs, 2000u) << "commits are grouped";
}

// Gives the log memory for each payload, and expects the payload in that memory.
class AllocatingRebuild : public Rebuild {
 public:
  absl::StatusOr<Memory> Allocate(uint8_t, absl::string_view head, uint64_t size) override {
    auto owner = std::make_shared<std::string>(size, '\0');
    given.push_back(owner->data());
    heads.emplace_back(head);
    return Memory{owner, owner->data()};
  }
  absl::Status OnRecord(Entry entry) override {
    if (!entry.payload.empty()) {
      EXPECT_EQ(entry.payload.data(), given.back());
      EXPECT_EQ(entry.head, heads.back());
    }
    return Rebuild::OnRecord(std::move(entry));
  }
  std::vector<const char*> given;
  std::vector<std::string> heads;
};

TEST(WalLogTest, PayloadIsReadIntoMemoryOfTheReplay) {
  FaultFileSystem system;
  Items items;
  {
    Life life(&system);
    for (int i = 0; i < 20; ++i) life.Append();
    life.Append({1, "large", std::string(3000000, 'z')});
    items = life.items;
  }

  AllocatingRebuild rebuild;
  ASSERT_TRUE(Scan(&system, kDir, &rebuild, nullptr).ok());
  EXPECT_EQ(rebuild.items, items);
}

TEST(WalLogTest, ADirectoryHasOneOwner) {
  const std::string dir = testing_data::TempPath("wal-owner");
  Log::Options options = Life::SmallOptions(FileSystem::Real());
  {
    Life first(options, dir);
    ASSERT_TRUE(first.status.ok()) << first.status;
    first.Append();
    ASSERT_TRUE(first.Flush());

    Life second(options, dir);
    EXPECT_EQ(second.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(second.status), "DATA_DIR_IN_USE");
  }

  EXPECT_EQ(Life(options, dir).recovered.size(), 1u);
  ASSERT_TRUE(RemoveTree(dir).ok());
}

TEST(WalLogTest, AFailedSyncEndsTheLogForGood) {
  for (const char* broken : {"sync", "write"}) {
    FaultFileSystem system;
    Life life(&system);
    life.Append();
    ASSERT_TRUE(life.Flush());
    std::atomic<int> failed = 0;
    system.SetFault([&](uint64_t, const std::string& name, const std::string& path) {
      if (name != broken || path.find("/log-") == std::string::npos) return absl::OkStatus();
      ++failed;
      return absl::UnknownError("Input/output error");
    });

    life.Append();
    EXPECT_EQ(life.AwaitFatal().message(), "Input/output error");

    for (int i = 0; i < 5; ++i) life.Append();
    EXPECT_FALSE(life.Flush());

    life.log->Close();
    EXPECT_EQ(failed, 1) << "never tried again";
    EXPECT_EQ(life.fatals, 1);
    EXPECT_EQ(life.durable(), 1u) << "nothing more is acknowledged";
    EXPECT_FALSE(life.TakeSnapshot().ok());
  }
}

TEST(WalLogTest, AFullDiskIsToldAheadWaitedOutAndLosesNothing) {
  FaultFileSystem system;
  Log::Options options = Life::SmallOptions(&system);
  options.reserve_bytes = 1024;
  Life life(options, kDir);
  life.Append();

  ASSERT_TRUE(life.Flush());
  EXPECT_EQ(life.log->space(), Space::kOk);

  system.SetCapacity(2 * options.segment_bytes);  // As much as is allocated already.
  while (life.log->stats().segments < 2) {
    life.Append();
    ASSERT_TRUE(life.Flush()) << "there is room still";
  }

  life.AwaitSpace(Space::kLow);  // A third segment cannot be allocated ahead.
  while (life.log->space() != Space::kFull) {
    life.Append();
    ASSERT_TRUE(life.Flush());
  }

  life.AwaitSpace(Space::kFull);  // The report comes a moment after space() has changed.
  EXPECT_THAT(life.spaces, testing::ElementsAre(Space::kLow, Space::kFull));

  // Once the reserve is used up, records wait.
  for (int i = 0; i < 40; ++i) life.Append();
  EXPECT_GT(life.log->stats().pending_bytes, 0u);

  system.SetCapacity(1 << 20);
  ASSERT_TRUE(life.Flush());
  life.AwaitSpace(Space::kOk);
  EXPECT_EQ(life.fatals, 0);

  life.log.reset();
  EXPECT_EQ(Life(&system).recovered, life.items);
}

// A file system in which the thread that allocates ahead waits, while the system is held, as soon
// as it asks for the free space.
class LateAllocation : public FaultFileSystem {
 public:
  absl::StatusOr<uint64_t> FreeBytes(const std::string& dir) override {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    MutexLock lock(&mu_);
    while (held_ && absl::string_view(name) == "log-files") changed_.Wait(&mu_);
    return FaultFileSystem::FreeBytes(dir);
  }
  void Hold(bool held) {
    MutexLock lock(&mu_);
    held_ = held;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(WalLogTest, AFullDiskIsToldBeforeTheReserveIsUsedHoweverLateItIsLookedAt) {
  LateAllocation system;
  Log::Options options = Life::SmallOptions(&system);
  options.reserve_bytes = 1024;
  Life life(options, kDir);
  system.SetCapacity(2 * options.segment_bytes);
  system.Hold(true);

  while (life.log->space() != Space::kFull) {
    life.Append();
    ASSERT_TRUE(life.Flush()) << "there is room still";
  }

  life.Append();
  EXPECT_TRUE(life.Flush()) << "the reserve was left alone";

  system.Hold(false);
}

TEST(WalLogTest, ASnapshotMakesRoomOnAFullDisk) {
  FaultFileSystem system;
  Life life(&system);
  for (int i = 0; i < 60; ++i) life.Append();
  ASSERT_TRUE(life.Flush());
  uint64_t used = 0;
  for (const auto& [path, bytes] : system.Snapshot()) used += bytes.size();
  system.SetCapacity(used + 100);
  const absl::Status full = life.TakeSnapshot();

  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << "there is no room for it";
  EXPECT_GT(life.log->BytesSinceSnapshot(), 0u);
  EXPECT_FALSE(system.Snapshot().contains(std::string(kDir) + "/snapshot.tmp"));

  system.SetCapacity(used + 20000);
  ASSERT_TRUE(life.TakeSnapshot().ok());
  for (int i = 0; i < 60; ++i) life.Append();
  ASSERT_TRUE(life.Flush()) << "in recycled segments";
  life.log.reset();

  EXPECT_EQ(Life(&system).recovered, life.items);
}

TEST(WalLogTest, LittleFreeDiskIsLowThoughSegmentsCanBeAllocated) {
  FaultFileSystem system;
  Log::Options options = Life::SmallOptions(&system);
  options.low_bytes = 100000;
  Life life(options, kDir);
  system.SetCapacity(90000);
  life.AwaitSpace(Space::kLow);
  system.SetCapacity(200000);
  life.AwaitSpace(Space::kOk);
}

TEST(WalLogTest, AWriteThatFindsTheDiskFullIsRepeated) {
  FaultFileSystem system;
  Life life(&system);
  std::atomic<int> refusals = 3;
  system.SetFault([&](uint64_t, const std::string& name, const std::string&) {
    return name == "write" && refusals-- > 0
               ? absl::ResourceExhaustedError("No space left on device")
               : absl::OkStatus();
  });

  for (int i = 0; i < 5; ++i) life.Append();
  ASSERT_TRUE(life.Flush());
  life.log.reset();

  EXPECT_EQ(Life(&system).recovered, life.items);
}

TEST(WalLogTest, ADiskFullAtOpenStillRecovers) {
  FaultFileSystem system;
  Log::Options options = Life::SmallOptions(&system);
  options.segment_bytes = 1 << 20;
  Items items;
  {
    Life life(options, kDir);
    for (int i = 0; i < 20; ++i) life.Append();
    items = life.items;
  }

  for (const auto& [path, bytes] : system.Snapshot()) {
    if (path.find("spare") != std::string::npos) system.Erase(path);
  }
  system.SetCapacity(300000);  // No further segment fits.
  Life life(options, kDir);

  ASSERT_TRUE(life.status.ok()) << life.status;
  EXPECT_EQ(life.recovered, items);

  life.Append();
  EXPECT_TRUE(life.Flush());
}

#ifdef SLUICE_FAILPOINTS
// Runs two lives on the real disk, which pass every failpoint, and keeps `acknowledged` at the
// durable position. Returns false if the log failed on the way.
bool PassAll(const std::string& dir, std::atomic<uint64_t>* acknowledged) {
  const Log::Options options = Life::SmallOptions(FileSystem::Real());
  for (int lives = 0; lives < 2; ++lives) {
    Life life(options, dir);
    if (!life.status.ok()) return false;
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 5; ++i) life.Append();
      if (!life.Flush()) return false;
      *acknowledged = life.durable();
      if (round == 8 && !life.TakeSnapshot().ok()) return false;
    }
  }

  return true;
}

// The items that PassAll() appends are the first 120: two lives, of 12 rounds with 5 items each.
Items AllItems(int count) {
  Items items;
  for (int i = 0; i < count; ++i) items.push_back(MakeItem(i));
  return items;
}

TEST(WalFailpointTest, ALogKilledAtAnyFailpointComesBack) {
  const std::string dir = testing_data::TempPath("wal-kill");
  auto* const acknowledged =
      new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<uint64_t>(0);

  for (const char* name : kFailpoints) {
    for (const int nth : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(name, " hit ", nth));
      ASSERT_TRUE(RemoveTree(dir).ok());
      *acknowledged = 0;
      const pid_t child = fork();
      ASSERT_GE(child, 0);

      if (child == 0) {
        (void)ArmFailpoint(name, "kill", nth);
        PassAll(dir, acknowledged);
        _exit(0);
      }

      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(nth == 2 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
          << "it was not hit";

      Life life(Life::SmallOptions(FileSystem::Real()), dir);
      ASSERT_TRUE(life.status.ok()) << life.status;
      ASSERT_NO_FATAL_FAILURE(ExpectPrefix(life.recovered, AllItems(120), *acknowledged));

      life.Append();
      EXPECT_TRUE(life.Flush());
    }
  }

  munmap(acknowledged, 4096);
  ASSERT_TRUE(RemoveTree(dir).ok());
}

TEST(WalFailpointTest, AnErrorAtAnyFailpointEndsTheLogAndLosesNothing) {
  const std::string dir = testing_data::TempPath("wal-error");
  for (const char* name : kFailpoints) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(RemoveTree(dir).ok());
    std::atomic<uint64_t> acknowledged = 0;

    ASSERT_TRUE(ArmFailpoint(name, "error", 1).ok());
    PassAll(dir, &acknowledged);
    ASSERT_TRUE(ArmFailpoint(name, "", 1).ok());
    Life life(Life::SmallOptions(FileSystem::Real()), dir);

    ASSERT_TRUE(life.status.ok()) << life.status;
    ASSERT_NO_FATAL_FAILURE(ExpectPrefix(life.recovered, AllItems(120), acknowledged));
  }

  ASSERT_TRUE(RemoveTree(dir).ok());
}
#endif

}  // namespace
}  // namespace sluice::wal
