#include "common/queue_client/queue_client.h"
#include "tests/integration/queue_scene.h"

// A real queue, killed while a job runs, and what its clients find afterwards.
namespace sluice::integration {
namespace {

class QueueRecoveryTest : public QueueScene {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(QueueScene::SetUp());
    spec_.mutable_queue()->mutable_keep()->set_durability("full");
  }

  // Kills the queue and starts it again on its data directory. The rollout reports its version
  // again.
  void KillQueue() {
    ASSERT_EQ(cluster_.Kill("queue-0"), absl::OkStatus());
    ASSERT_EQ(cluster_.Start("queue-0"), absl::OkStatus());
    queue::v1::RenewRequest renew;
    *renew.mutable_call() = CallOf(rollout_);
    common::v1::Loaded& loaded = *renew.add_loaded();
    loaded.mutable_version()->set_incarnation(kIncarnation);
    loaded.set_verified(true);
    queue::v1::RenewResponse renewed;
    ASSERT_EQ(rpc::Call(queue(), renew, &renewed), absl::OkStatus());
    EXPECT_EQ(renewed.lost_size(), 0);
  }

  std::string Violations() {
    queue::v1::PeekRequest peek;
    *peek.mutable_call() = CallOf("controller");
    peek.set_what(queue::v1::PEEK_WHAT_VIOLATIONS);
    queue::v1::PeekResponse rows;
    EXPECT_EQ(rpc::Call(queue(), peek, &rows), absl::OkStatus());
    return rows.rows_size() == 0 ? "" : rows.DebugString();
  }
};

TEST_F(QueueRecoveryTest, AKilledQueueComesBackWithWhatItAcknowledgedAndHandsOutTheSameBatch) {
  SetUpJob();
  const queue::v1::AdmitResponse admitted = Admit();
  ASSERT_EQ(admitted.grants_size(), 2);
  WriteAndSeal(admitted.grants(0));
  const std::string before = State();
  KillQueue();
  EXPECT_EQ(State(), before);

  WriteAndSeal(admitted.grants(1));  // With leases from before the kill.

  queue::v1::LeaseTasksRequest tasks;
  *tasks.mutable_call() = CallOf(reward_, /*with_request=*/true);
  tasks.set_generation(1);
  queue::v1::Room& room = *tasks.add_rooms();
  room.set_pool("cpu");
  room.set_count(8);
  queue::v1::LeaseTasksResponse leased, again;
  ASSERT_EQ(rpc::Call(queue(), tasks, &leased), absl::OkStatus());
  ASSERT_EQ(leased.tasks_size(), 4);

  KillQueue();
  ASSERT_EQ(rpc::Call(queue(), tasks, &again), absl::OkStatus());
  EXPECT_TRUE(again.repeat());

  again.clear_repeat();
  EXPECT_EQ(again.SerializeAsString(), leased.SerializeAsString());

  for (const queue::v1::Task& task : leased.tasks()) {
    common::v1::Record record;
    *record.mutable_owner() = task.owner();
    record.set_task(task.id());
    record.set_lease(task.lease().id());
    record.set_last(true);
    const double reward = 0.5 * task.owner().member();
    AddInlineField("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
    AddInlineField("task_reward", common::v1::DTYPE_F64,
                   {reinterpret_cast<const char*>(&reward), sizeof(reward)}, &record);

    const auto ack = PutOnce(CallOf(reward_), record, "");
    ASSERT_EQ(ack.status(), absl::OkStatus());
    EXPECT_EQ(ack->failed_size(), 0) << ack->DebugString();
  }

  const queue::v1::Batch batch = Acquire(0);
  KillQueue();
  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  queue::v1::AcquireBatchResponse same;
  ASSERT_EQ(rpc::Call(queue(), acquire, &same), absl::OkStatus());
  EXPECT_TRUE(same.repeat());
  EXPECT_EQ(same.batch().SerializeAsString(), batch.SerializeAsString());

  Train(same.batch());
  KillQueue();
  EXPECT_EQ(Violations(), "");
}

TEST_F(QueueRecoveryTest, AQueueThatIsStoppedInPeaceLosesNothingAndReplaysNothing) {
  SetUpJob();
  const queue::v1::AdmitResponse admitted = Admit();
  WriteAndSeal(admitted.grants(0));
  const std::string before = State();

  const auto code = cluster_.Terminate("queue-0", absl::Seconds(30));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  ASSERT_EQ(cluster_.Start("queue-0"), absl::OkStatus());

  // A kill after the start changes nothing either. KillQueue() also reports the rollout's version
  // again, which belongs to the state.
  KillQueue();
  EXPECT_EQ(State(), before);
  EXPECT_NE(cluster_.Log("queue-0").find("\"events\":0"), std::string::npos);
}

}  // namespace
}  // namespace sluice::integration
