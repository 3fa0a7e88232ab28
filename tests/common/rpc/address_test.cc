#include "common/rpc/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::rpc {
namespace {

using testing::HasSubstr;

TEST(AddressTest, LoopbackNeedsNoTlsAndOtherHostsDo) {
  for (const char* address : {"127.0.0.1:0", "127.3.2.1:65535", "[::1]:7400", "localhost:7400"}) {
    EXPECT_TRUE(CheckAddress(address, /*tls=*/false).ok()) << address;
  }
  for (const char* address : {"10.0.0.1:7400", "queue-0.queue:7410", "[fd00::1]:1", "0.0.0.0:7400",
                              "127.0.0.1.example.org:7400"}) {
    EXPECT_EQ(ReasonOf(CheckAddress(address, /*tls=*/false)), "NOT_LOOPBACK") << address;
    EXPECT_TRUE(CheckAddress(address, /*tls=*/true).ok()) << address;
  }
}

TEST(AddressTest, WhatIsNoHostAndPortIsRefused) {
  for (const char* address :
       {"", ":7400", "host", "host:", "host:-1", "host:65536", "host:7x", "ho st:1", "unix:/tmp/x",
        "::1:7400", "[::1:7400", "[x]:1", "dns:///host:1", "host/path:1", "user@host:1"}) {
    EXPECT_EQ(ReasonOf(CheckAddress(address, /*tls=*/true)), "BAD_ADDRESS") << address;
  }
}

TEST(AddressTest, ADaemonAdvertisesItsListeningAddressUnlessAnotherIsGiven) {
  EXPECT_EQ(*AdvertisedAddress("", "10.0.0.1:7410"), "10.0.0.1:7410");
  EXPECT_EQ(*AdvertisedAddress("queue-0.queue", "0.0.0.0:7410"), "queue-0.queue:7410");
  EXPECT_EQ(*AdvertisedAddress("queue-0.queue:80", "0.0.0.0:7410"), "queue-0.queue:80");
  EXPECT_EQ(*AdvertisedAddress("[fd00::1]", "[::]:7410"), "[fd00::1]:7410");
  EXPECT_EQ(*AdvertisedAddress("[fd00::1]:80", "[::]:7410"), "[fd00::1]:80");
}

TEST(AddressTest, AllInterfacesAreNoAddressToAdvertise) {
  const absl::Status none = AdvertisedAddress("", "0.0.0.0:7410").status();
  EXPECT_EQ(ReasonOf(none), "NO_ADVERTISED_ADDRESS");
  EXPECT_THAT(none.message(), HasSubstr("0.0.0.0:7410"));
  EXPECT_EQ(ReasonOf(AdvertisedAddress("", "[::]:7410").status()), "NO_ADVERTISED_ADDRESS");
  EXPECT_EQ(ReasonOf(AdvertisedAddress("0.0.0.0", "0.0.0.0:7410").status()), "BAD_ADDRESS");
  EXPECT_EQ(ReasonOf(AdvertisedAddress("a b", "0.0.0.0:7410").status()), "BAD_ADDRESS");
}

}  // namespace
}  // namespace sluice::rpc
