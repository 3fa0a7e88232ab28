#include "services/queue/store.h"

#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "services/queue/core/codec.h"
#include "tests/services/queue/durable_job.h"

// A job with its log on a simulated disk that crashes, fails and fills up.
namespace sluice::queue {
namespace {

Spec DurableSpec(Durability level) {
  Spec spec = SmallSpec();
  spec.tasks[0].produces.push_back("rew_tok");
  spec.durability = level;
  spec.member_tokens = 128;
  return spec;
}

// The ledger as bytes, without what repeats and restarts change.
std::string ComparableLedger(DurableJob& job) {
  return job.ReadJob([](const Job& core) {
    Ledger ledger = core.ledger();
    ledger.event = 0;     // A repeated call is an event too.
    ledger.hash.clear();  // Groups of a restarted queue have its incarnation in their ids.
    return BytesOf(ledger);
  });
}

// Runs the script, which must finish.
void RunScript(DurableJob& job) {
  const Script::Result result = Script(&job).Run();
  EXPECT_TRUE(result.finished) << result.failure;
}

// The ledger after a script without faults.
std::string UndisturbedLedger() {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  EXPECT_TRUE(job.Open().ok());
  RunScript(job);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.version(); }), 2);
  return ComparableLedger(job);
}

// A worker that repeats its calls after the restart learns what became of them.
TEST(StoreTest, AJobComesBackWithAllThatWasAnswered) {
  const std::string expected = UndisturbedLedger();
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  ASSERT_TRUE(job.Open().ok());
  const Script::Result first = Script(&job).Run();
  ASSERT_TRUE(first.finished) << first.failure;
  EXPECT_EQ(ComparableLedger(job), expected);

  job.Close();
  disk.Restart();
  ASSERT_TRUE(job.Open().ok());
  EXPECT_EQ(job.replayed, 0u) << "a clean end leaves a snapshot and nothing to replay";
  EXPECT_EQ(ComparableLedger(job), expected);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.queue_incarnation(); }), 2u);

  const Script::Result again = Script(&job).Run();
  EXPECT_TRUE(again.finished) << again.failure;
  EXPECT_EQ(ComparableLedger(job), expected);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.FindViolations(); }),
            std::vector<std::string>());
}

// The machine crashes at each call to the file system in turn. The disk keeps all, none or half of
// what was not synced.
TEST(StoreTest, KilledAtEachLogBoundaryNothingAnsweredIsLost) {
  const std::string expected = UndisturbedLedger();
  uint64_t calls = 0;
  // With the first limit no snapshot is due before the end, with the second one many are.
  for (uint64_t snapshot_bytes : {uint64_t{64} << 20, uint64_t{4} << 10}) {
    bool finished = false;
    for (uint64_t die_at = 1; !finished; ++die_at) {
      wal::FaultFileSystem disk;
      DurableJob job(&disk, DurableSpec(Durability::kFull), snapshot_bytes);
      disk.DieAt(die_at, die_at * 37 % 700);  // The last write may be cut anywhere.
      Script::Result before;
      if (job.Open().ok()) before = Script(&job).Run();
      EXPECT_EQ(before.failure, "");

      finished = before.finished;

      // A script that finished is killed at its end.
      if (!disk.dead()) disk.DieAt(disk.calls() + 1);
      job.Close();

      disk.Crash(
          [&](size_t piece) { return die_at % 3 == 0 || (die_at % 3 == 1 && piece % 2 == 0); });
      const absl::Status opened = job.Open();
      ASSERT_TRUE(opened.ok()) << "killed at call " << die_at << ": " << opened;

      const Script::Result after = Script(&job).Run();
      ASSERT_TRUE(after.finished) << "killed at call " << die_at << ": " << after.failure;
      EXPECT_EQ(ComparableLedger(job), expected) << "killed at call " << die_at;
      EXPECT_EQ(job.ReadJob([](const Job& core) { return core.FindViolations(); }),
                std::vector<std::string>());
      for (const auto& [call, repeat] : after.answered) {
        EXPECT_TRUE(repeat || !before.answered.contains(call))
            << call << " was answered before the kill at call " << die_at << " and is not known";
      }

      ++calls;
      ASSERT_LT(die_at, 5000u);
    }
  }

  EXPECT_GT(calls, 100u);
}

