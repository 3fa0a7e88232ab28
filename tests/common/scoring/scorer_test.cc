#include "common/scoring/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice {
namespace {

using testing::HasSubstr;
const nlohmann::json kRow = {{"answer", "42"}};

RewardRule Exact(const std::string& name, double weight = 1) {
  return {.name = name, .verifier = "exact", .weight = weight};
}
RewardRule Letters(const std::string& name) {
  return {.name = name, .verifier = "text", .args = {{"property", "letters"}, {"letters", "a"}}};
}

TEST(ScorerTest, PartsAreWeightedAndCombinedAsTheJobSays) {
  const Answer answer = {.text = "42"};
  EXPECT_EQ(Scorer::Make({Exact("a", 0.5), Exact("b", 2)}, Combine::kSum)
                ->Run(answer, kRow, "x")
                .task_reward,
            2.5);
  EXPECT_EQ(Scorer::Make({Exact("a", 0.5), Exact("b", 2)}, Combine::kProduct)
                ->Run(answer, kRow, "x")
                .task_reward,
            1);
  EXPECT_EQ(Scorer::Make({Exact("a", 0.5), Exact("b", 2)}, Combine::kMin)
                ->Run(answer, kRow, "x")
                .task_reward,
            0.5);
}

TEST(ScorerTest, AReasonThatIsCutInsideACharacterIsStillJson) {
  const nlohmann::json row = {// The error quotes 80 bytes, which end inside a character.
                              {"answer", std::string(79, 'x') + "\xc3\xa9\xc3\xa9"}};
  const Score score = Scorer::Make({{.name = "a", .verifier = "gsm8k"}}, Combine::kSum)
                          ->Run({.text = "42"}, row, "x");
  EXPECT_EQ(score.status, "bad_row");
  EXPECT_TRUE(nlohmann::json::accept(score.info)) << score.info;
}

TEST(ScorerTest, AFailedGateDecidesAlone) {
  RewardRule gate = Exact("format");
  gate.gate = true;
  gate.gate_fail = -1;
  const auto scorer = Scorer::Make({gate, Letters("a")}, Combine::kSum);
  EXPECT_EQ(scorer->Run({.text = "aaaa"}, kRow, "x").task_reward, -1);
  EXPECT_EQ(scorer->Run({.text = "42"}, kRow, "x").task_reward, 1);
}

// Scores an answer by a judge of steps, which gives `reply`, and by rules.
absl::StatusOr<Score> RunSteps(const std::string& reply, const std::string& answer,
                               std::vector<RewardRule> more, double weight = 2,
                               Combine combine = Combine::kSum) {
  more.push_back({.name = "steps",
                  .verifier = "judge",
                  .weight = weight,
                  .args = {{"judge", "j"}, {"template", "prm"}, {"votes", 1}}});
  const auto scorer =
      Scorer::Make(std::move(more), combine,
                   {.ask = [&](const std::string&, const std::string&, const std::string&,
                               absl::Duration) -> absl::StatusOr<std::string> { return reply; }});
  if (!scorer.ok()) return scorer.status();
  return scorer->Run({.text = answer}, {{"prompt", "q"}, {"answer", "42"}}, "x");
}

TEST(ScorerTest, StepsEarnTheirWeightedPartOfTheRewardAndAFailedGateTakesItAll) {
  const auto score = RunSteps("{\"scores\": [10, 5]}", "6 * 7\n\n42", {Letters("a")});
  ASSERT_TRUE(score.ok());
  EXPECT_DOUBLE_EQ(score->task_reward, 2 * 0.75);
  ASSERT_EQ(score->credits.size(), 2u);
  EXPECT_EQ(score->credits[0].end, 5u);
  EXPECT_DOUBLE_EQ(score->credits[0].value, 1);
  EXPECT_EQ(score->credits[1].end, 9u);
  EXPECT_DOUBLE_EQ(score->credits[1].value, 0.5);

  RewardRule gate = Exact("right");
  gate.gate = true;
  const auto failed = RunSteps("{\"scores\": [10]}", "43", {gate});
  EXPECT_EQ(failed->task_reward, 0);
  EXPECT_TRUE(failed->credits.empty());
  EXPECT_THAT(RunSteps("", "", {}, 1, Combine::kMin).status().message(),
              HasSubstr("use reward.combine: sum"));
}

std::string Ends(const std::vector<uint32_t>& rows) {
  return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(uint32_t)};
}

