#include <optional>

#include "tests/services/queue/wire.h"

// Two jobs of a queue that has little memory, through its service.
namespace sluice::queue {
namespace {
using testing::HasSubstr;

constexpr uint64_t kGroupBytes = 2 * (1000 * 20 + 8192);  // A group reserves so much.
// So many groups fit into the memory of all jobs. A job needs three at least.
constexpr int kGroups = 12;

class SharesTest : public WireTest {
 protected:
  SharesTest() : WireTest(kGroups * kGroupBytes + 1000) {}

  static constexpr char kOther[] = "ffeeddccbbaa99887766554433221100";
  // From now on the calls are about `job`.
  void Switch(const std::string& job) {
    job_ = job;
    name_ = job == kJob ? "first" : "second";
  }

  uint64_t BytesOf(const std::string& what) {
    return (*jobs_.Find(job_))->ReadJob([&](const Job& job, Instant) {
      return job.Stats().bytes.at(what);
    });
  }

  // Waits until the job's share has room for so many whole groups. The share follows what the other
  // job holds within a tick of the timer.
  void AwaitShare(uint64_t groups) {
    EXPECT_TRUE(Becomes([&] { return BytesOf("share") / kGroupBytes == groups; }))
        << name_ << " has " << BytesOf("share") / kGroupBytes << " groups, not " << groups;
  }

  // Samples, scores and applies steps. None of them becomes durable, so their groups stay.
  void Train(int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) {
      sampled_version_ = k;
      ASSERT_TRUE(Client("t1", trainer_incarnation_)->Apply(ApplyOf(ReadyBatch(k))).ok());

      v1::AdvanceVersionRequest advance;
      common::v1::PolicyVersion& expected = *advance.mutable_expected();
      expected.set_incarnation(trainer_incarnation_);
      expected.set_number(k);
      *advance.mutable_next() = expected;
      advance.mutable_next()->set_number(k + 1);
      ASSERT_TRUE(Client("t1", trainer_incarnation_)->AdvanceVersion(advance).ok());

      v1::RenewRequest renew;
      *renew.add_loaded()->mutable_version() = advance.next();
      renew.mutable_loaded(0)->set_verified(true);
      ASSERT_TRUE(Client("r1", rollout_incarnation_)->Renew(renew).ok());
    }
  }

  // Asks for a member without waiting. Gets it, or what it would wait for.
  v1::AdmitResponse AdmitNow() {
    v1::AdmitRequest request;
    FillCall("r1", rollout_incarnation_, request.mutable_call(), true);
    request.set_room(1);
    request.mutable_wait();
    const auto answer = Once<v1::AdmitResponse>(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::AdmitResponse();
  }
};

TEST_F(SharesTest, AJobThatHoldsMuchWaitsWhileTheOtherRisesToItsShare) {
  Switch(kJob);
  Begin();
  AwaitShare(kGroups);
  Train(0, 8);
  EXPECT_EQ(BytesOf("reserved"), 8 * kGroupBytes);

  Switch(kOther);
  Begin();  // It is due half of the memory, but the first job gives nothing back yet.
  AwaitShare(kGroups - 8);
  Train(0, 3);
  Switch(kJob);
  AwaitShare(kGroups / 2);

  const v1::AdmitResponse parked = AdmitNow();
  EXPECT_EQ(parked.grants_size(), 0);
  EXPECT_EQ(parked.edge().on().kind(), common::v1::NODE_KIND_BYTES);
  EXPECT_THAT(parked.edge().cause(), HasSubstr("share of the queue's memory"));
  EXPECT_THAT(parked.edge().hint(), HasSubstr("--memory"));

  v1::StatsRequest stats;
  FillCall("controller", 0, stats.mutable_call());
  v1::DurableRequest durable;
  durable.set_version(8);
  durable.set_hash(Once<v1::StatsResponse>(stats)->ledger().hash());
  ASSERT_TRUE(Client("t1", trainer_incarnation_)->Durable(durable).ok());

  EXPECT_EQ(BytesOf("reserved"), 0u);
  EXPECT_EQ(Admitted(1).grants_size(), 1) << "a parked call of it would be answered now";

  Switch(kOther);
  AwaitShare(kGroups / 2);
  Train(3, 6);
  const v1::AdmitResponse full = AdmitNow();
  EXPECT_EQ(full.edge().on().kind(), common::v1::NODE_KIND_BYTES)
      << "the second is held to its half";
}

TEST_F(SharesTest, AQuotaBoundsAJobThatIsAlone) {
  Switch(kJob);
  v1::SetJobRequest request = JobRequest();
  request.mutable_spec()->mutable_queue()->mutable_keep()->set_quota(4 * kGroupBytes);
  ASSERT_TRUE(Once<v1::SetJobResponse>(request).ok());

  v1::RestoreRequest restore;
  restore.set_mode(v1::RESTORE_MODE_REPLAY);
  ASSERT_TRUE(Client("t1", trainer_incarnation_)->Restore(restore).ok());
  v1::AdvanceVersionRequest advance;
  advance.mutable_next()->set_incarnation(trainer_incarnation_);
  ASSERT_TRUE(Client("t1", trainer_incarnation_)->AdvanceVersion(advance).ok());
  Load();
  Train(0, 4);

  const v1::AdmitResponse parked = AdmitNow();
  EXPECT_EQ(parked.grants_size(), 0);
  EXPECT_EQ(parked.edge().on().kind(), common::v1::NODE_KIND_BYTES);
  EXPECT_THAT(parked.edge().cause(), HasSubstr("the quota is reserved"));
  EXPECT_THAT(parked.edge().hint(), HasSubstr("queue.keep.quota"));
}

TEST_F(SharesTest, AReadersBytesAreTheSameWhileAnotherJobWrites) {
  Switch(kJob);
  Begin();
  const v1::Batch batch = ReadyBatch(0);
  std::vector<common::v1::Want> wants(2);
  for (uint32_t m = 0; m < 2; ++m) {
    wants[m].mutable_owner()->set_group(batch.groups(0).group());
    wants[m].mutable_owner()->set_member(m);
    wants[m].mutable_owner()->set_attempt(1);
  }

  const auto trainer = Client("t1", trainer_incarnation_);
  const auto alone = trainer->GetAll(batch.lease().id(), wants);
  ASSERT_TRUE(alone.ok()) << alone.status();

  std::atomic<bool> stop = false;
  std::thread reader([&] {
    do {
      const auto read = trainer->GetAll(batch.lease().id(), wants);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->size(), alone->size());
      for (size_t i = 0; i < read->size(); ++i) ASSERT_EQ((*read)[i].fields, (*alone)[i].fields);
    } while (!stop);
  });

  Switch(kOther);
  Begin();
  Train(0, 4);
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace sluice::queue