TEST(StoreTest, NoAnswerGoesOutWhileTheDiskDoesNotSync) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  ASSERT_TRUE(job.Open().ok());
  disk.SetFault([&](uint64_t, const std::string& name, const std::string&) {
    return name == "sync" ? absl::UnknownError("the disk does not sync") : absl::OkStatus();
  });

  const SetJob set{.revision = 1, .spec = job.spec()};
  EXPECT_FALSE(job.Ask({"controller", 0}, set).has_value());
  EXPECT_TRUE(job.fatal()) << "a failed sync is final";
}

TEST(StoreTest, ADamagedRecordInTheMiddleIsDataLossThatNamesThePlace) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  ASSERT_TRUE(job.Open().ok());
  RunScript(job);

  disk.DieAt(disk.calls() + 1);
  job.Close();
  disk.Crash([](size_t) { return false; });

  std::string last;
  for (const auto& [path, bytes] : disk.Snapshot()) {
    if (absl::StrContains(path, "log-")) last = path;
  }
  std::string bytes = disk.Snapshot().at(last);
  // Intact records follow, so this is not taken for a last record that the crash cut short.
  bytes[6000] = static_cast<char>(bytes[6000] ^ 0x10);
  disk.Put(last, bytes);

  const absl::Status opened = job.Open();
  EXPECT_TRUE(absl::IsDataLoss(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()), testing::HasSubstr("log-"));
}

TEST(StoreTest, AFullDiskStopsAdmissionThenPutsAndLosesNothing) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  ASSERT_TRUE(job.Open().ok());
  RunScript(job);
  const std::string ledger = ComparableLedger(job);

  const Caller rollout{"r1", 1};
  Id16 request;
  request.bytes[0] = 9;
  job.Call<RenewAnswer>(rollout, Renew{.loaded = {{0, {1, 1}, true}}}).IgnoreError();
  const auto admitted = job.Call<AdmitAnswer>(rollout, Admit{.request = request, .room = 1});
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  ASSERT_EQ(admitted->grants.size(), 1u);
  const queue::Grant& grant = admitted->grants[0];

  // The disk gets no larger, so that the log finds no room for its next segment. The group was
  // admitted before, because from here on the log's thread may report low space at any time.
  uint64_t used = 0;
  for (const auto& [path, bytes] : disk.Snapshot()) used += bytes.size();
  disk.SetCapacity(used);

  // Pieces that the job refuses fill the log too.
  absl::Status refused;
  for (int i = 0; i < 2000 && refused.ok(); ++i) {
    refused =
        job.Call<PutAnswer>(rollout,
                            Put{{PieceRecord({grant.group, 0, 1}, grant.members[0].lease.id,
                                             SegmentRole::kSampled, 900, 100, {{{1, 1}, 100, 0}})}})
            .status();
  }

  EXPECT_EQ(ReasonOf(refused), "DISK_FULL") << refused;
  EXPECT_GT(DetailOf(refused).retry_after, absl::ZeroDuration());

  const auto parked = job.Call<AdmitAnswer>(
      rollout, Admit{.request = Id16{}, .room = 1, .wait = absl::ZeroDuration()});
  ASSERT_TRUE(parked.ok()) << "control calls still fit: " << parked.status();
  ASSERT_TRUE(parked->edge.has_value());
  EXPECT_EQ(parked->edge->on.kind, NodeKind::kStore);

  disk.SetCapacity(~uint64_t{0} >> 1);

  absl::Status put = refused;
  // The log looks for room again only after some time.
  for (const absl::Time end = absl::Now() + absl::Seconds(30); !put.ok() && absl::Now() < end;
       std::this_thread::yield()) {
    put = job.Call<PutAnswer>(rollout,
                              Put{{PieceRecord({.group = grant.group}, grant.members[0].lease.id,
                                               SegmentRole::kPrompt, 0, 4)}})
              .status();
  }

  EXPECT_TRUE(put.ok()) << put;

  job.Close();
  disk.Restart();
  ASSERT_TRUE(job.Open().ok());
  EXPECT_EQ(job.ReadJob(
                [&](const Job& core) { return core.group(grant.group.ordinal)->prompt.tokens(); }),
            4u);
}

