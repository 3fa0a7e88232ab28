#include "common/rpc/channel_cache.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice::rpc {
namespace {

TEST(ChannelCacheTest, AnAddressHasOneChannel) {
  ChannelCache cache(kDaemonRoles);
  const auto a = cache.Find("127.0.0.1:1"), b = cache.Find("127.0.0.1:2");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
  EXPECT_EQ(*cache.Find("127.0.0.1:1"), *a);
  EXPECT_EQ(cache.size(), 2u);
}

TEST(ChannelCacheTest, AChannelThatIsAskedForStaysAndOthersAreForgotten) {
  ManualClock clock;
  ChannelCache cache(kDaemonRoles, absl::Minutes(10), &clock);
  const auto used = cache.Find("127.0.0.1:1");
  ASSERT_TRUE(used.ok());
  for (int i = 2; i < 1000; ++i) {
    clock.Advance(absl::Minutes(5));
    ASSERT_TRUE(cache.Find(absl::StrCat("127.0.0.1:", i)).ok());
    EXPECT_EQ(*cache.Find("127.0.0.1:1"), *used);
  }
  EXPECT_LE(cache.size(), 4u);
}

TEST(ChannelCacheTest, AnAddressThatIsNoneIsNotKept) {
  ChannelCache cache(kDaemonRoles);
  EXPECT_FALSE(cache.Find("no port").ok());
  EXPECT_EQ(cache.size(), 0u);
}

}  // namespace
}  // namespace sluice::rpc
