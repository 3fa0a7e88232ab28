#include "tools/sluice/local_rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/sandbox/sandbox.h"
#include "common/testing/data.h"
#include "tests/common/plugins/folder.h"

namespace sluice::cli {
namespace {

job::v1::RewardEntry& AddEntry(const std::string& name, const std::string& verifier,
                               job::v1::Reward* reward) {
  job::v1::RewardEntry& entry = *reward->add_rewards();
  entry.set_name(name);
  entry.set_verifier(verifier);
  entry.set_weight(1);
  entry.mutable_timeout()->set_seconds(60);
  return entry;
}

// The score is 1 if the plug-in can read the file that the answer names.
job::v1::Reward ReaderOfFiles() {
  const std::string file = WritePlugin("local_rewards/reader.py", R"(
def score(data_source, solution_str, ground_truth, extra_info=None):
    try:
        open(solution_str).close()
        return 1.0
    except OSError:
        return 0.0
)");
  job::v1::Reward reward;
  (*AddEntry("reader", "plugin", &reward).mutable_args()->mutable_fields())["verl"]
      .set_string_value(absl::StrCat(file, ":score"));
  return reward;
}

TEST(LocalRewardsTest, PluginsOfAJobDoNotHaveTheRightsOfWhoeverEvaluatesIt) {
  if (!sandbox::Launcher::Make({}).ok()) GTEST_SKIP() << "this machine has no sandbox";
  const std::string secret = WritePlugin("local_rewards_secret/key", "s3cret");
  const job::v1::Reward reward = ReaderOfFiles();
  // A sandbox has a user of its own, who must get to the plug-in.
  ASSERT_EQ(chmod(testing_data::TempPath("").c_str(), 0755), 0);
  const auto score = [&](LocalRewards::PluginRights rights) {
    const auto rewards = LocalRewards::Make(reward, {}, rights);
    EXPECT_TRUE(rewards.ok()) << rewards.status();
    const Score score = (*rewards)->scorer().Run({.text = secret}, {{"answer", "x"}}, "digits");
    EXPECT_EQ(score.status, "ok") << score.info << score.fault;
    return score.task_reward;
  };
  EXPECT_EQ(score(LocalRewards::PluginRights::kOwn), 1);
  EXPECT_EQ(score(LocalRewards::PluginRights::kSandbox), 0);
}

TEST(LocalRewardsTest, WhatOnlyCandidatesNeedIsNotNeededHere) {
  job::v1::Reward reward;
  AddEntry("right", "exact", &reward);
  job::v1::RewardEntry& judge = AddEntry("new", "judge", &reward);
  auto& args = *judge.mutable_args()->mutable_fields();
  args["judge"].set_string_value("strict");
  args["template"].set_string_value("rubric");
  args["rubric"].set_string_value("r");
  EXPECT_EQ(ReasonOf(LocalRewards::Make(reward, {}).status()), "NO_JUDGE");

  judge.set_shadow("right");
  const auto rewards = LocalRewards::Make(reward, {});
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_EQ((*rewards)->waiting(), 0u);
}

}  // namespace
}  // namespace sluice::cli