TEST(StoreTest, AtLevelMetadataTheBooksComeBackAndThePayloadIsSampledAnew) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kMetadata));
  ASSERT_TRUE(job.Open().ok());
  RunScript(job);

  // Batch 1 is applied. Besides it, one group runs and has a prefix, and one group is sealed.
  const Caller rollout{"r1", 1}, trainer{"t1", 1};
  ASSERT_TRUE(job.Call<AdvanceVersionAnswer>(
                     trainer, AdvanceVersion{.expected = PolicyVersion{1, 1}, .next = {1, 2}})
                  .ok());
  ASSERT_TRUE(job.Call<RenewAnswer>(rollout, Renew{.loaded = {{0, {1, 2}, true}}}).ok());

  Id16 request;
  request.bytes[0] = 9;
  const auto admitted = job.Call<AdmitAnswer>(rollout, Admit{.request = request, .room = 4});
  ASSERT_TRUE(admitted.ok());
  ASSERT_EQ(admitted->grants.size(), 2u);
  const queue::Grant &running = admitted->grants[0], &sealed = admitted->grants[1];

  const auto put = [&](const TrajectoryRef& ref, const Id16& lease, SegmentRole role, uint64_t at,
                       uint32_t count) {
    std::vector<VersionRun> runs;
    if (role == SegmentRole::kSampled) runs = {{{1, 2}, count, 0}};
    const auto answer =
        job.Call<PutAnswer>(rollout, Put{{PieceRecord(ref, lease, role, at, count, runs)}});
    return !answer.ok()             ? answer.status()
           : answer->failed.empty() ? absl::OkStatus()
                                    : answer->failed[0].status;
  };

  for (const queue::Grant* grant : {&running, &sealed}) {
    ASSERT_TRUE(
        put({.group = grant->group}, grant->members[0].lease.id, SegmentRole::kPrompt, 0, 4).ok());
    for (const Member& member : grant->members)
      ASSERT_TRUE(
          put({grant->group, member.member, 1}, member.lease.id, SegmentRole::kSampled, 4, 30)
              .ok());
  }

  for (const Member& member : sealed.members) {
    const TrajectoryRef ref{sealed.group, member.member, 1};
    ASSERT_TRUE(job.Call<PutAnswer>(rollout, Put{{{.owner = ref,
                                                   .lease = member.lease.id,
                                                   .fields = {TextField("messages", "[]")}}}})
                    .ok());
    const uint32_t crc = job.ReadJob([&](const Job& core) {
      return core.group(sealed.group.ordinal)->members[member.member].log.crc32c();
    });
    const auto answer = job.Call<ItemsAnswer>(rollout, Seal{{{.ref = ref,
                                                              .lease = member.lease.id,
                                                              .tokens = 34,
                                                              .crc32c = crc,
                                                              .finish = Finish::kStop}}});
    ASSERT_TRUE(answer.ok() && answer->items[0].status.ok()) << answer->items[0].status;
  }
  const Ledger before = job.ReadJob([](const Job& core) { return core.ledger(); });

  disk.DieAt(disk.calls() + 1);
  job.Close();
  disk.Crash([](size_t) { return false; });
  ASSERT_TRUE(job.Open().ok());
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.FindViolations(); }),
            std::vector<std::string>());

  const Ledger after = job.ReadJob([](const Job& core) { return core.ledger(); });
  EXPECT_EQ(after.accepted, before.accepted);
  EXPECT_EQ(after.hash, before.hash);
  EXPECT_EQ(after.dropped.at("lost"), 2);
  EXPECT_EQ(after.gap(), 0);
  EXPECT_EQ(job.ReadJob([&](const Job& core) { return core.group(sealed.group.ordinal); }),
            nullptr);

  // The holder of the running group is told to send from the beginning, and may do so.
  const TrajectoryRef ref{running.group, 0, 1};
  const Id16 lease = running.members[0].lease.id;

  const auto gap = job.Call<PutAnswer>(
      rollout, Put{{PieceRecord(ref, lease, SegmentRole::kSampled, 34, 5, {{{1, 2}, 5, 0}})}});
  ASSERT_TRUE(gap.ok());
  EXPECT_EQ(ReasonOf(gap->failed[0].status), "NOT_YET");
  EXPECT_EQ(gap->failed[0].watermark, 0u);
  EXPECT_TRUE(put({.group = running.group}, lease, SegmentRole::kPrompt, 0, 4).ok());
  EXPECT_TRUE(put(ref, lease, SegmentRole::kSampled, 4, 30).ok());

  // Batch 1 is trained, but another trainer cannot read it again: the job goes back to a
  // checkpoint, and the groups of the batch are sampled anew.
  SetJob set{.revision = 2,
             .spec = job.spec(),
             .workers = {{"t1", WorkerRole::kTrainer, 2},
                         {"w1", WorkerRole::kReward, 1},
                         {"r1", WorkerRole::kRollout, 1}}};
  ASSERT_TRUE(job.Call<SetJobAnswer>({"controller", 0}, set).ok());

  const Caller next{"t1", 2};
  Cursor cursor{.job = std::string(32, 'd'), .version = 1, .ledger = before};
  cursor.ledger.hash = job.ReadJob([](const Job& core) { return core.batches().at(1).hash; });

  // A cursor whose hash is that of another version is refused.
  const auto wrong = job.Call<RestoreAnswer>(
      next, Restore{.cursor = EncodeCursor(cursor), .mode = RestoreMode::kReplay});
  EXPECT_EQ(ReasonOf(wrong.status()), "BAD_CRC");

  const auto restored = job.Call<RestoreAnswer>(next, Restore{.mode = RestoreMode::kReplay});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->version, 0);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.FindViolations(); }),
            std::vector<std::string>());
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.ledger().gap(); }), 0);
}

