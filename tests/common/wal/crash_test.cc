#include <functional>

#include "tests/common/wal/world.h"

// Simulates machines that crash at any call, with any part of the unsynced bytes left on the disk.
namespace sluice::wal {
namespace {

// Appends batches of several records, fills segments, takes a snapshot, and so uses the freed files
// again. Returns early if the log dies.
void Work(Life* life, uint64_t seed) {
  SplitMix64 random(seed);
  for (int round = 0; round < 10; ++round) {
    for (uint64_t n = 1 + random.Below(6); n > 0; --n) life->Append();
    if (random.Below(3) != 0 && !life->Flush()) return;
    if (round == 5 && !life->TakeSnapshot().ok()) return;
  }
  life->Flush();
}

// Opens the log after a crash, checks what came back, works on, crashes once more and checks again.
void Recover(std::unique_ptr<FaultFileSystem> system, const Items& appended, Position acknowledged,
             uint64_t seed) {
  Items second;
  Position second_acknowledged;
  {
    Life life(system.get());
    ASSERT_TRUE(life.status.ok()) << life.status;
    ASSERT_NO_FATAL_FAILURE(ExpectPrefix(life.recovered, appended, acknowledged));

    for (int i = 0; i < 3; ++i)
      life.Append({1, absl::StrCat("second life ", i), std::string(40, 's')});
    life.AwaitDurable(life.recovered.size() + 1);
    system->DieAt(system->calls() + 1);  // No record becomes durable any more.
    life.log.reset();
    second = life.items;
    second_acknowledged = life.durable();
  }

  SplitMix64 random(seed);
  system->Crash([&](size_t) { return random.Below(2) == 0; });
  Life life(system.get());

  ASSERT_TRUE(life.status.ok()) << life.status;
  ExpectPrefix(life.recovered, second, second_acknowledged);
}

// Calls `check` with a crashed copy of `down` for each choice of the unsynced pieces that survive:
// for all choices if there are at most 4 pieces, else for 20 (all, none, and random ones).
void ForChoices(const FaultFileSystem& down, uint64_t seed,
                const std::function<void(std::unique_ptr<FaultFileSystem>, uint64_t)>& check) {
  const size_t pieces = down.unsynced();
  const uint64_t choices = pieces <= 4 ? 1u << pieces : 20;
  SplitMix64 random(seed);
  for (uint64_t choice = 0; choice < choices; ++choice) {
    std::unique_ptr<FaultFileSystem> copy = down.Clone();
    const bool all = choice == 0, none = choice == 1;
    copy->Crash([&](size_t piece) {
      if (pieces <= 4) return (choice >> piece & 1) != 0;
      return all || (!none && random.Below(2) == 0);
    });

    SCOPED_TRACE(absl::StrCat("choice ", choice, " of ", pieces, " unsynced pieces"));
    check(std::move(copy), choice);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(WalCrashTest, AtEveryCallNothingAcknowledgedIsLostWhateverIsLeftOfTheRest) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    bool died = true;
    for (uint64_t call = 1; died; ++call) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", down at call ", call));
      FaultFileSystem system(64);
      // A first life leaves records to recover and files to use again.
      Items appended;
      Position acknowledged = 0;
      {
        Life life(&system);
        for (int i = 0; i < 20; ++i) life.Append();
        ASSERT_TRUE(life.Flush());
        ASSERT_TRUE(life.TakeSnapshot().ok());

        for (int i = 0; i < 3; ++i) life.Append();
        ASSERT_TRUE(life.Flush());
        life.log.reset();
        appended = life.items;
        acknowledged = appended.size();
      }

      system.Restart();
      // A write at that call is cut at some byte.
      system.DieAt(system.calls() + call, (call * 37) % 200);
      {
        Life life(&system);
        if (life.status.ok()) {
          Work(&life, seed);
          life.log.reset();
          appended = life.items;
          acknowledged = life.durable();
        }
      }

      died = system.dead();
      ForChoices(system, seed * 1000 + call,
                 [&](std::unique_ptr<FaultFileSystem> copy, uint64_t choice) {
                   Recover(std::move(copy), appended, acknowledged, seed + choice);
                 });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(WalCrashTest, TheFirstLifeOfADirectoryMayEndAtAnyCall) {
  bool died = true;
  for (uint64_t call = 1; died; ++call) {
    SCOPED_TRACE(absl::StrCat("down at call ", call));
    FaultFileSystem system(64);
    system.DieAt(call, 20);
    Items appended;
    Position acknowledged = 0;
    {
      Life life(&system);
      if (life.status.ok()) {
        Work(&life, 7);
        life.log.reset();
        appended = life.items;
        acknowledged = life.durable();
      }
    }

    died = system.dead();
    ForChoices(system, call, [&](std::unique_ptr<FaultFileSystem> copy, uint64_t choice) {
      Recover(std::move(copy), appended, acknowledged, choice);
    });
    if (HasFatalFailure()) return;
  }
}

TEST(WalCrashTest, ManyLivesInARowKeepOneHistory) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SplitMix64 random(seed);
    FaultFileSystem system(128);
    Items appended;
    Position acknowledged = 0;

    for (int lives = 0; lives < 12; ++lives) {
      if (random.Below(4) != 0)
        system.DieAt(system.calls() + 1 + random.Below(120), random.Below(300));
      {
        Life life(&system);
        if (life.status.ok()) {
          ASSERT_NO_FATAL_FAILURE(ExpectPrefix(life.recovered, appended, acknowledged));
          Work(&life, random.Next());
          life.log.reset();
          appended = life.items;
          acknowledged = life.durable();
        } else {
          ASSERT_TRUE(system.dead()) << life.status;
        }
      }

      if (random.Below(2) == 0) system.Restart();
      else system.Crash([&](size_t) { return random.Below(2) == 0; });
    }
  }
}

// A page whose sync failed may be clean in memory and yet be missing on the disk. So Open writes
// again whatever it returns from such pages.
TEST(WalCrashTest, WhatIsReadAfterAFailedSyncIsOnTheDiskBeforeItCounts) {
  FaultFileSystem system(64);
  Items appended;
  {
    Life life(&system);
    life.Append();
    ASSERT_TRUE(life.Flush());
    system.SetFault([](uint64_t, const std::string& name, const std::string&) {
      return name == "sync" ? absl::UnknownError("EIO") : absl::OkStatus();
    });
    life.Append();

    EXPECT_EQ(life.AwaitFatal().message(), "EIO");
    appended = life.items;
  }

  system.SetFault(nullptr);
  system.Restart();
  Life again(&system);

  ASSERT_TRUE(again.status.ok()) << again.status;
  ASSERT_EQ(again.recovered, appended);

  std::unique_ptr<FaultFileSystem> copy = system.Clone();
  copy->Crash([](size_t) { return false; });
  Life third(copy.get());

  EXPECT_EQ(third.recovered, appended);
}

}  // namespace
}  // namespace sluice::wal
