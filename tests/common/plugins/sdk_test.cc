// Functions in the conventions of verl and TRL, as people write them, and functions that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/plugins/plugin_host.h"
#include "tests/common/plugins/folder.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PythonSdkTest : public testing::Test {
 protected:
  // Starts the plug-in, and waits until it runs or is broken.
  void StartHost(const json& args, bool scores_groups = false) {
    PluginHost::Options options;
    options.job = "digits";
    options.name = "mine";
    options.spec = *ParsePluginSpec(args);
    options.spec.processes = 1;
    options.scores_groups = scores_groups;
    options.first_back_off = absl::Milliseconds(1);
    auto host = PluginHost::Make(std::move(options));
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  PluginResult Score(const json& item) {
    const auto results = host_->Score({item}, absl::Seconds(30));
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? (*results)[0] : PluginResult{};
  }

  std::unique_ptr<PluginHost> host_;
};

json Item(const std::string& completion, const json& truth = "42",
          const json& extra = json::object()) {
  return {{"prompt", "6 * 7"},       {"completion", completion}, {"ground_truth", truth},
          {"data_source", "digits"}, {"extra_info", extra},      {"truncated", false}};
}

constexpr char kVerl[] = R"py(
import re
from verl_helper import normalise  # A module beside it.

def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    print("scoring", data_source)
    if solution_str.startswith("raise"):
        raise KeyError(extra_info["missing"])
    if solution_str.startswith("exit"):
        exit(0)
    found = re.findall(r"#### (\-?[0-9\.\,]+)", solution_str)
    if not found:
        return 0.0
    correct = normalise(found[-1]) == normalise(ground_truth)
    return {"score": (1.0 if correct else -1.0) + bonus, "acc": correct, "pred": found[-1]}

def returns(data_source, solution_str, ground_truth, extra_info):
    return eval(solution_str)

def short(solution_str, ground_truth):
    return solution_str == ground_truth

async def waits(data_source, solution_str, ground_truth, extra_info=None):
    import asyncio
    await asyncio.sleep(0)
    return 0.5

def columns(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1, "source": data_source, "truth": ground_truth, "info": extra_info}
)py";

TEST_F(PythonSdkTest, AVerlFunctionRunsUnchanged) {
  const std::string file = WritePlugin("verl/reward.py", kVerl);
  WritePlugin("verl/verl_helper.py", "def normalise(text):\n    return text.replace(',', '')\n");
  StartHost({{"verl", file + ":compute_score"}, {"config", {{"bonus", 0.5}}}});
  const PluginResult right = Score(Item("so it is #### 4,200", "4200"));
  EXPECT_EQ(*right.score, 1.5);
  EXPECT_EQ(right.parts.at("acc"), 1);
  EXPECT_EQ(right.info, "{\"pred\":\"4,200\"}");
  EXPECT_EQ(*Score(Item("#### 41")).score, -0.5);
  EXPECT_EQ(*Score(Item("no idea")).score, 0);
}