// At durability `metadata`, the log has no payload. A restore that replayed batches while their
// payload was in memory must not become a requeue, which forgets them, when the log is replayed.
TEST(StoreTest, ARestoreThatReplayedBatchesAtLevelMetadataIsTheSameAfterARestart) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kMetadata));
  ASSERT_TRUE(job.Open().ok());
  const Script::Result result = Script(&job, /*durable=*/false).Run();
  ASSERT_TRUE(result.finished) << result.failure;

  SetJob set{.revision = 2,
             .spec = job.spec(),
             .workers = {{"t1", WorkerRole::kTrainer, 2},
                         {"w1", WorkerRole::kReward, 1},
                         {"r1", WorkerRole::kRollout, 1}}};
  ASSERT_TRUE(job.Call<SetJobAnswer>({"controller", 0}, set).ok());

  const Caller trainer{"t1", 2};
  const auto restored = job.Call<RestoreAnswer>(trainer, Restore{.mode = RestoreMode::kReplay});
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_EQ(restored->mode, RestoreMode::kReplay);
  ASSERT_EQ(restored->end, 2);

  const auto batch = job.Call<AcquireBatchAnswer>(trainer, AcquireBatch{.k = 0});
  ASSERT_TRUE(batch.ok()) << batch.status();
  ASSERT_TRUE(
      job.Call<ApplyAnswer>(trainer,
                            queue::Apply{.k = 0, .lease = batch->lease.id, .crc32c = batch->crc32c})
          .ok());

  disk.DieAt(disk.calls() + 1);
  job.Close();
  disk.Crash([](size_t) { return false; });
  ASSERT_TRUE(job.Open().ok());

  EXPECT_GT(job.replayed, 0u);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.version(); }), 1);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.batches().size(); }), 2u);
  EXPECT_EQ(job.ReadJob([](const Job& core) { return core.FindViolations(); }),
            std::vector<std::string>());

  // Now the payload is lost, so that the next restore is a requeue.
  set.revision = 3;
  set.workers[0].incarnation = 3;
  ASSERT_TRUE(job.Call<SetJobAnswer>({"controller", 0}, set).ok());
  const auto requeued = job.Call<RestoreAnswer>({"t1", 3}, Restore{.mode = RestoreMode::kReplay});
  ASSERT_TRUE(requeued.ok()) << requeued.status();
  EXPECT_EQ(requeued->mode, RestoreMode::kRequeue);
}

