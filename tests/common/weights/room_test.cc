// Versions that wait until the engine has room for them.
#include <atomic>

#include "tests/common/weights/fleet.h"

namespace sluice {
namespace {

class RoomTest : public FleetTest {
 protected:
  RoomTest() {
    for (size_t i = 0; i < 2; ++i) {
      Join(i, {.fan_out = FanOut::kChain,
               .has_room = [this, i] { return i != 0 || has_room_.load(); }});
    }
    AwaitListeners(2);
  }
  // Changes an element, so that the next version is a delta of it.
  PublishedVersion PublishChange(int64_t number) {
    weights_.as<float>(0)[number] += 1;
    return *publisher_->Publish(weights_, {1, number}, "");
  }
  void MakeRoom() {
    has_room_ = true;
    rollout(0).subscriber().OnRoom();
  }

  std::atomic<bool> has_room_ = false;  // At the first rollout of the chain.
  TensorSet weights_ = initial_;
};

TEST_F(RoomTest, WhileOneWaitsNewerOnesArePassedOnAndTheNewestIsTakenWhenThereIsRoom) {
  PublishedVersion last;
  for (int64_t number = 1; number <= 5; ++number) {
    last = PublishChange(number);
    ASSERT_TRUE(rollout(1).Await(last.version)) << "its chain leads through the one that waits";
    ASSERT_TRUE(rollout(0).AwaitDownloads(static_cast<int>(number)));
  }
  EXPECT_EQ(rollout(1).counts().parent, rollout(0).member().id);
  EXPECT_TRUE(rollout(0).activated().empty());
  ASSERT_TRUE(rollout(0).subscriber().room_wait().has_value());
  EXPECT_EQ(rollout(0).subscriber().room_wait()->version, last.version);

  MakeRoom();
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  EXPECT_EQ(rollout(0).activated().size(), 1u) << "the older ones were replaced";
  EXPECT_GT(rollout(0).activated()[0].waited, absl::ZeroDuration());
  EXPECT_FALSE(rollout(0).subscriber().room_wait().has_value());
}

TEST_F(RoomTest, ADeltaThatWaitsIsDroppedWhenTheWeightsThatItBeginsAtAreDamaged) {
  const PublishedVersion last = PublishChange(1);
  ASSERT_TRUE(rollout(0).AwaitDownloads(1));
  rollout(0).subscriber().OnDamaged({1, 0}, "a bit has flipped", "");
  MakeRoom();
  ASSERT_TRUE(rollout(0).Await(last.version));
  EXPECT_EQ(rollout(0).state(), last.state);
  ASSERT_EQ(rollout(0).activated().size(), 1u);
  EXPECT_NE(rollout(0).activated()[0].tensors, nullptr) << "it is whole";
}

}  // namespace
}  // namespace sluice
