#include "tools/sluice/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "common/base/file.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;

TEST(Fleet, TwoCoresGiveOneThreadEach) {
  const ThreadShares shares = ShareThreads(2, 1);
  EXPECT_EQ(shares.trainer, 1);
  EXPECT_EQ(shares.rollout, 1);
  EXPECT_EQ(ShareThreads(16, 2).rollout, 4);
  EXPECT_EQ(ShareThreads(1, 4).rollout, 1);
}

TEST(Fleet, TheControllerComesFirstAndPortsAreKnownInAdvance) {
  std::vector<std::string> listen;
  for (const DaemonSpec& spec : FleetSpecs({.data_dir = "/d", .rollouts = 2, .rewards = 1, .fixed_ports = true, .cores = 2})) {
    listen.push_back(spec.name + " " + spec.listen + " " + spec.ops);
  }
  EXPECT_THAT(listen, ElementsAre("controller-0 127.0.0.1:7400 127.0.0.1:7401", "queue-0 127.0.0.1:7410 127.0.0.1:7411",
                                  "rollout-0 127.0.0.1:7420 127.0.0.1:7421", "rollout-1 127.0.0.1:7423 127.0.0.1:7424",
                                  "reward-0 127.0.0.1:7430 127.0.0.1:7431", "trainer-0 127.0.0.1:7440 127.0.0.1:7441"));
}

TEST(Fleet, NoTwoDaemonsOfALargeFleetShareAPort) {
  std::set<std::string> addresses;
  const std::vector<DaemonSpec> specs = FleetSpecs({.data_dir = "/d", .rollouts = 11, .rewards = 5, .http = true, .fixed_ports = true, .cores = 2});
  for (const DaemonSpec& spec : specs) {
    addresses.insert(spec.listen);
    addresses.insert(spec.ops);
    if (spec.role == "rollout") addresses.insert(spec.args.back());
  }
  EXPECT_EQ(addresses.size(), 2 * specs.size() + 11);
}

TEST(Fleet, ItsStateReadsBackAsWritten) {
  const std::string dir = ::testing::TempDir() + "/fleet-" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirs(dir).ok());
  EXPECT_EQ(ReadFleetState(dir).status().code(), absl::StatusCode::kNotFound);
  FleetState state{7, 8, "127.0.0.1:9", {}};
  state.daemons.push_back({.name = "queue-0", .role = "queue", .listening = "a", .ops = "b", .log = "c", .pid = 3, .start = 4, .ready = true,
                           .restarts = 2, .last_end = "exit code 1"});
  ASSERT_TRUE(WriteFleetState(dir, state).ok());

  const absl::StatusOr<FleetState> read = ReadFleetState(dir);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FleetStateJson(*read), FleetStateJson(state));
  RemoveFleetState(dir);
  EXPECT_FALSE(ReadFleetState(dir).ok());
  (void)RemoveTree(dir);
}

}  // namespace
}  // namespace sluice::cli