TEST(StoreTest, AJobsTimeStandsStillWhileItsQueueIsGoneAndItsLeasesRunAnew) {
  wal::FaultFileSystem disk;
  DurableJob job(&disk, DurableSpec(Durability::kFull));
  job.clock.Advance(absl::Hours(10));
  ASSERT_TRUE(job.Open().ok());

  const Caller rollout{"r1", 1};
  ASSERT_TRUE(job.Call<SetJobAnswer>({"controller", 0},
                                     SetJob{.revision = 1,
                                            .spec = job.spec(),
                                            .workers = {{"t1", WorkerRole::kTrainer, 1},
                                                        {"r1", WorkerRole::kRollout, 1}}})
                  .ok());
  ASSERT_TRUE(job.Call<RestoreAnswer>({"t1", 1}, Restore{}).ok());
  ASSERT_TRUE(job.Call<RenewAnswer>(rollout, Renew{.loaded = {{0, {1, 0}, true}}}).ok());
  const auto admitted = job.Call<AdmitAnswer>(rollout, Admit{.request = Id16{}, .room = 1});
  ASSERT_EQ(admitted->grants.size(), 1u);
  const Id16 lease = admitted->grants[0].members[0].lease.id;

  // 50 of the lease's 60 s pass before the queue is gone for an hour. Then the lease begins anew.
  job.clock.Advance(absl::Seconds(50));
  job.runner().Tick();
  job.Close();
  disk.Restart();
  job.clock.Advance(absl::Hours(1));

  ASSERT_TRUE(job.Open().ok());
  job.clock.Advance(absl::Seconds(59));
  job.runner().Tick();

  auto renewed = job.Call<RenewAnswer>(rollout, Renew{.leases = {lease}});
  EXPECT_TRUE(renewed->lost.empty());

  job.clock.Advance(absl::Seconds(61));
  job.runner().Tick();
  renewed = job.Call<RenewAnswer>(rollout, Renew{.leases = {lease}});
  EXPECT_EQ(renewed->lost.size(), 1u);
}

TEST(StoreTest, ALogOfAnotherLogicIsRefusedAndSaysWhatToDo) {
  JobReplay replay(
      [](const JobHeader&) { return std::make_shared<Rows>(std::vector<uint64_t>{1000}); },
      nullptr);

  const JobHeader header{
      .job = "d", .spec = DurableSpec(Durability::kFull), .sources = {{.rows = 1000}}};
  const wal::Record record = HeaderRecord(header);
  ASSERT_TRUE(replay.OnRecord({.position = 1, .type = record.type, .head = record.head}).ok());

  // A session record holds the format in its first byte, and the logic in its last.
  wal::Record session = SessionRecord();
  session.head.back() = static_cast<char>(kLogic + 1);
  ASSERT_TRUE(replay.OnRecord({.position = 2, .type = session.type, .head = session.head}).ok());

  const wal::Record event = EventRecord({.input = Tick{}}, Payload::kKept);

  const absl::Status refused =
      replay.OnRecord({.position = 3, .type = event.type, .head = event.head});
  EXPECT_EQ(ReasonOf(refused), "OTHER_LOGIC") << refused;
  EXPECT_THAT(DetailOf(refused).hint, testing::HasSubstr("SIGTERM"));

  session.head[0] = static_cast<char>(kFormat + 1);
  EXPECT_EQ(ReasonOf(replay.OnRecord({.position = 4, .type = session.type, .head = session.head})),
            "NEWER_FORMAT");
}

}  // namespace
}  // namespace sluice::queue