TEST(TokenRewardsTest, ACreditGoesToTheTokenThatEndsItsText) {
  using testing::ElementsAre;
  // Tokens 5 to 8 of a text of 6 bytes; token 6 ends within a character, token 8 has no text.
  const std::string ends = Ends({5, 2, 6, 3, 7, 6, 8, 6});
  EXPECT_THAT(*TokenRewards({{2, 0.5}, {6, 0.25}}, ends, 6), ElementsAre(5, 0.5, 7, 0.25));
  EXPECT_THAT(*TokenRewards({{4, 0.5}, {5, 0.25}, {6, 0.25}}, ends, 6), ElementsAre(7, 1));
  EXPECT_TRUE(TokenRewards({}, ends, 6)->empty());
}

TEST(TokenRewardsTest, TokensOfAnotherTextAreRefused) {
  for (const std::string& ends : {Ends({5, 2, 6, 5}), Ends({}), Ends({5, 2, 6}), std::string("x")})
    EXPECT_TRUE(absl::IsDataLoss(TokenRewards({{2, 1}}, ends, 6).status()));
}

TEST(ScorerTest, ARuleThatDoesNotApplyIsAbsentAndNotZero) {
  RewardRule other = Exact("other");
  other.data_sources = {"math"};
  const auto both = Scorer::Make({Exact("a"), other}, Combine::kProduct);
  const Score score = both->Run({.text = "42"}, kRow, "code");

  EXPECT_EQ(score.task_reward, 1);
  EXPECT_TRUE(std::isnan(score.parts[1]));
  EXPECT_EQ(Scorer::Make({other}, Combine::kSum)->Run({.text = "42"}, kRow, "code").status,
            "no_part");
}

TEST(ScorerTest, WhatThePolicyDidNotCauseIsUnscorable) {
  const auto scorer = Scorer::Make({{.name = "g", .verifier = "gsm8k"}}, Combine::kSum);
  EXPECT_EQ(scorer->Run({.text = "#### 1"}, {{"answer", "none"}}, "x").status, "bad_row");
  EXPECT_EQ(scorer->Run({.text = "gibberish"}, {{"answer", "#### 1"}}, "x").status, "ok")
      << "a wrong answer is a verdict";
}

TEST(ScorerTest, NumbersThatAreNotFiniteAreRefusedAndNeverScored) {
  EXPECT_FALSE(
      Scorer::Make({Exact("a", std::numeric_limits<double>::quiet_NaN())}, Combine::kSum).ok());
  EXPECT_FALSE(
      Scorer::Make({Exact("a", std::numeric_limits<double>::infinity())}, Combine::kSum).ok());
  EXPECT_EQ(Scorer::Make({Exact("a", 1e308), Exact("b", 1e308)}, Combine::kSum)
                ->Run({.text = "42"}, kRow, "x")
                .status,
            "bad_value");
}

TEST(ScorerTest, MistakesInTheRulesAreNamedWithTheirPlace) {
  EXPECT_FALSE(Scorer::Make({}, Combine::kSum).ok());
  EXPECT_THAT(std::string(Scorer::Make({Exact("a"), Exact("a")}, Combine::kSum).status().message()),
              HasSubstr("reward.rewards[1] (a): the name is used twice"));
  EXPECT_THAT(
      std::string(
          Scorer::Make({{.name = "m", .verifier = "maths"}}, Combine::kSum).status().message()),
      HasSubstr("unknown verifier \"maths\""));
}

