#include "tests/services/queue/wire.h"

#include <future>
#include <thread>

#include "common/daemon/daemon.h"
#include "common/queue_client/queue_watch.h"
#include "common/testing/data.h"
#include "services/queue/convert.h"
#include "services/queue/program.h"

namespace sluice::queue {
namespace {
using testing::HasSubstr;
using testing::Not;

TEST_F(WireTest, AJobWhoseWorstCaseDoesNotFitTheMemoryIsToldTheNumbers) {
  JobTable small({.memory_bytes = 100'000});
  const auto set = FromProto(JobRequest());
  ASSERT_TRUE(set.ok());

  std::promise<absl::Status> answer;
  small.SetJob(kJob, "wire", {"controller", 0}, *set,
               [&](Reply reply) { answer.set_value(std::get<absl::Status>(reply)); });

  const absl::Status refused = answer.get_future().get();
  EXPECT_EQ(ReasonOf(refused), "NO_MEMORY");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused))
      << "with a code that may pass by itself, the controller would wait";
  // 3 steps x 1 group x 2 members x (1000 tokens x 20 B + 8192 B).
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(testing::HasSubstr("169152 B"), testing::HasSubstr("100000 B")));
}

TEST_F(WireTest, AStepCrossesTheWireAndBytesComeBackAsTheyWere) {
  Begin();
  const v1::Batch batch = ReadyBatch(0);
  ASSERT_EQ(batch.groups_size(), 1);
  ASSERT_EQ(batch.groups(0).members_size(), 2);
  EXPECT_EQ(batch.groups(0).members(0).trained(), 5u);

  std::vector<common::v1::Want> wants(3);
  wants[0].mutable_owner()->set_group(batch.groups(0).group());  // The prompt.
  for (uint32_t m = 0; m < 2; ++m) {
    wants[1 + m].mutable_owner()->set_group(batch.groups(0).group());
    wants[1 + m].mutable_owner()->set_member(m);
    wants[1 + m].mutable_owner()->set_attempt(1);
  }

  const auto read = Client("t1", trainer_incarnation_)->GetAll(batch.lease().id(), wants);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 5u);  // Prompt; per member a piece and the whole fields.
  EXPECT_EQ((*read)[0].fields[0], Column(3, 0));
  EXPECT_EQ((*read)[1].fields[0], Column(5, 0));
  EXPECT_EQ((*read)[1].fields[1], Column(5, -0.5f));
  EXPECT_EQ((*read)[2].fields[0], std::string(100, 'm'));

  v1::ApplyRequest apply = ApplyOf(batch);
  apply.set_want_cursor(true);

  const auto applied = Client("t1", trainer_incarnation_)->Apply(apply);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(applied->version(), 1);
  EXPECT_FALSE(applied->cursor().empty());
  EXPECT_EQ(applied->ledger().dropped().size(), 14u);  // All reasons, zeros included.

  v1::DurableRequest durable;
  durable.set_version(1);
  durable.set_hash(applied->ledger().hash());
  EXPECT_TRUE(Client("t1", trainer_incarnation_)->Durable(durable).ok());

  v1::StatsRequest stats;
  FillCall("controller", 0, stats.mutable_call());
  EXPECT_EQ(Once<v1::StatsResponse>(stats)->ledger().durable(), 2);

  v1::PeekRequest peek;
  FillCall("controller", 0, peek.mutable_call());
  peek.set_what(v1::PEEK_WHAT_VIOLATIONS);
  EXPECT_EQ(Once<v1::PeekResponse>(peek)->rows_size(), 0);

  metrics_.Update();
  const std::string text = registry_.Text();
  EXPECT_THAT(text, HasSubstr("sluice_queue_durable_total{job_id=\"wire\"} 2"));
  EXPECT_THAT(text, HasSubstr("sluice_queue_ledger_gap_trajectories{job_id=\"wire\"} 0"));
}

TEST_F(WireTest, AParkedCallIsAnsweredByTheCallItWaitsFor) {
  Begin();
  std::thread trainer([&] {
    v1::AcquireBatchRequest request;
    request.set_k(0);
    const auto answer = Client("t1", trainer_incarnation_)->AcquireBatch(request);
    EXPECT_TRUE(answer.ok() && answer->has_batch());
  });

  ReadyBatch(0);
  trainer.join();
}

TEST_F(WireTest, AnAdmitWhoseClientLeftTakesNothing) {
  Begin();
  Admitted(100);  // Takes all slots.
  rpc::Cancel cancel;
  v1::AdmitRequest request;
  FillCall("r1", rollout_incarnation_, request.mutable_call(), true);
  request.set_room(1);

  std::thread leaves([&] {
    v1::AdmitResponse response;
    EXPECT_TRUE(absl::IsCancelled(rpc::Call(*channel_, request, &response, {.cancel = &cancel})));
  });

  const auto waiting = [&] {
    return (*jobs_.Find(kJob))->ReadJob([](const Job& job, Instant) {
      return job.Stats().waiting.at("Admit");
    });
  };

  while (waiting() == 0) std::this_thread::yield();
  cancel.Trigger();
  leaves.join();
  while (waiting() != 0) std::this_thread::yield();
}

