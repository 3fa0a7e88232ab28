// The conformance suite of plug-ins: programs and servers that do, for each answer, what the answer
// says, right or wrong. Whatever they do, an answer gets its score or an error, and never a wrong
// number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "tests/common/plugins/scripted_plugin.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PluginConformanceTest : public ScriptedPluginTest,
                              public testing::WithParamInterface<PluginKind> {
 protected:
  PluginConformanceTest() : ScriptedPluginTest(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Kinds, PluginConformanceTest,
                         testing::Values(PluginKind::kProgram, PluginKind::kServer),
                         [](const auto& info) {
                           return info.param == PluginKind::kServer ? "Server" : "Program";
                         });

TEST_P(PluginConformanceTest, AnswersGetTheirScores) {
  StartHost();
  EXPECT_EQ(ScoreOf("score 0.5"), 0.5);
  EXPECT_EQ(ScoreOf("score -2"), -2);
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_P(PluginConformanceTest, WrongResultsAreErrorsOfTheirAnswersAlone) {
  StartHost();
  const auto results = Score({"score 1", R"(raw {"error": "KeyError", "score": 1})", "raw {}",
                              R"(raw {"score": null})", "score 2"});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(*(*results)[0].score, 1);
  EXPECT_EQ((*results)[1].error, "KeyError");
  for (const int i : {2, 3}) EXPECT_TRUE((*results)[i].error.empty());
  for (const int i : {1, 2, 3}) EXPECT_FALSE((*results)[i].score.has_value()) << i;
  EXPECT_EQ(*(*results)[4].score, 2);
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_P(PluginConformanceTest, ItGetsTheJobAndAllOfTheItem) {
  StartHost();
  const json item = {{"prompt", "3+4"},       {"completion", "echo"},         {"ground_truth", "7"},
                     {"data_source", "sums"}, {"extra_info", {{"level", 2}}}, {"truncated", true}};
  const auto results = host_->Score({item}, absl::Seconds(30));
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].score, 1) << (*results)[0].error;
}

TEST_P(PluginConformanceTest, AsManyResultsAsAnswersAreNeeded) {
  StartHost();
  ScoreOf("count 2");
  EXPECT_EQ(error_, "it gave 2 results for 1 answers");
  EXPECT_EQ(ScoreOf("score 1"), 1);
}

TEST_P(PluginConformanceTest, AnAnswerThatEndsItThreeTimesIsPoisonAndOthersAreScored) {
  const std::pair<std::string, std::string> program[] = {
      {"exit", "with exit code 3"},
      {"kill", "with signal 9"},
      {"print", "no JSON object: a print that goes to stdout"},
      {"nan", "no JSON object"},
      {"long", "more than 16777216 bytes"},
      {"other", "answered call 1000000"}};
  const std::pair<std::string, std::string> server[] = {
      {"exit", "its stream ended with UNAVAILABLE"},
      {"kill", "its stream ended with UNAVAILABLE"},
      {"fail", "its stream ended with INTERNAL: a bug"},
      {"version", "it answered as version \"\", but described itself as \"1\""},
      {"long", "its stream ended with RESOURCE_EXHAUSTED"},
      {"other", "answered call 1000000"}};
  for (const auto& [word, why] : is_server() ? server : program) {
    StartHost();
    EXPECT_TRUE(std::isnan(ScoreOf(word))) << word;
    EXPECT_EQ(reason_, "poison") << word;
    EXPECT_THAT(error_, HasSubstr(why)) << word;
    EXPECT_THAT(error_, HasSubstr("the plug-in ended 3 times on this answer"));
    EXPECT_EQ(ScoreOf("score 0.5"), 0.5) << word;
    ExpectStarts(4);
  }
}

TEST_P(PluginConformanceTest, AHangIsEndedAtTheDeadlineAndIsPoisonTheThirdTime) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);  // It runs.
  for (int i = 0; i < 2; ++i) {
    const auto results = Score({"hang"}, absl::Milliseconds(300));
    // Its turn may not have come, because the process is just starting.
    if (ReasonOf(results.status()) == "PLUGIN_DOWN") --i;
    else ASSERT_EQ(ReasonOf(results.status()), "PLUGIN_DEADLINE") << results.status();
    ASSERT_EQ(ScoreOf("score 1"), 1);
  }
  const auto results = Score({"hang"}, absl::Milliseconds(300));
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].reason, "poison");
  EXPECT_THAT((*results)[0].error, HasSubstr("gave no answer in 300ms"));
}

