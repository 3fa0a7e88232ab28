#include "services/reward/sandboxes.h"

#include <gtest/gtest.h>

#include "common/sandbox/sandbox.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::reward {
namespace {

job::v1::Reward RewardOf(std::initializer_list<const char*> verifiers) {
  job::v1::Reward reward;
  for (const char* const verifier : verifiers) {
    job::v1::RewardEntry& entry = *reward.add_rewards();
    entry.set_name(verifier);
    entry.set_verifier(verifier);
    entry.set_weight(1);
  }
  return reward;
}

TEST(SandboxesTest, AServerThatOnlyCandidatesUseHoldsUpNoLeasing) {
  Sandboxes sandboxes(/*allow_unsafe=*/false, *run_code::Client::Make({.url = "http://10.0.0.1"}));
  job::v1::Reward reward = RewardOf({"exact", "code"});
  const auto counts = sandboxes.Make(reward);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_NE(counts->capacity, nullptr);

  reward.mutable_rewards(1)->set_shadow("exact");
  const auto candidate = sandboxes.Make(reward);
  ASSERT_TRUE(candidate.ok()) << candidate.status();
  EXPECT_NE(candidate->run, nullptr) << "it is compared all the same";
  EXPECT_EQ(candidate->capacity, nullptr);
}

TEST(SandboxesTest, ATierOfServersIsThatOfProgramsAndNotOfPlugins) {
  if (!sandbox::Launcher::Make({}).ok()) GTEST_SKIP() << "this machine has no sandbox";
  Sandboxes sandboxes(/*allow_unsafe=*/false, *run_code::Client::Make({.url = "http://10.0.0.1"}));
  job::v1::Reward reward = RewardOf({"plugin", "code"});
  reward.mutable_sandbox()->set_tier("T2");
  EXPECT_EQ(sandboxes.MakePluginLaunch(reward).status(), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::reward
