#include "tools/sluice/reward_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::cli {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

constexpr char kDeadGroup[] = "0000000100000000000000000000002f";

queue::v1::PeekRow PeekedRow(const std::string& id, const std::string& state,
                             const std::string& json) {
  queue::v1::PeekRow row;
  row.mutable_node()->set_id(id);
  row.set_state(state);
  row.set_worker("reward-0");
  *row.mutable_age() = rpc::ToProto(absl::Seconds(12));
  row.set_json(json);
  return row;
}

queue::v1::PeekRow Letter(const std::string& group, int member, const std::string& cause) {
  return PeekedRow(
      absl::StrCat(group, "/", member, "/1/reward"), "dead_letter",
      absl::StrCat(R"({"row": {"source": "gsm8k", "epoch": 1, "index": 17, )",
                   R"("occurrence": 0}, "why": "unscorable", "prompt": "quarantined", )",
                   R"("generation": "7c1f09aa", "cause": ")", cause, R"("})"));
}

ordered_json ThreeDead() {
  return DeadJson({Letter(kDeadGroup, 0, "plugin_error: no such key"),
                   Letter(kDeadGroup, 2, "plugin_error: no such key"),
                   Letter("00000001000000000000000000000030", 1, "bad_row: the gold is null")});
}

TEST(RewardTextTest, DeadLettersAreShownOneByOneAndByCause) {
  const std::string text = DeadText(ThreeDead());
  EXPECT_THAT(text, HasSubstr("1:2f/0/1/reward  gsm8k:17  12s  unscorable  quarantined"));
  EXPECT_THAT(text, HasSubstr("2        plugin_error: no such key\n1        bad_row"));
  EXPECT_EQ(DeadText(DeadJson({})), "no answer is without a score\n");
}

TEST(RewardTextTest, DeadLettersAreChosenByIdGroupAndCause) {
  const ordered_json dead = ThreeDead();
  EXPECT_EQ(ChooseDead(dead, {"1:2f/2/1/reward"}, "")->size(), 1u);
  EXPECT_EQ(ChooseDead(dead, {"1:2f"}, "")->size(), 2u);
  EXPECT_EQ(ChooseDead(dead, {kDeadGroup, "1:30"}, "")->size(), 3u);
  EXPECT_EQ(ChooseDead(dead, {}, "plugin_error")->size(), 2u);
  EXPECT_EQ(ChooseDead(dead, {"1:30"}, "plugin_error").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ChooseDead(dead, {"1:2f", "1:31"}, "").status().message()),
              HasSubstr("has the id 1:31"));
}

TEST(RewardTextTest, LineageIsInTheOrderOfTheStepsAndByReward) {
  const ordered_json lineage = LineageJson(
      {PeekedRow(
           "0000002b", "in_use",
           R"({"rewards": {"mine": "b2", "form": "f1"}, "steps": [[12, 40]], )"
           R"("groups": {"open": 3, "accepted": 1, "in_batch": 2}, "workers": ["reward-0"]})"),
       PeekedRow("7c1f09aa", "past",
                 R"({"rewards": {"mine": "a1", "form": "f1"}, "steps": [[0, 11], [14, 14]]})")});
  EXPECT_EQ(lineage["generations"][0]["generation"], "7c1f09aa");
  EXPECT_EQ(lineage["rewards"].dump(), R"([{"name":"form","version":"f1","steps":[[0,40]]},)"
                                       R"({"name":"mine","version":"a1","steps":[[0,11],[14,14]]},)"
                                       R"({"name":"mine","version":"b2","steps":[[12,40]]}])");
  const std::string text = LineageText(lineage, "table");
  EXPECT_THAT(text, HasSubstr("7c1f09aa    past    0..11, 14"));
  EXPECT_EQ(LineageText(lineage, "name"), "7c1f09aa\n0000002b\n");
  EXPECT_THAT(text, HasSubstr("0000002b    in use  12..40         4 groups"));
  EXPECT_EQ(LineageText(LineageJson({}), "table"), "no group is scored yet\n");
}