TEST_F(WireTest, AMessageWithABadFieldFailsThatRecordAlone) {
  Begin();
  const v1::AdmitResponse admitted = Admitted(1);
  const v1::Grant& grant = admitted.grants(0);

  std::string payload;
  v1::PutHeader header;
  FillCall("r1", rollout_incarnation_, header.mutable_call());
  header.set_seq(1);
  *header.add_records() = PromptRecord(grant, grant.members(0));
  *header.add_records() = SampledRecord(grant, grant.members(0), 2, &payload);
  header.mutable_records(1)->mutable_fields(1)->set_crc32c(1);

  rpc::ClientStream stream(*channel_, *v1::PutMessage::descriptor());
  ASSERT_TRUE(stream.WriteFrame(header, {{.bytes = Column(3, 0)}, {.bytes = payload}}).ok());
  v1::PutAck ack;
  ASSERT_TRUE(stream.Read(&ack));

  EXPECT_EQ(ack.seq(), 1u);
  ASSERT_EQ(ack.failed_size(), 1);
  EXPECT_EQ(ack.failed(0).record(), 1u);
  EXPECT_EQ(ack.failed(0).reason(), "BAD_CRC");

  // A payload that is not what the fields say fails the message, and with it the stream.
  header.mutable_records()->DeleteSubrange(1, 1);
  header.clear_call();
  header.set_seq(2);
  ASSERT_TRUE(stream.WriteFrame(header, {{.bytes = "abc"}}).ok());

  EXPECT_FALSE(stream.Read(&ack));
  EXPECT_TRUE(absl::IsInvalidArgument(stream.Finish()));
}

TEST_F(WireTest, AValueOfANewerBuildIsRefusedByItsPath) {
  v1::SealRequest seal;
  seal.add_items();
  seal.add_items()->set_finish(static_cast<common::v1::Finish>(7));
  const absl::Status status = FromProto(seal).status();
  EXPECT_EQ(ReasonOf(status), "UNKNOWN_VALUE");
  EXPECT_THAT(status.message(), testing::HasSubstr("items.finish: 7 is not a value of Finish"));

  v1::SetJobRequest set = JobRequest();
  set.mutable_spec()->set_filter(static_cast<v1::GroupFilter>(99));
  EXPECT_EQ(ReasonOf(FromProto(set).status()), "UNKNOWN_VALUE");

  set = JobRequest();
  set.mutable_spec()->mutable_queue()->mutable_straggler()->set_policy("later");
  const absl::Status word = FromProto(set).status();
  EXPECT_EQ(ReasonOf(word), "UNKNOWN_VALUE");
  EXPECT_THAT(word.message(),
              testing::HasSubstr("straggler.policy: this queue does not know \"later\""));
}

TEST_F(WireTest, ALargeMemberIsReadInSeveralMessages) {
  Begin();
  const v1::AdmitResponse admitted = Admitted(1);
  const v1::Grant& grant = admitted.grants(0);
  const auto client = Client("r1", rollout_incarnation_);

  {
    sluice::PutStream stream(client.get());
    ASSERT_TRUE(stream.Put(PromptRecord(grant, grant.members(0)), Column(3, 0), nullptr).ok());
    std::string payload;
    common::v1::Record record = SampledRecord(grant, grant.members(0), 1000, &payload);
    ASSERT_TRUE(stream
                    .Put(record, payload,
                         [](const PutOutcome& outcome) {
                           EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                         })
                    .ok());
    ASSERT_TRUE(stream.Flush(absl::Seconds(20)).ok());
  }

  std::vector<common::v1::Want> wants(600);  // 8 KB each: more than one message.
  for (common::v1::Want& want : wants) *want.mutable_owner() = RefOf(grant, grant.members(0));

  const auto read = client->GetAll(grant.members(0).lease().id(), wants);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 600u);
  for (const auto& fetched : *read) EXPECT_EQ(fetched.fields[1], Column(1000, -0.5f));
}

TEST_F(WireTest, WatchTellsTheWholeStateThenWhatChanges) {
  Begin();
  Mutex mu;
  CondVar changed;
  int64_t version = -1, published = -1;
  std::vector<std::string> cancelled;

  const auto client = Client("r1", rollout_incarnation_);
  QueueWatch watch(client.get(), {.on_change = [&](const v1::WatchResponse& change) {
                     MutexLock lock(&mu);
                     EXPECT_EQ(change.queue_incarnation(), 1);
                     version = change.version();
                     if (change.published_size() > 0)
                       published = change.published(0).version().number();
                     for (const v1::CancelHint& hint : change.cancel())
                       cancelled.push_back(hint.reason());
                     changed.NotifyAll();
                   }});
  const auto wait = [&](auto until) {
    MutexLock lock(&mu);
    while (!until()) changed.Wait(&mu);
  };

  wait([&] { return version == 0 && published == 0; });
  ASSERT_TRUE(Client("t1", trainer_incarnation_)->Apply(ApplyOf(ReadyBatch(0))).ok());
  wait([&] { return version == 1; });

  Admitted(1);
  v1::SetJobRequest close = JobRequest();
  close.set_phase(v1::PHASE_CLOSED);
  ASSERT_TRUE(Once<v1::SetJobResponse>(close).ok());
  wait([&] { return !cancelled.empty(); });

  MutexLock lock(&mu);
  EXPECT_EQ(cancelled[0], "closed");
}

