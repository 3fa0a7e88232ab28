#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "tests/tools/sluice/run_command.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/eval_job.h"

namespace sluice::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kModel[] = SLUICE_SOURCE_DIR "/configs/examples/digits";
constexpr char kHeldOut[] = SLUICE_SOURCE_DIR "/configs/examples/digits/heldout.jsonl";

// Runs `sluice eval DIR ARGS..` on two rows of the example.
CommandRun RunEval(const std::string& dir, std::vector<std::string> args) {
  for (const char* arg : {dir.c_str(), "--init-seed", "1", "--data", kHeldOut, "--verifier", "text",
                          "--args", R"({"property": "reversed"})", "--prompt", "digits", "--answer",
                          "digits", "--rows", "2", "--max-tokens", "4", "--threads", "1"}) {
    args.push_back(arg);
  }
  return RunCommand(EvalCommands().front(), std::move(args));
}

std::string Refusal(std::vector<std::string> args) {
  const CommandRun ran = RunEval(kModel, std::move(args));
  EXPECT_EQ(ran.code, kMisuse);
  EXPECT_EQ(ran.out, "");
  return ran.err;
}

TEST(EvalCommandTest, ANumberOutsideItsLimitsIsRefusedInOneShortLine) {
  EXPECT_EQ(Refusal({"--temperature", "-1"}),
            "--temperature: is -1; wanted: a finite number, at least 0");
  EXPECT_THAT(Refusal({"--temperature", "1e300"}), HasSubstr("is 1e300"));
  EXPECT_EQ(Refusal({"--pass-score", "nan"}), "--pass-score: is nan; wanted: a finite number");
  EXPECT_EQ(Refusal({"--samples", "0"}), "--samples: is 0; wanted: a whole number, 1 to 1024");
  EXPECT_EQ(Refusal({"--seed", "-1"}), "--seed: is -1; wanted: a whole number, at least 0");
  EXPECT_THAT(Refusal({"--first-row", "-2"}), HasSubstr("is -2"));
}

TEST(EvalCommandTest, AFieldIsANameAndAColumn) {
  for (const char* field : {"a", "=id", "a=", ""})
    EXPECT_THAT(Refusal({"--field", field}),
                HasSubstr(absl::StrCat("--field is '", field, "'; wanted: NAME=COLUMN")));
  EXPECT_THAT(Refusal({"--field", "answer=x"}),
              HasSubstr("the field answer has a column already, digits"));
  EXPECT_EQ(RunEval(kModel, {"--field", "gold=digits"}).code, kDone);
}

TEST(EvalCommandTest, SeveralAnswersNeedATemperature) {
  EXPECT_THAT(
      Refusal({"--samples", "4"}),
      HasSubstr("--samples 4 with --temperature 0: all answers to a row would be the same"));
  const CommandRun ran = RunEval(kModel, {"--samples", "2", "--temperature", "1"});
  EXPECT_EQ(ran.code, kDone) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("pass@2"));
}

// Writes a Python file and returns its path.
std::string WriteReward(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(testing::TempDir(), "/", name);
  EXPECT_TRUE(WriteFileAtomic(path, text).ok());
  return path;
}

CommandRun RunEvalBy(std::vector<std::string> reward) {
  std::vector<std::string> args = {kModel,     "--init-seed",  "1",        "--data",    kHeldOut,
                                   "--prompt", "digits",       "--answer", "digits",    "--rows",
                                   "3",        "--max-tokens", "4",        "--threads", "1",
                                   "-o",       "json"};
  args.insert(args.end(), reward.begin(), reward.end());
  return RunCommand(EvalCommands().front(), std::move(args));
}