TEST(RewardTextTest, AGenerationIsEightHexDigits) {
  EXPECT_EQ(*ParseGeneration("7c1f09aa"), 0x7c1f09aau);
  for (const char* const wrong : {"", "7c1f09a", "7c1f09aag", "7c1f09ag", "00000000"})
    EXPECT_FALSE(ParseGeneration(wrong).ok()) << wrong;
}

TEST(RewardTextTest, CandidatesAreComparedOverAllDaemons) {
  job::v1::InspectResponse response;
  for (const char* const id : {"reward-0", "reward-1"}) {
    job::v1::RewardDescribed& described = *response.add_rewards();
    described.set_daemon(id);
    described.mutable_answer()->set_generation(0x2b);
    reward::v1::Reward& used = *described.mutable_answer()->add_rewards();
    used.set_name("mine");
    used.set_verifier("plugin");
    used.set_version("b2");
    reward::v1::Reward& candidate = *described.mutable_answer()->add_rewards();
    candidate.set_name("new");
    reward::v1::Shadow& shadow = *candidate.mutable_shadow();
    shadow.set_of("mine");
    shadow.set_equal(7);
    shadow.set_higher(1);
    shadow.set_lower(2);
    shadow.set_unscorable(1);
    shadow.set_difference(-0.5);
    shadow.set_distance(1.5);
    if (id == std::string("reward-0")) {
      shadow.set_same_steps(3);
      shadow.set_other_values(1);
      shadow.set_other_places(4);
      shadow.set_step_distance(2);
    }
    shadow.mutable_since()->set_seconds(1'700'000'000);
  }
  response.mutable_rewards(0)->mutable_answer()->add_earlier(0x7c1f09aa);
  job::v1::RewardDescribed& silent = *response.add_rewards();
  silent.set_daemon("reward-2");
  silent.set_error("no answer");

  const std::string text = RewardsText(RewardsJson(response));
  EXPECT_THAT(text, HasSubstr("reward-0  0000002b    mine    plugin    b2"));
  EXPECT_THAT(text, HasSubstr("7c1f09aa"));
  EXPECT_THAT(text, HasSubstr("no answer"));
  EXPECT_THAT(text, HasSubstr("candidate new of mine: same score for 70.0 % of 20 answers, higher "
                              "2, lower 4, mean difference -0.0500, mean distance 0.1500; "
                              "steps rewarded the same in 3 of 8 answers, with other values in 1, "
                              "at other places in 4, mean distance 0.2500, unscorable 2, since "
                              "2023-11-14 22:13 UTC\n"));
  EXPECT_THAT(text, Not(HasSubstr("skipped")));

  // One of them has loaded another version: their counts are not added up.
  response.mutable_rewards(1)->mutable_answer()->mutable_rewards(1)->set_version("c3");
  const std::string apart = RewardsText(RewardsJson(response));
  EXPECT_THAT(apart, HasSubstr("candidate new of mine (versions c3 and b2): same score for 70.0 % "
                               "of 10 answers"));
}

TEST(RewardTextTest, AReloadFailsIfADaemonFailsOrDoesNotAnswer) {
  job::v1::ReloadRewardsResponse response;
  job::v1::RewardReloaded& daemon = *response.add_rewards();
  daemon.set_daemon("reward-0");
  daemon.mutable_answer()->set_generation(0x2b);
  reward::v1::Reloaded& reward = *daemon.mutable_answer()->add_rewards();
  reward.set_name("mine");
  reward.set_outcome(reward::v1::RELOAD_OUTCOME_LOADED);
  reward.set_before("a1");
  reward.set_after("b2");
  EXPECT_TRUE(AllLoaded(ReloadJson(response)));
  EXPECT_THAT(ReloadText(ReloadJson(response)),
              HasSubstr("reward-0  mine    loaded   a1 -> b2  0000002b"));

  reward.set_outcome(reward::v1::RELOAD_OUTCOME_FAILED);
  EXPECT_FALSE(AllLoaded(ReloadJson(response)));
  reward.set_outcome(reward::v1::RELOAD_OUTCOME_UNCHANGED);
  EXPECT_TRUE(AllLoaded(ReloadJson(response)));
  response.add_rewards()->set_error("it is gone");
  EXPECT_FALSE(AllLoaded(ReloadJson(response)));
}

}  // namespace
}  // namespace sluice::cli