TEST_P(PluginConformanceTest, AKillInTheMiddleCostsNoAnswerItsScore) {
  StartHost();
  for (const char* const end : {"kill_once", "leave"})
    EXPECT_EQ(ScoreOf(absl::StrCat(end, " ", Mark(end))), 1);
  ExpectStarts(3);
}

TEST_P(PluginConformanceTest, ASecondAnswerToACallEndsItAndChangesNoScore) {
  StartHost();
  EXPECT_EQ(ScoreOf("twice"), 1);  // The first answer counts.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ScoreOf("score 0.25"), 0.25);
  EXPECT_LE(host_->starts(), 2u);
}

TEST_P(PluginConformanceTest, AnswersMayComeInAnyOrder) {
  StartHost({{"in_flight", 4}});
  ASSERT_EQ(ScoreOf("score 1"), 1);
  std::atomic<double> held[3] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto results = Score({absl::StrCat("hold ", i + 2)});
      if (results.ok()) held[i] = *(*results)[0].score;
    });
  }
  // Held answers are given after that to another call.
  while (held[0] + held[1] + held[2] < 2 + 3 + 4) ASSERT_EQ(ScoreOf("score 1"), 1);
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(held[i], i + 2);
}

TEST_P(PluginConformanceTest, ManyCallersGetTheirOwnScoresWhileItIsKilled) {
  StartHost({{"in_flight", 3}}, {{"processes", 3}});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        if (t == 0 && i % 20 == 0) {
          const auto killed = Score({absl::StrCat("kill_once ", Mark(absl::StrCat("many", i)))});
          if (!killed.ok() || (*killed)[0].score != 1) ++wrong;
          continue;
        }
        const double score = t * 1000 + i;
        const auto results = Score({absl::StrCat("score ", score)});
        if (!results.ok() || (*results)[0].score != score) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(host_->starts(), 3u);
}

TEST_P(PluginConformanceTest, AnAnswerThatIsTooLargeIsUnscorableAndHarmsNobody) {
  StartHost();
  EXPECT_TRUE(std::isnan(ScoreOf("score " + std::string(17 << 20, '0'))));
  EXPECT_EQ(reason_, "too_large");
  EXPECT_EQ(ScoreOf("score 1"), 1);
  EXPECT_EQ(ScoreOf("score 1." + std::string(1 << 20, '0')), 1) << "a megabyte goes through";
}

// What is wrong at the start is said, and nobody waits for ever.
TEST_P(PluginConformanceTest, WhatCannotStartIsReportedWithItsReason) {
  const std::vector<std::pair<json, std::string>> both = {
      {{{"start", "silent"}}, "it gave no description of itself in time"},
      {{{"self_test", 0.5}}, "its self-test 1 gave 1; wanted: 0.5"},
      {{{"granularity", "group"}}, "it scores whole groups; set granularity: group"}};
  const std::vector<std::pair<json, std::string>> program = {
      {{{"start", "exit"}},
       "it ended before it described itself, with exit code 1; it last wrote "
       "to stderr: cannot find the model"},
      {{{"start", "garbage"}}, "no JSON object: Welcome!"}};
  const std::vector<std::pair<json, std::string>> server = {
      {{{"start", "refuse"}}, "it did not describe itself: PERMISSION_DENIED: not for you"},
      {{{"start", "garbage"}}, "its description has a version of 0 bytes"}};

  for (const auto& starts : {both, is_server() ? server : program}) {
    for (const auto& [config, why] : starts) {
      const absl::Status broken = StartFailure(config);
      EXPECT_THAT(std::string(broken.message()), HasSubstr(why));
      EXPECT_THAT(std::string(broken.message()),
                  HasSubstr(is_server() ? "plug-in server scripted" : "conformance/program.py"));
      if (host_ == nullptr) continue;
      const auto results = Score({"score 1"}, absl::Milliseconds(10));
      EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN");
      EXPECT_THAT(std::string(host_->Capacity().status().message()), HasSubstr(why));
      host_.reset();
    }
  }
}

