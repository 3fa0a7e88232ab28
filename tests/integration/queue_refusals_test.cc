#include <limits>

#include "common/queue_client/queue_client.h"
#include "tests/integration/harness/prometheus.h"
#include "tests/integration/queue_scene.h"

// What a running queue refuses to take from workers, so that it is never trained on.
namespace sluice::integration {
namespace {

class QueueRefusals : public QueueScene {};

TEST_F(QueueRefusals, ALogProbThatIsNoNumberLeavesTheMemberAsItWas) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());
  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);

  std::string payload;
  const common::v1::Record record = SampledRecord(granted.grants(0), 0, 0, {7, 8, 2}, &payload,
                                                  std::numeric_limits<float>::quiet_NaN());
  ExpectRefused(rollout_, record, payload);
  ASSERT_NO_FATAL_FAILURE(WriteAndSeal(granted.grants(0)));
}

TEST_F(QueueRefusals, ARewardThatIsNoNumberLeavesTheTaskAsItWas) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());
  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);
  ASSERT_NO_FATAL_FAILURE(WriteAndSeal(granted.grants(0)));

  queue::v1::LeaseTasksRequest request;
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  request.set_generation(1);
  queue::v1::Room& room = *request.add_rooms();
  room.set_pool("cpu");
  room.set_count(1);
  queue::v1::LeaseTasksResponse leased;
  ASSERT_EQ(rpc::Call(queue(), request, &leased), absl::OkStatus());
  ASSERT_EQ(leased.tasks_size(), 1);

  common::v1::Record record;
  *record.mutable_owner() = leased.tasks(0).owner();
  record.set_task(leased.tasks(0).id());
  record.set_lease(leased.tasks(0).lease().id());
  record.set_last(true);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  AddInlineField("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
  AddInlineField("task_reward", common::v1::DTYPE_F64,
                 {reinterpret_cast<const char*>(&nan), sizeof nan}, &record);

  ExpectRefused(reward_, record, "");
}

TEST_F(QueueRefusals, TokensOfAVersionThatIsNotYetTrainedLeaveTheMemberAsItWas) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());
  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);
  std::string payload;
  const common::v1::Record record =
      SampledRecord(granted.grants(0), 0, 0, {7}, &payload, -0.5F, /*version=*/5);
  ExpectRefused(rollout_, record, payload);
}

// Two steps at max_staleness 0; in the second, a member of the first group has two tokens of
// version 0.
class OverAgeTest : public QueueRefusals {
 protected:
  void WriteSecondStep() {
    ASSERT_NO_FATAL_FAILURE(SetUpJob());
    const auto first = Admit();
    for (const queue::v1::Grant& grant : first.grants()) {
      ASSERT_NO_FATAL_FAILURE(WriteAndSeal(grant));
      ASSERT_NO_FATAL_FAILURE(Score());
    }
    ASSERT_NO_FATAL_FAILURE(Train(Acquire(0)));
    ASSERT_NO_FATAL_FAILURE(Publish(1));

    const auto granted = Admit();
    ASSERT_EQ(granted.grants_size(), 2);
    ASSERT_NO_FATAL_FAILURE(WriteAndSeal(granted.grants(0), {1, 1}, /*began=*/0));
    ASSERT_NO_FATAL_FAILURE(Score());
    ASSERT_NO_FATAL_FAILURE(WriteAndSeal(granted.grants(1), {1, 1}));
    ASSERT_NO_FATAL_FAILURE(Score());
  }
};

TEST_F(OverAgeTest, TokensTooOldLeaveTheMaskAtTheCut) {
  ASSERT_NO_FATAL_FAILURE(WriteSecondStep());
  const queue::v1::Batch batch = Acquire(1);

  const queue::v1::BatchMember& member = batch.groups(0).members(0);
  EXPECT_EQ(member.trained(), 1U);
  ASSERT_EQ(member.masked_size(), 1);
  EXPECT_EQ(member.masked(0).first(), 3U);
  EXPECT_EQ(member.masked(0).count(), 2U);
}

TEST_F(OverAgeTest, TokensTooOldThatABlindCutLetThroughAreRefusedAtApplyAndFireAnAlert) {
  const auto prometheus =
      Prometheus::Start({.targets = {cluster_.ops("queue-0")},
                         .rules = SLUICE_SOURCE_DIR "/deploy/monitoring/rules.yaml",
                         .dir = cluster_.dir()});
  ASSERT_TRUE(prometheus.ok()) << prometheus.status();
  ASSERT_EQ(cluster_.Arm("queue-0", "queue.cut.keep_over_age", "error", 1), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(WriteSecondStep());
  const queue::v1::Batch batch = Acquire(1);
  ASSERT_EQ((*prometheus)->AwaitSeries("sluice_queue_ledger_violations_total"), absl::OkStatus());
  ASSERT_EQ((*prometheus)->AwaitSilent("SluiceLedgerBroken"), absl::OkStatus());

  queue::v1::ApplyRequest apply;
  *apply.mutable_call() = CallOf(trainer_);
  apply.set_k(1);
  apply.set_lease(batch.lease().id());
  apply.set_crc32c(batch.crc32c());
  const std::string before = State();

  const absl::Status status = CallOnce(queue(), apply);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("max_staleness"), std::string::npos) << status;
  EXPECT_EQ(State(), before);

  EXPECT_EQ((*prometheus)->AwaitFiring("SluiceLedgerBroken"), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
