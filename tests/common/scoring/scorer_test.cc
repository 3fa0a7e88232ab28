#include "common/scoring/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/status.h"

namespace sluice {
namespace {

using testing::ElementsAre;
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
  const auto scorer = Scorer::Make(
      std::move(more), combine,
      {.ask_judge = [&](const std::string&, const std::string&, const std::string&,
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
  ASSERT_EQ(score->part_credits.size(), 2u);
  EXPECT_TRUE(score->part_credits[0].empty());
  ASSERT_EQ(score->part_credits[1].size(), 2u);
  EXPECT_DOUBLE_EQ(score->part_credits[1][0].value, 0.5) << "without the weight";

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
    return Scorer::Make({Exact("a")}, Combine::kSum, {.ask_judge = nullptr, .judges = identity})
        ->generation();
  };
  EXPECT_NE(generation("strict judge-7b"), generation("strict judge-70b"));
  EXPECT_EQ(generation(""), Scorer::Make({Exact("a")}, Combine::kSum)->generation());
}

TEST(ScorerTest, AFaultOfAJudgeIsNoScoreAndKeepsItsError) {
  const absl::Status down = absl::UnavailableError("HTTP status 500");
  const RewardRule rule{.name = "quality", .verifier = "judge", .args = {{"judge", "strict"}}};
  const auto scorer = Scorer::Make(
      {Exact("right"), rule}, Combine::kSum,
      {.ask_judge = [&](const std::string&, const std::string&, const std::string&,
                        absl::Duration) -> absl::StatusOr<std::string> { return down; },
       .judges = ""});
  const Score score = scorer->Run({.text = "42"}, {{"answer", "42"}, {"prompt", "6 * 7"}}, "x");
  EXPECT_EQ(score.status, "fault");
  EXPECT_EQ(score.fault.code(), down.code());
  EXPECT_THAT(score.fault.message(), HasSubstr("reward quality"));
  EXPECT_TRUE(score.parts.empty());
}

// A plug-in that gives each item a result made from its completion.
RunPlugin Plugin(std::function<PluginResult(const std::string& completion)> result) {
  return [result = std::move(result)](const std::string&, const std::vector<nlohmann::json>& items,
                                      absl::Duration) {
    std::vector<PluginResult> results;
    for (const nlohmann::json& item : items) results.push_back(result(item["completion"]));
    return results;
  };
}

RewardRule PluginRule(nlohmann::json args = nlohmann::json::object()) {
  args["verl"] = "/rewards/mine.py:compute_score";
  return {.name = "mine", .verifier = "plugin", .args = std::move(args)};
}

TEST(ScorerTest, APluginGivesAScoreOrNoneOrAnErrorWithItsCause) {
  const auto scorer =
      Scorer::Make({Exact("right"), PluginRule({{"low", -1}, {"high", 2}})}, Combine::kSum,
                   {.run_plugin = Plugin([](const std::string& completion) -> PluginResult {
                      if (completion == "none") return {};
                      if (completion == "raise") return {.error = "KeyError: 'x'"};
                      if (completion == "poison") return {.error = "it ended", .reason = "poison"};
                      if (completion == "later") return {.error = "no network", .retryable = true};
                      return {.score = static_cast<double>(completion.size())};
                    })});
  ASSERT_TRUE(scorer.ok()) << scorer.status();
  const nlohmann::json row = {{"answer", "42"}};
  EXPECT_EQ(scorer->Run({.text = "42"}, row, "x").task_reward, 3);

  // The part that does not apply is absent, and no 0.
  const Score none = scorer->Run({.text = "none"}, row, "x");
  EXPECT_EQ(none.status, "ok");
  EXPECT_TRUE(std::isnan(none.parts[1]));

  const Score raised = scorer->Run({.text = "raise"}, row, "x");
  EXPECT_EQ(raised.status, "plugin_error");
  EXPECT_EQ(raised.info, R"({"mine":"KeyError: 'x'"})");
  EXPECT_TRUE(raised.fault.ok());
  EXPECT_EQ(scorer->Run({.text = "poison"}, row, "x").status, "poison");
  EXPECT_EQ(scorer->Run({.text = "too long"}, row, "x").status, "bad_value");

  const Score later = scorer->Run({.text = "later"}, row, "x");
  EXPECT_EQ(later.status, "fault");
  EXPECT_EQ(ReasonOf(later.fault), "PLUGIN_FAULT");
}

TEST(ScorerTest, AnAnswerToWhichNoPluginAppliesIsUnscorableAndItsRowIsNotAtFault) {
  const auto scorer =
      Scorer::Make({PluginRule()}, Combine::kSum,
                   {.run_plugin = Plugin([](const std::string&) { return PluginResult(); })});
  EXPECT_EQ(scorer->Run({.text = "a"}, {{"answer", "42"}}, "x").status, "no_score");
}

TEST(ScorerTest, APluginGetsTheRowAsFieldsOfItsItem) {
  std::vector<nlohmann::json> seen;
  const auto scorer =
      Scorer::Make({PluginRule()}, Combine::kSum,
                   {.run_plugin = [&](const std::string&, const std::vector<nlohmann::json>& items,
                                      absl::Duration) {
                     seen = items;
                     return std::vector<PluginResult>(items.size(), PluginResult{.score = 1});
                   }});
  (void)scorer->Run({.text = "7\xff", .truncated = true, .data_source = "sums"},
                    {{"answer", 7}, {"prompt", "3 + 4"}, {"level", 2}}, "sums");
  EXPECT_EQ(seen[0], (nlohmann::json{{"completion", "7\xef\xbf\xbd"},
                                     {"truncated", true},
                                     {"data_source", "sums"},
                                     {"prompt", "3 + 4"},
                                     {"ground_truth", 7},
                                     {"extra_info", {{"level", 2}}}}));
}

TEST(ScorerTest, ARuleOfAGroupGetsAllAnswersAtOnceAndTheOthersOneByOne) {
  std::vector<size_t> calls;
  RewardRule rule = PluginRule();
  rule.scores_groups = true;
  const auto scorer =
      Scorer::Make({Exact("right"), rule}, Combine::kSum,
                   {.run_plugin = [&](const std::string&, const std::vector<nlohmann::json>& items,
                                      absl::Duration) {
                     calls.push_back(items.size());
                     std::vector<PluginResult> results;
                     for (size_t i = 0; i < items.size(); ++i)
                       results.push_back({.score = 10. * i});
                     results.back() = {.error = "bad"};
                     return results;
                   }});
  EXPECT_TRUE(scorer->scores_groups());
  const std::vector<Score> scores =
      scorer->RunGroup({{.text = "42"}, {.text = "41"}, {.text = "42"}}, {{"answer", "42"}}, "x");
  EXPECT_THAT(calls, ElementsAre(3));
  EXPECT_EQ(scores[0].task_reward, 1);
  EXPECT_EQ(scores[1].task_reward, 10);
  EXPECT_EQ(scores[2].status, "plugin_error");
}

TEST(ScorerTest, ACandidateHasNoPartInTheRewardAndInItsGeneration) {
  RewardRule candidate = Letters("candidate");
  candidate.shadow = "right";
  const auto with = Scorer::Make({Exact("right"), candidate}, Combine::kSum);
  const auto without = Scorer::Make({Exact("right")}, Combine::kSum);
  ASSERT_EQ(with.status(), absl::OkStatus());
  EXPECT_EQ(with->generation(), without->generation());
  const Score score = with->Run({.text = "aab"}, {{"answer", "b"}}, "x");
  EXPECT_EQ(score.task_reward, 0);
  EXPECT_THAT(score.parts, ElementsAre(0));
  const auto said = with->RunRule("candidate", {{.text = "aab"}}, {{"answer", "b"}}, "x");
  ASSERT_EQ(said.size(), 1u);
  EXPECT_DOUBLE_EQ(said[0]->score, 2.0 / 3);
  EXPECT_THAT(with->RunRule("none", {{.text = "aab"}}, {{"answer", "b"}}, "x"), ElementsAre());

  candidate.gate = true;
  EXPECT_FALSE(Scorer::Make({Exact("right"), candidate}, Combine::kSum).ok());
  candidate.gate = false;
  EXPECT_FALSE(Scorer::Make({Exact("other"), candidate}, Combine::kSum).ok());
  EXPECT_FALSE(Scorer::Make({candidate}, Combine::kSum).ok());
}

TEST(ScorerTest, EachRewardHasAVersionOfItsOwn) {
  RewardRule plugin = PluginRule();
  const auto versions = [&](const std::string& files) {
    return Scorer::Make({Exact("right"), plugin}, Combine::kSum,
                        {.plugins = {{plugin.args.dump(), files}}})
        ->versions();
  };
  EXPECT_EQ(versions("a").at("right"), versions("b").at("right"));
  EXPECT_NE(versions("a").at("mine"), versions("b").at("mine"));
  EXPECT_EQ(versions("a").at("mine").size(), 8u);
}

TEST(ScorerTest, TheGenerationFollowsThePluginsFilesAndGranularity) {
  const auto generation = [](bool groups, const std::string& plugins) {
    RewardRule rule = PluginRule();
    rule.scores_groups = groups;
    return Scorer::Make({rule}, Combine::kSum, {.plugins = {{rule.args.dump(), plugins}}})
        ->generation();
  };
  EXPECT_EQ(generation(false, "a"), generation(false, "a"));
  EXPECT_NE(generation(false, "a"), generation(false, "b"));
  EXPECT_NE(generation(false, "a"), generation(true, "a"));
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