TEST_P(PluginConformanceTest, AVersionThatChangesWhileTheJobRunsStopsItInsteadOfMixingTwo) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  ChangeVersion();
  (void)Score({"kill"}, absl::Milliseconds(100));
  while (!host_->is_over()) (void)Score({"score 2"}, absl::Milliseconds(100));
  const auto results = Score({"score 2"}, absl::Milliseconds(100));
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN") << results.status();
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("changed since the job began"));
  ChangeVersion(/*back=*/true);
  EXPECT_EQ(ScoreOf("score 1"), 1);
}

TEST_P(PluginConformanceTest, APluginWithManyErrorsGetsNoAnswersForAWhile) {
  PluginHost::Options options;
  options.error_rest = absl::Hours(1);
  StartHost(json::object(), json::object(), options);
  // A fifth of them is borne.
  for (int i = 0; i < 100; ++i) ScoreOf(i % 5 == 4 ? R"(raw {"error": "KeyError"})" : "score 1");
  EXPECT_EQ(host_->Capacity().status(), absl::OkStatus());
  ScoreOf(R"(raw {"error": "KeyError"})");
  EXPECT_EQ(ReasonOf(host_->Capacity().status()), "PLUGIN_ERRORS");
  EXPECT_THAT(std::string(host_->Capacity().status().message()),
              HasSubstr("gave errors for 21 of its newest 101 answers, the last: KeyError"));
}

TEST_P(PluginConformanceTest, StopEndsCallsThatHang) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  absl::Status status;
  std::thread caller([&] { status = Score({"hang"}, absl::Minutes(10)).status(); });
  host_->Stop();
  caller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_P(PluginConformanceTest, CapacityIsTwiceWhatItTakes) {
  StartHost({{"in_flight", 3}}, {{"processes", 2}});
  ASSERT_EQ(ScoreOf("score 1"), 1);
  const uint32_t wanted = is_server() ? 6 : 12;
  while (*host_->Capacity() < wanted) Clock::Real()->Sleep(absl::Milliseconds(1));
  EXPECT_EQ(*host_->Capacity(), wanted);
}

// An answer that is tried alone waits for the others, and these do not go on for ever.
TEST_P(PluginConformanceTest, AnAnswerThatWasInterruptedGetsItsTurnUnderLoad) {
  StartHost({{"in_flight", 4}});
  std::atomic<bool> stop = false;
  std::atomic<int> scored = 0;
  std::vector<std::thread> load;
  for (int t = 0; t < 8; ++t) {
    load.emplace_back([&, t] {
      while (!stop) {
        const auto results = Score({absl::StrCat("score ", t)});
        if (results.ok() && (*results)[0].score == t) ++scored;
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    const std::string mark = Mark(absl::StrCat("turn", i));
    EXPECT_EQ(ScoreOf(absl::StrCat("kill_once ", mark)), 1) << error_;
  }
  stop = true;
  for (std::thread& thread : load) thread.join();
  EXPECT_GT(scored, 0);
}

// What only a program can do wrong. ---------------------------------------------------------------

class PluginProgramTest : public ScriptedPluginTest {
 protected:
  PluginProgramTest() : ScriptedPluginTest(PluginKind::kProgram) {}
};

TEST_F(PluginProgramTest, ResultsOfOtherTypesAreErrors) {
  StartHost();
  const auto results = Score({"score 1", R"(raw {"score": "1"})", "raw 3"});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(*(*results)[0].score, 1);
  EXPECT_THAT((*results)[1].error, HasSubstr("its score is \"1\", a string"));
  EXPECT_THAT((*results)[2].error, HasSubstr("its result is 3"));
  for (const int i : {1, 2}) EXPECT_FALSE((*results)[i].score.has_value()) << i;
}

TEST_F(PluginProgramTest, NoiseOnStderrBlocksNothing) {
  StartHost();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ScoreOf("stderr"), 1);
}

}  // namespace
}  // namespace sluice
