#include "tests/integration/queue_scene.h"

namespace sluice::integration {
namespace {

TEST_F(QueueScene, ARepeatChangesOnceALowerIncarnationNothingAndAParkedCallEndsWithAnEdge) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());

  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  ExpectParks<queue::v1::AcquireBatchResponse>(acquire);

  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);

  queue::v1::DropRequest drop;  // The second group cannot be used; another one takes its place.
  *drop.mutable_call() = CallOf(rollout_);
  queue::v1::DropItem& item = *drop.add_items();
  item.mutable_ref()->set_group(granted.grants(1).group());
  item.set_lease(granted.grants(1).members(0).lease().id());
  item.set_reason("prompt_too_long");
  CallChecked<queue::v1::DropResponse>(drop, {"items.repeat"});

  const auto again = Admit();
  ASSERT_EQ(again.grants_size(), 1);

  for (const queue::v1::Grant& grant : {granted.grants(0), again.grants(0)}) {
    ASSERT_NO_FATAL_FAILURE(WriteAndSeal(grant));
    ASSERT_NO_FATAL_FAILURE(Score());
  }
  ASSERT_NO_FATAL_FAILURE(Train(Acquire(0)));

  queue::v1::StatsRequest stats;
  *stats.mutable_call() = CallOf("controller");
  EXPECT_EQ(CallChecked<queue::v1::StatsResponse>(stats).ledger().dropped().at("prompt_too_long"),
            2);

  queue::v1::PeekRequest peek;
  *peek.mutable_call() = CallOf("controller");
  peek.set_what(queue::v1::PEEK_WHAT_VIOLATIONS);
  EXPECT_EQ(CallChecked<queue::v1::PeekResponse>(peek).rows_size(), 0);

  queue::v1::RetaskRequest retask;
  *retask.mutable_call() = CallOf("controller");
  retask.set_mode(queue::v1::RETASK_MODE_READMIT);
  EXPECT_EQ(CallChecked<queue::v1::RetaskResponse>(retask).count(), 0u)
      << "nothing is in quarantine";
  EXPECT_EQ(ListUncalledMethods("sluice.queue.v1.QueueService", called_), "");
}

}  // namespace
}  // namespace sluice::integration