TEST_F(PythonSdkTest, AnExceptionIsAnErrorWithItsPlaceAndNeverAZero) {
  const std::string file = WritePlugin("verl/reward.py", kVerl);
  WritePlugin("verl/verl_helper.py", "def normalise(text):\n    return text\n");
  StartHost({{"verl", file + ":compute_score"}});
  const PluginResult raised = Score(Item("raise"));
  EXPECT_FALSE(raised.score.has_value());
  EXPECT_EQ(raised.error, "KeyError: 'missing' (reward.py:8, in compute_score)");
  EXPECT_THAT(Score(Item("exit")).error, HasSubstr("SystemExit"));
  EXPECT_EQ(*Score(Item("#### 42")).score, 1);  // The process goes on.
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_F(PythonSdkTest, WhatIsNoNumberIsAnErrorThatNamesIt) {
  const std::string file = WritePlugin("verl/reward.py", kVerl);
  WritePlugin("verl/verl_helper.py", "def normalise(text):\n    return text\n");
  StartHost({{"verl", file + ":returns"}});
  for (const auto& [value, score] : {std::pair{"True", 1.0}, {"3", 3.0}, {"-0.25", -0.25}})
    EXPECT_EQ(*Score(Item(value)).score, score) << value;
  for (const auto& [value, why] : {std::pair{"None", "it returned None"},
                                   {"'1'", "it returned '1', a str"},
                                   {"float('nan')", "it returned nan, which is not finite"},
                                   {"float('inf')", "it returned inf"},
                                   {"10 ** 400", "a whole number that is too large"},
                                   {"(1.0, 0.5)", "it returned (1.0, 0.5), a tuple"},
                                   {"{'acc': 1}", "a mapping without `score`: ['acc']"},
                                   {"{'score': None}", "a mapping without `score`"},
                                   {"{'score': 'high'}", "it returned 'high', a str"},
                                   {"1 / 0", "ZeroDivisionError"}}) {
    const PluginResult result = Score(Item(value));
    EXPECT_FALSE(result.score.has_value()) << value;
    EXPECT_THAT(result.error, HasSubstr(why)) << value;
    EXPECT_FALSE(result.retryable) << value;
  }
  EXPECT_TRUE(Score(Item("open('/no/such/file')")).retryable);

  // What comes beside a score may be anything, and does it no harm.
  const PluginResult mapped =
      Score(Item("{'score': 2, 'aux': float('nan'), 'deep': {(1, 2): 3, 'x': float('inf')}}"));
  EXPECT_EQ(*mapped.score, 2);
  EXPECT_EQ(mapped.info, R"({"aux":"NaN","deep":{"x":"Infinity"}})");
}

TEST_F(PythonSdkTest, VerlFunctionsMayBeShortOrAsync) {
  const std::string file = WritePlugin("verl/reward.py", kVerl);
  WritePlugin("verl/verl_helper.py", "def normalise(text):\n    return text\n");
  StartHost({{"verl", file + ":short"}});
  EXPECT_EQ(*Score(Item("42")).score, 1);
  EXPECT_EQ(*Score(Item("43")).score, 0);
  StartHost({{"verl", file + ":waits"}, {"in_flight", 4}});
  EXPECT_EQ(*Score(Item("42")).score, 0.5);
}

TEST_F(PythonSdkTest, AVerlFunctionGetsTheColumnsOfVerlsRows) {
  const std::string file = WritePlugin("verl/reward.py", kVerl);
  WritePlugin("verl/verl_helper.py", "def normalise(text):\n    return text\n");
  StartHost({{"verl", file + ":columns"}});
  const auto seen = [&](const json& item) { return json::parse(Score(item).info); };
  EXPECT_EQ(seen(Item("x", "42", {{"level", 3}})),
            (json{{"source", "digits"}, {"truth", "42"}, {"info", {{"level", 3}}}}));
  json item = Item("x", "42",
                   {{"data_source", "openai/gsm8k"},
                    {"reward_model", {{"style", "rule"}, {"ground_truth", "7"}}},
                    {"extra_info", {{"index", 1}}}});
  item.erase("ground_truth");
  EXPECT_EQ(seen(item),
            (json{{"source", "openai/gsm8k"}, {"truth", "7"}, {"info", {{"index", 1}}}}));
}

constexpr char kTrl[] = R"py(
import asyncio

def format_reward(completions, **kwargs):
    return [1.0 if c[0]["content"].startswith("<think>") else 0.0 for c in completions]

def texts(prompts, completions, answer, level, **kwargs):
    assert prompts == ["6 * 7"] * len(completions) and level == [3] * len(completions)
    kwargs["log_metric"]("right", 1.0)
    assert kwargs["trainer_state"].global_step == 0
    return [float(c == a) if c else None for c, a in zip(completions, answer)]

async def best(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    longest = max(map(len, completions))
    return [float(len(c) == longest) for c in completions]

def ids(completions, completion_ids, **kwargs):
    return [len(c) for c in completion_ids]

def too_few(completions, **kwargs):
    return [1.0]
)py";

TEST_F(PythonSdkTest, ATrlFunctionRunsUnchangedOnChatsAndTexts) {
  const std::string file = WritePlugin("trl/rewards.py", kTrl);
  StartHost({{"trl", file + ":format_reward"}});
  json chat = Item("<think>42");
  chat["prompt"] = {{{"role", "user"}, {"content", "6 * 7"}}};
  EXPECT_EQ(*Score(chat).score, 1);

  StartHost({{"trl", file + ":texts"}});
  EXPECT_EQ(*Score(Item("42", "42", {{"level", 3}})).score, 1);
  EXPECT_EQ(*Score(Item("41", "42", {{"level", 3}})).score, 0);
  const PluginResult none = Score(Item("", "42", {{"level", 3}}));
  EXPECT_FALSE(none.score.has_value());
  EXPECT_EQ(none.error, "") << "None means that the reward does not apply";
  EXPECT_THAT(Score(Item("42")).error, HasSubstr("missing 1 required positional argument"));
}

TEST_F(PythonSdkTest, ATrlFunctionSeesAWholeGroup) {
  const std::string file = WritePlugin("trl/rewards.py", kTrl);
  StartHost({{"trl", file + ":best"}}, /*scores_groups=*/true);
  const auto results = host_->Score({Item("1"), Item("123"), Item("12")}, absl::Seconds(30));
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(*(*results)[0].score, 0);
  EXPECT_EQ(*(*results)[1].score, 1);
  EXPECT_EQ(*(*results)[2].score, 0);

  StartHost({{"trl", file + ":too_few"}}, /*scores_groups=*/true);
  const auto few = host_->Score({Item("1"), Item("2")}, absl::Seconds(30));
  for (const PluginResult& result : *few)
    EXPECT_EQ(result.error, "it returned 1 scores for 2 answers");
}

TEST_F(PythonSdkTest, ATrlFunctionThatNeedsTokenIdsSaysSo) {
  const std::string file = WritePlugin("trl/rewards.py", kTrl);
  StartHost({{"trl", file + ":ids"}});
  EXPECT_THAT(Score(Item("42")).error, HasSubstr("takes completion_ids"));
  json item = Item("42");
  item["completion_ids"] = {5, 6, 7};
  EXPECT_EQ(*Score(item).score, 3);
}

TEST_F(PythonSdkTest, ANativeRewardIsAFunctionWithADecorator) {
  const std::string file = WritePlugin("native/reward.py", R"(
from sluice_reward import reward

@reward(self_test=[({"completion": "42", "ground_truth": "42"}, 1)])
def score(item, config):
    return float(item["completion"] == item["ground_truth"]) * config.get("factor", 1)
)");
  StartHost({{"native", file}});
  EXPECT_EQ(*Score(Item("42")).score, 1);
  EXPECT_EQ(*Score(Item("4")).score, 0);
  // The self-test guards against a wrong configuration.
  StartHost({{"native", file}, {"config", {{"factor", 2}}}});
  const auto results = host_->Score({Item("42")}, absl::Minutes(1));
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("gave 2; wanted: 1"));
}

TEST_F(PythonSdkTest, AFileThatCannotBeImportedIsReportedWithItsException) {
  const std::string file = WritePlugin("broken/reward.py", "import no_such_module\n");
  StartHost({{"verl", file + ":compute_score"}});
  const auto results = host_->Score({Item("42")}, absl::Minutes(1));
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN");
  EXPECT_THAT(
      std::string(results.status().message()),
      HasSubstr(
          "ModuleNotFoundError: No module named 'no_such_module' (reward.py:1, in <module>)"));
}

TEST_F(PythonSdkTest, TheSdkNeedsNoMoreThanItsFourHundredLines) {
  const auto text = ReadFile(absl::StrCat(SLUICE_SOURCE_DIR, "/tools/sdk/sluice_reward.py"));
  ASSERT_TRUE(text.ok());
  EXPECT_LE(std::count(text->begin(), text->end(), '\n'), 400);
}

}  // namespace
}  // namespace sluice