TEST(EvalCommandTest, APluginScoresAsABuiltInVerifierDoes) {
  const std::string file = WriteReward("reversed.py", R"py(
def score(data_source, solution_str, ground_truth, extra_info=None):
    wanted = ground_truth[::-1]
    right = sum(a == b for a, b in zip(solution_str, wanted))
    return right / (max(len(solution_str), len(wanted)) + 1)
)py");
  const CommandRun by_plugin = RunEvalBy({"--verl", file + ":score"});
  ASSERT_EQ(by_plugin.code, kDone) << by_plugin.err;
  // No answer ends within four tokens, so the verifier's divisor is one larger too.
  const CommandRun by_verifier =
      RunEvalBy({"--verifier", "text", "--args", R"({"property": "reversed"})"});
  const auto plugin = nlohmann::json::parse(by_plugin.out),
             verifier = nlohmann::json::parse(by_verifier.out);
  EXPECT_EQ(verifier["truncated"], 3);
  EXPECT_EQ(plugin["score_mean"], verifier["score_mean"]);
  EXPECT_EQ(plugin["score_interval"], verifier["score_interval"]);
  EXPECT_NE(plugin["generations"], verifier["generations"]);
}

TEST(EvalCommandTest, APluginThatCannotStartEndsTheEvaluationWithItsError) {
  const std::string file = WriteReward("broken.py", "raise RuntimeError('no such model')\n");
  const CommandRun ran = RunEvalBy({"--verl", file + ":score"});
  EXPECT_NE(ran.code, kDone);
  EXPECT_THAT(ran.err, HasSubstr("no such model"));
  EXPECT_THAT(ran.out, IsEmpty());
}

TEST(EvalCommandTest, AJudgeNeedsAFileThatNamesIt) {
  EXPECT_THAT(RunEvalBy({"--verifier", "judge", "--args", R"({"judge": "strict"})"}).err,
              AllOf(HasSubstr("this command has no judge \"strict\"; its judges are: none"),
                    HasSubstr("--judges FILE")));
}

TEST(EvalCommandTest, SomethingMustScore) {
  EXPECT_THAT(RunEvalBy({}).err,
              HasSubstr("what scores? give --verifier, --verl, --trl, --native or"));
}

TEST(EvalCommandTest, ARemoteCodeKeyIsToldOnStderrAndInTheResult) {
  EXPECT_THAT(RunEval(kModel, {}).err, IsEmpty());

  const std::string dir = absl::StrCat(testing::TempDir(), "/eval-", ToHex(RandomId16()));
  ASSERT_TRUE(MakeDirs(dir).ok());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    ASSERT_TRUE(WriteFileAtomic(dir + "/" + name, *ReadFile(absl::StrCat(kModel, "/", name))).ok());
  nlohmann::json config = nlohmann::json::parse(*ReadFile(absl::StrCat(kModel, "/config.json")));
  config["auto_map"] = {{"AutoModelForCausalLM", "modeling.Model"}};
  ASSERT_TRUE(WriteFileAtomic(dir + "/config.json", config.dump()).ok());

  const CommandRun ran = RunEval(dir, {"-o", "json"});
  EXPECT_EQ(ran.code, kDone);
  EXPECT_THAT(ran.err, AllOf(HasSubstr(dir + "/config.json"), HasSubstr("auto_map is ignored")));
  EXPECT_EQ(nlohmann::json::parse(ran.out)["ignored"], nlohmann::json({"auto_map"}));

  ASSERT_TRUE(RemoveTree(dir).ok());
}

TEST(ChooseVersionTest, AVersionThatIsNotKeptIsSaidToBeGoneOrYetToCome) {
  job::v1::JobStatus job;
  job.set_name("digits");
  job.set_job("0123456789abcdef0123456789abcdef");
  job.mutable_spec()->mutable_checkpoint()->set_dir("/ckpt");
  std::vector<PublishedVersion> kept;
  for (const int64_t number : {12, 40, 41, 42}) kept.push_back({.version = {1, number}});

  EXPECT_EQ(ChooseVersion(job, kept, 40)->version.number, 40);
  EXPECT_EQ(ChooseVersion(job, kept, std::nullopt)->version.number, 42);

  const absl::Status gone = ChooseVersion(job, kept, 30).status(),
                     future = ChooseVersion(job, kept, 43).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()),
              AllOf(HasSubstr("no longer keeps version 30; it has 12, 40 to 42"),
                    HasSubstr("sluice ckpt verify /ckpt/digits-01234567")));
  EXPECT_EQ(future.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(future.message()),
              HasSubstr("has not made version 43 yet; it has 12, 40 to 42"));
  EXPECT_EQ(DetailOf(ChooseVersion(job, {}, 1).status()).hint, "try again in a moment");
}

}  // namespace
}  // namespace sluice::cli