TEST_F(WireTest, ShuttingDownEndsParkedCallsWithAReason) {
  Begin();
  absl::Status ended;
  std::thread waits([&] {
    v1::AcquireBatchRequest request;
    FillCall("t1", trainer_incarnation_, request.mutable_call());
    ended = Once<v1::AcquireBatchResponse>(request).status();
  });

  while ((*jobs_.Find(kJob))->ReadJob([](const Job& job, Instant) {
    return job.Stats().waiting.at("AcquireBatch");
  }) == 0)
    std::this_thread::yield();
  jobs_.Stop();
  waits.join();

  EXPECT_TRUE(absl::IsUnavailable(ended));
  EXPECT_EQ(ReasonOf(ended), "SHUTTING_DOWN");
}

TEST_F(WireTest, AJobNotHeardOfIsToldToComeAgain) {
  v1::StatsRequest stats;
  FillCall("controller", 0, stats.mutable_call());
  const absl::Status status = Once<v1::StatsResponse>(stats).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(ReasonOf(status), "NOT_LISTED");

  stats.mutable_call()->mutable_job()->set_job("short");
  EXPECT_TRUE(absl::IsInvalidArgument(Once<v1::StatsResponse>(stats).status()));
}

TEST_F(WireTest, ABrokenRowFailsSetJobWithItsPlace) {
  ASSERT_TRUE(WriteFileAtomic(data_, "{\"q\": \"1\", \"a\": 2}\n{broken\n").ok());
  const absl::Status status = Once<v1::SetJobResponse>(JobRequest()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rows.jsonl:2:2"));
  EXPECT_EQ(DetailOf(status).catalogue, "SLUICE-DATA-0001");
}

TEST_F(WireTest, AFreedJobIsGone) {
  Begin();
  v1::SetJobRequest request = JobRequest();
  request.set_phase(v1::PHASE_CLOSED);
  ASSERT_TRUE(Once<v1::SetJobResponse>(request).ok());
  request.set_phase(v1::PHASE_FREED);
  request.set_revision(++revision_);
  ASSERT_TRUE(Once<v1::SetJobResponse>(request).ok());

  EXPECT_FALSE(jobs_.Find(kJob).ok());
  EXPECT_TRUE(Once<v1::SetJobResponse>(request)->repeat());
}

TEST_F(WireTest, AJobsSeriesEndTenMinutesAfterIt) {
  Begin();
  ManualClock clock;
  metrics::Registry registry;
  Metrics metrics(&registry, &clock);
  const std::shared_ptr<JobRunner> runner = *jobs_.Find(kJob);
  metrics.Add(runner);
  v1::SetJobRequest request = JobRequest();
  request.set_phase(v1::PHASE_CLOSED);
  ASSERT_TRUE(Once<v1::SetJobResponse>(request).ok());

  const auto told = [&] { return metrics.Update(), registry.Text(); };

  EXPECT_THAT(told(), HasSubstr("job_id=\"wire\""));

  clock.Advance(absl::Minutes(9));
  EXPECT_THAT(told(), HasSubstr("job_id=\"wire\""));
  clock.Advance(absl::Minutes(1));
  EXPECT_THAT(told(), Not(HasSubstr("job_id")));

  // A call that ends late does not bring a series back.
  metrics.ObserveWait("wire", "Admit", absl::Seconds(1));
  EXPECT_THAT(told(), Not(HasSubstr("job_id")));

  metrics.Add(runner);  // A freed job's series last as long, from the time it was closed.
  metrics.Remove(runner);
  EXPECT_THAT(told(), Not(HasSubstr("job_id"))) << "it was closed long ago";

  metrics.ObserveSync(absl::Milliseconds(1));
  metrics.ObserveRecovery(absl::Seconds(2));
  EXPECT_THAT(told(), HasSubstr("sluice_queue_recovery_duration_seconds 2"));
  EXPECT_THAT(told(), HasSubstr("sluice_queue_log_fsync_duration_seconds_count 1"));
}

TEST(QueueProgramTest, ADataDirectoryHasOneOwner) {
  const std::string dir = testing_data::TempPath("queue_owner");
  metrics::Registry registry;
  daemon::Flags flags;
  flags.data_dir = dir;
  const daemon::Host host{.flags = &flags, .metrics = &registry};
  const auto first = QueueProgram::Make(host);
  ASSERT_TRUE(first.ok()) << first.status();

  const absl::Status second = QueueProgram::Make(host).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second));
  EXPECT_THAT(std::string(second.message()), HasSubstr(dir));
}

}  // namespace
}  // namespace sluice::queue
