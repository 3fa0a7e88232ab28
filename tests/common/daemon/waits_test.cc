#include "common/daemon/waits.h"

#include <gtest/gtest.h>

#include <optional>

#include "common/rpc/convert.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::daemon {
namespace {

TEST(WaitsTest, AWaitIsToldWhileItsScopeLastsWithItsAge) {
  ManualClock clock;
  Waits waits("trainer-0", &clock);
  EXPECT_TRUE(waits.Edges().empty());

  {
    std::optional<Waits::Scope> loads =
        waits.Begin({.kind = "STORE", .id = "/m", .cause = "trainer-0 loads the model"});
    clock.Advance(absl::Seconds(3));
    const Waits::Scope moved = waits.Begin({.kind = "BATCH",
                                            .id = "7",
                                            .at = "queue",
                                            .cause = "trainer-0 waits for batch 7",
                                            .next = "it trains it",
                                            .step = 7});

    ASSERT_EQ(waits.Edges().size(), 2u);
    const common::v1::WaitEdge store = waits.Edges()[0], batch = waits.Edges()[1];

    EXPECT_EQ(store.waiter().kind(), common::v1::NODE_KIND_DAEMON);
    EXPECT_EQ(store.waiter().id(), "trainer-0");
    EXPECT_EQ(store.on().kind(), common::v1::NODE_KIND_STORE);
    EXPECT_EQ(rpc::FromProto(store.since()), absl::Seconds(3));
    EXPECT_EQ(batch.waiter().kind(), common::v1::NODE_KIND_STEP);
    EXPECT_EQ(batch.waiter().id(), "7");
    EXPECT_EQ(batch.waiter().daemon(), "trainer-0");
    EXPECT_EQ(batch.on().daemon(), "queue");
    EXPECT_EQ(batch.next(), "it trains it");

    loads.reset();
    EXPECT_EQ(waits.Edges().size(), 1u);
  }

  EXPECT_TRUE(waits.Edges().empty());
}

}  // namespace
}  // namespace sluice::daemon