TEST(ScorerTest, TheGenerationFollowsTheRules) {
  EXPECT_EQ(Scorer::Make({Exact("a")}, Combine::kSum)->generation(),
            Scorer::Make({Exact("a")}, Combine::kSum)->generation());
  EXPECT_NE(Scorer::Make({Exact("a")}, Combine::kSum)->generation(),
            Scorer::Make({Exact("a", 2)}, Combine::kSum)->generation());
}

TEST(ScorerTest, TheGenerationNamesTheModelsThatJudge) {
  const auto generation = [](const std::string& identity) {
    return Scorer::Make({Exact("a")}, Combine::kSum, {.ask = nullptr, .identity = identity})
        ->generation();
  };
  EXPECT_NE(generation("strict judge-7b"), generation("strict judge-70b"));
  EXPECT_EQ(generation(""), Scorer::Make({Exact("a")}, Combine::kSum)->generation());
}

TEST(ScorerTest, AFaultOfAJudgeIsNoScoreAndKeepsItsError) {
  const absl::Status down = absl::UnavailableError("HTTP status 500");
  const RewardRule rule{.name = "quality", .verifier = "judge", .args = {{"judge", "strict"}}};
  const auto scorer =
      Scorer::Make({Exact("right"), rule}, Combine::kSum,
                   {.ask = [&](const std::string&, const std::string&, const std::string&,
                               absl::Duration) -> absl::StatusOr<std::string> { return down; },
                    .identity = ""});
  const Score score = scorer->Run({.text = "42"}, {{"answer", "42"}, {"prompt", "6 * 7"}}, "x");
  EXPECT_EQ(score.status, "fault");
  EXPECT_EQ(score.fault.code(), down.code());
  EXPECT_THAT(score.fault.message(), HasSubstr("reward quality"));
  EXPECT_TRUE(score.parts.empty());
}

TEST(ScorerTest, AnAnswerPassesWhereEachRewardWithAWeightAboveZeroGivesItsFullScore) {
  const auto passes = [](std::vector<RewardRule> rules, const char* text) {
    return Scorer::Make(std::move(rules), Combine::kSum)
        ->Run({.text = text}, {{"answer", "aa"}}, "x")
        .passes;
  };

  EXPECT_TRUE(passes({Exact("gold", 0.5), Letters("form")}, "aa"));
  EXPECT_FALSE(passes({Exact("gold", 0.5), Letters("form")}, "a"));
  EXPECT_TRUE(passes({Exact("gold"),
                      {.name = "b",
                       .verifier = "text",
                       .weight = -1,
                       .args = {{"property", "letters"}, {"letters", "b"}}}},
                     "aa"));

  RewardRule elsewhere = Exact("elsewhere");
  elsewhere.data_sources = {"y"};
  EXPECT_TRUE(passes({Letters("form"), elsewhere}, "a"))
      << "a rule that does not apply fails nobody";
}

TEST(LastAnswerTest, FindsTheLastAssistantMessageOrSaysThereIsNone) {
  EXPECT_EQ(*LastAnswer(R"([{"role":"user","content":"1+1"},{"role":"assistant","content":"2"}])"),
            "2");
  for (const char* const bad :
       {"", "{}", "[]", "[1]", R"([{"role":"user","content":"x"}])", R"([{"role":"assistant"}])"})
    EXPECT_FALSE(LastAnswer(bad).ok()) << bad;
}

TEST(LastAnswerTest, AMessageWhoseRoleIsNoTextIsNotTheAssistants) {
  EXPECT_EQ(*LastAnswer(R"([{"role":"assistant","content":"2"},{"role":1,"content":"x"}])"), "2");
  for (const char* const bad :
       {R"([{"role":1,"content":"x"}])", R"([{"role":null,"content":"x"}])",
        R"([{"role":["assistant"],"content":"x"}])", R"([{"content":"x"}])"})
    EXPECT_FALSE(LastAnswer(bad).ok()) << bad;
}

}  // namespace
}  // namespace sluice
