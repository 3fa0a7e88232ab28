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

TEST(JobScorerTest, TheToolchainsArePartOfTheGenerationOfPrograms) {
  const auto generation = [](const job::v1::Reward& reward, const char* identity) {
    return MakeScorer(reward, {.toolchains = identity})->generation();
  };
  EXPECT_NE(generation(RewardOf({"code"}), "g++ 12"), generation(RewardOf({"code"}), "g++ 13"));
  EXPECT_EQ(generation(RewardOf({"exact"}), "g++ 12"), generation(RewardOf({"exact"}), "g++ 13"));
}

}  // namespace
}  // namespace sluice
