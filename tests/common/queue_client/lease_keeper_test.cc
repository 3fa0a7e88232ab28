#include "common/queue_client/lease_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice {
namespace {

using queue::v1::RenewRequest;
using queue::v1::RenewResponse;

class LeaseKeeperTest : public testing::Test {
 protected:
  // Answers each Renew with `ttl` and the `lost` leases, and hands the request to the test.
  void Serve(absl::Duration ttl, std::vector<std::string> lost = {}) {
    served_.queue.on_renew = [this, ttl, lost](const RenewRequest& request,
                                               RenewResponse* response) {
      *response->mutable_ttl() = rpc::ToProto(ttl);
      for (const std::string& lease : lost) response->add_lost(lease);
      renews_.Push(request);
      return absl::OkStatus();
    };
    served_.Start();
  }
  static common::v1::Loaded Loaded(int64_t number) {
    common::v1::Loaded loaded;
    loaded.mutable_version()->set_number(number);
    return loaded;
  }

  // Declared before served_, whose handlers push to it, so that it is destroyed after them.
  Handed<RenewRequest> renews_;
  Served served_;
};

TEST_F(LeaseKeeperTest, LoadedVersionsAreToldBeforeSyncReturnsAndAgainAtOnceWhenTheyChange) {
  Serve(absl::Hours(1));
  LeaseKeeper keeper(served_.client.get(), {});
  keeper.SetLoaded({Loaded(4)});

  ASSERT_TRUE(keeper.Sync().ok());
  EXPECT_EQ(renews_.Pop().loaded(0).version().number(), 4);

  keeper.SetLoaded({Loaded(5)});
  const RenewRequest changed = renews_.PopUntil(
      [](const RenewRequest& request) { return request.loaded(0).version().number() != 4; });

  EXPECT_EQ(changed.loaded(0).version().number(), 5);
}

TEST_F(LeaseKeeperTest, AQueueThatWasStartedAnewIsToldAtOnceWhatIsHeldAndLoaded) {
  Serve(absl::Hours(1));
  LeaseKeeper keeper(served_.client.get(), {});
  keeper.SetLoaded({Loaded(4)});
  ASSERT_TRUE(keeper.Sync().ok());
  keeper.Hold("a");
  keeper.RenewNow();
  const RenewRequest told =
      renews_.PopUntil([](const RenewRequest& request) { return request.leases(0) == "a"; });

  EXPECT_EQ(told.loaded(0).version().number(), 4);
  EXPECT_THAT(told.leases(), testing::ElementsAre("a"));
}

TEST_F(LeaseKeeperTest, AKeeperThatHoldsNothingRenewsNoLeaseOfAnEarlierSession) {
  Serve(absl::Hours(1));
  LeaseKeeper keeper(served_.client.get(), {});
  keeper.SetLoaded({Loaded(4)});
  ASSERT_TRUE(keeper.Sync().ok());

  // No leases at all would mean all that the queue has for this worker.
  EXPECT_THAT(renews_.Pop().leases(), testing::ElementsAre(std::string(16, '\0')));
}

TEST_F(LeaseKeeperTest, LeasesAreRenewedEachThirdOfTheirTtl) {
  Serve(absl::Milliseconds(3));
  LeaseKeeper keeper(served_.client.get(), {.first_period = absl::Milliseconds(1)});
  keeper.Hold("b");
  keeper.Hold("a");
  keeper.Forget("a");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(renews_.Pop().leases(), testing::Contains("b"));
}

TEST_F(LeaseKeeperTest, ALostLeaseIsToldOnceAndOneGivenUpIsNot) {
  Serve(absl::Hours(1), {"kept", "given up"});
  Handed<std::vector<std::string>> lost;
  LeaseKeeper keeper(served_.client.get(),
                     {.on_lost = [&](const std::vector<std::string>& leases) { lost.Push(leases); },
                      .first_period = absl::Hours(1)});
  keeper.Hold("kept");
  keeper.Hold("given up");
  keeper.Forget("given up");

  ASSERT_TRUE(keeper.Sync().ok());
  EXPECT_THAT(lost.Pop(), testing::ElementsAre("kept"));
  ASSERT_TRUE(keeper.Sync().ok());

  keeper.Hold("kept");
  ASSERT_TRUE(keeper.Sync().ok());
  EXPECT_THAT(lost.Pop(), testing::ElementsAre("kept"));
}

TEST_F(LeaseKeeperTest, ManyLeasesAreRenewedAThousandAtATime) {
  Serve(absl::Hours(1));
  LeaseKeeper keeper(served_.client.get(), {.first_period = absl::Hours(1)});
  for (int i = 0; i < 2500; ++i) keeper.Hold(std::to_string(i));

  ASSERT_TRUE(keeper.Sync().ok());
  EXPECT_EQ(renews_.Pop().leases_size(), 1000);
  EXPECT_EQ(renews_.Pop().leases_size(), 1000);
  EXPECT_EQ(renews_.Pop().leases_size(), 500);
}

TEST_F(LeaseKeeperTest, AFencedWorkerIsToldSo) {
  served_.queue.on_renew = [](const RenewRequest&, RenewResponse*) {
    return Error(absl::StatusCode::kAborted, "FENCED", "incarnation 3 < 4");
  };
  served_.Start();
  Handed<absl::Status> failed;
  LeaseKeeper keeper(served_.client.get(),
                     {.on_failed = [&](absl::Status why) { failed.Push(why); }});

  EXPECT_EQ(ReasonOf(keeper.Sync()), "FENCED");
  EXPECT_EQ(ReasonOf(failed.Pop()), "FENCED");
}

TEST_F(LeaseKeeperTest, AStopEndsAWait) {
  served_.queue.on_renew = [this](const RenewRequest& request, RenewResponse*) {
    renews_.Push(request);
    return ErrorWith(absl::StatusCode::kUnavailable, {.retry_after = absl::Hours(1)}, "later");
  };

  served_.Start();
  LeaseKeeper keeper(served_.client.get(), {});
  keeper.SetLoaded({Loaded(1)});
  renews_.Pop();
  keeper.Stop();

  EXPECT_EQ(keeper.Sync().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sluice
