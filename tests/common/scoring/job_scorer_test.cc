#include "common/scoring/job_scorer.h"

#include "gtest/gtest.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

job::v1::Reward RewardOf(std::initializer_list<const char*> verifiers) {
  job::v1::Reward reward;
  for (const char* const verifier : verifiers) {
    job::v1::RewardEntry* const entry = reward.add_rewards();
    entry->set_name(verifier);
    entry->set_verifier(verifier);
    entry->set_weight(1);
  }
  return reward;
}

TEST(JobScorerTest, ProgramsAndJudgesHavePoolsOfTheirOwn) {
  EXPECT_EQ(TaskPoolOf(RewardOf({"exact"})), "cpu");
  EXPECT_EQ(TaskPoolOf(RewardOf({"exact", "code"})), "sandbox");
  EXPECT_EQ(TaskPoolOf(RewardOf({"code", "judge"})), "io");
  job::v1::Reward candidate = RewardOf({"exact", "plugin"});
  candidate.mutable_rewards(1)->set_shadow("exact");
  EXPECT_EQ(TaskPoolOf(candidate), "cpu") << "no task waits for a candidate";
}

TEST(JobScorerTest, ATryOfAProgramMayTakeTheTimeOfAllItsTests) {
  job::v1::Reward reward = RewardOf({"code"});
  reward.mutable_rewards(0)->mutable_timeout()->set_seconds(10);
  // 100 tests of 10 s, then the checker on each, and the turns of both.
  EXPECT_GE(LongestTry(reward), absl::Seconds(2 * 100 * 10) + 2 * kLongestTurn);

  const absl::Duration usual = LongestTry(reward);
  reward.mutable_sandbox()->mutable_wall()->set_seconds(60);
  EXPECT_GT(LongestTry(reward), usual);
  (*reward.mutable_rewards(0)->mutable_args()->mutable_fields())["max_tests"].set_number_value(2);
  EXPECT_LT(LongestTry(reward), usual);
}

TEST(JobScorerTest, ATryTakesWhatItsEntriesTakeTogetherAndNothingForCandidates) {
  job::v1::Reward reward = RewardOf({"exact", "judge", "plugin"});
  for (job::v1::RewardEntry& entry : *reward.mutable_rewards())
    entry.mutable_timeout()->set_seconds(10);
  (*reward.mutable_rewards(1)->mutable_args()->mutable_fields())["votes"].set_number_value(3);
  EXPECT_EQ(LongestTry(reward), absl::Seconds(10 + 3 * 40 + 40));

  reward.mutable_rewards(1)->set_shadow("exact");
  reward.mutable_rewards(2)->set_shadow("exact");
  EXPECT_EQ(LongestTry(reward), absl::Seconds(10));
}

TEST(JobScorerTest, CandidatesChangeNotHowTheRewardIsScored) {
  job::v1::Reward reward = RewardOf({"exact", "plugin"});
  reward.mutable_rewards(1)->set_granularity("group");
  EXPECT_TRUE(ScoresGroups(reward));
  EXPECT_TRUE(ScoresOutside(reward, "digits"));
  reward.mutable_rewards(1)->set_shadow("exact");
  EXPECT_FALSE(ScoresGroups(reward));
  EXPECT_FALSE(ScoresOutside(reward, "digits"));
}

// Whether a job's own code runs, and in which sandbox, depends on it.
TEST(JobScorerTest, OnlyWhatNamesAServerAloneIsNoProgram) {
  const auto programs = [](std::initializer_list<std::pair<const char*, const char*>> args) {
    job::v1::Reward reward = RewardOf({"plugin"});
    for (const auto& [key, value] : args) {
      (*reward.mutable_rewards(0)->mutable_args()->mutable_fields())[key].set_string_value(value);
    }
    return PluginProgramsOf(reward).size();
  };
  EXPECT_EQ(programs({{"grpc", "style"}}), 0u);
  EXPECT_EQ(programs({{"verl", "/p/r.py:f"}}), 1u);
  EXPECT_EQ(programs({{"verl", "/p/r.py:f"}, {"grpc", ""}}), 1u);
  EXPECT_EQ(programs({{"verl", ""}, {"grpc", "style"}}), 1u) << "it is refused where it is read";
  EXPECT_EQ(programs({{"verl", "/p/r.py:f"}, {"grpc", "style"}}), 1u);
}

TEST(JobScorerTest, TheToolchainsArePartOfTheGenerationOfPrograms) {
  const auto generation = [](const job::v1::Reward& reward, const char* identity) {
    return MakeScorer(reward, {.toolchains = identity})->generation();
  };
  EXPECT_NE(generation(RewardOf({"code"}), "g++ 12"), generation(RewardOf({"code"}), "g++ 13"));
  EXPECT_EQ(generation(RewardOf({"exact"}), "g++ 12"), generation(RewardOf({"exact"}), "g++ 13"));
}

}  // namespace
}  // namespace sluice
