// The conformance suite of plug-ins: a program that does, for each answer, what the answer says,
// right or wrong. Whatever it does, an answer gets its score or an error, and never a wrong number.
#include "common/plugins/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "tests/common/plugins/folder.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Speaks the protocol by itself. An answer "score 0.5" gets this score.
constexpr char kProgram[] = R"(
import json, os, signal, sys, time
out = os.fdopen(os.dup(1), "w")
def write(text):
    out.write(text + "\n")
    out.flush()
hello = json.loads(sys.stdin.readline())
config = hello["config"]
if config.get("start") == "exit":
    sys.exit("cannot find the model")
if config.get("start") == "silent":
    time.sleep(1000)
if config.get("start") == "garbage":
    write("Welcome!")
if config.get("start") == "once":  # Starts only if nobody has before.
    try:
        os.close(os.open(config["mark"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        sys.exit("started twice")
write(json.dumps({"name": "test", "version": "1", "max_in_flight": config.get("in_flight", 1),
                  "granularity": config.get("granularity", "trajectory"),
                  "self_test": [{"item": {"completion": "score 1"},
                                 "score": config.get("self_test", 1)}]}))
held = []
for line in sys.stdin:
    request = json.loads(line)
    results = []
    answer = True
    for item in request["items"]:
        word, _, value = item["completion"].partition(" ")
        if word == "score":
            results.append({"score": float(value)})
        elif word == "raw":
            results.append(json.loads(value))
        elif word == "hang":
            time.sleep(1000)
        elif word == "exit":
            sys.exit(3)
        elif word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "kill_once":
            try:
                os.close(os.open(value, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                results.append({"score": 1})
        elif word == "print":
            print("a print that goes to stdout", flush=True)
            results.append({"score": 1})
        elif word == "stderr":
            sys.stderr.write("noise\n" * 100000)
            results.append({"score": 1})
        elif word == "twice":
            write(json.dumps({"id": request["id"], "results": [{"score": 1}]}))
            results.append({"score": 0})
        elif word == "nan":
            write('{"id": %d, "results": [{"score": NaN}]}' % request["id"])
            answer = False
        elif word == "long":
            write("x" * (20 << 20))
        elif word == "other":
            write(json.dumps({"id": 10 ** 6, "results": []}))
        elif word == "hold":  # Answered after the next one, in the wrong order.
            held.append((request["id"], value))
            answer = False
        elif word == "count":
            results = [{"score": 1}] * int(value)
    if answer:
        write(json.dumps({"id": request["id"], "results": results}))
        for id, value in held:
            write(json.dumps({"id": id, "results": [{"score": float(value)}]}))
        held = []
)";

class PluginHostTest : public testing::Test {
 protected:
  void StartHost(json config = json::object(), json args = json::object(),
                 PluginHost::Options options = {}) {
    const std::string file = WritePlugin("conformance/program.py", kProgram);
    args["exec"] = {"python3", file};
    args["config"] = std::move(config);
    if (!args.contains("processes")) args["processes"] = 1;
    options.job = "digits";
    options.name = "mine";
    options.spec = *ParsePluginSpec(args);
    options.first_back_off = absl::Milliseconds(1);
    host_ = *PluginHost::Make(std::move(options));
  }

  absl::StatusOr<std::vector<PluginResult>> Score(const std::vector<std::string>& completions,
                                                  absl::Duration timeout = absl::Seconds(30)) {
    std::vector<json> items;
    for (const std::string& completion : completions) items.push_back({{"completion", completion}});
    return host_->Score(items, timeout);
  }

  // The score of an answer. NaN, with the reason in error_, if it has none.
  double ScoreOf(const std::string& completion) {
    const auto results = Score({completion});
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return std::nan("");
    error_ = (*results)[0].error;
    reason_ = (*results)[0].reason;
    return (*results)[0].score.value_or(std::nan(""));
  }

  std::unique_ptr<PluginHost> host_;
  std::string error_, reason_;
};

TEST_F(PluginHostTest, AnswersGetTheirScores) {
  StartHost();
  EXPECT_EQ(ScoreOf("score 0.5"), 0.5);
  EXPECT_EQ(ScoreOf("score -2"), -2);
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_F(PluginHostTest, WrongResultsAreErrorsOfTheirAnswersAlone) {
  StartHost();
  const auto results = Score({"score 1", R"(raw {"score": "1"})", R"(raw {"error": "KeyError"})",
                              "raw {}", R"(raw {"score": null})", "raw 3", "score 2"});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(*(*results)[0].score, 1);
  EXPECT_THAT((*results)[1].error, HasSubstr("its score is \"1\", a string"));
  EXPECT_EQ((*results)[2].error, "KeyError");
  for (const int i : {3, 4}) EXPECT_TRUE((*results)[i].error.empty());
  for (const int i : {1, 2, 3, 4, 5}) EXPECT_FALSE((*results)[i].score.has_value()) << i;
  EXPECT_EQ(*(*results)[6].score, 2);
  EXPECT_EQ(host_->starts(), 1u);
}

TEST_F(PluginHostTest, AsManyResultsAsAnswersAreNeeded) {
  StartHost();
  ScoreOf("count 2");
  EXPECT_EQ(error_, "it gave 2 results for 1 answers");
  EXPECT_EQ(ScoreOf("score 1"), 1);
}

TEST_F(PluginHostTest, AnAnswerThatEndsTheProcessThreeTimesIsPoisonAndOthersAreScored) {
  for (const auto& [word, why] : {std::pair{"exit", "with exit code 3"},
                                  {"kill", "with signal 9"},
                                  {"print", "no JSON object: a print that goes to stdout"},
                                  {"nan", "no JSON object"},
                                  {"long", "more than 16777216 bytes"},
                                  {"other", "answered call 1000000"}}) {
    StartHost();
    EXPECT_TRUE(std::isnan(ScoreOf(word))) << word;
    EXPECT_EQ(reason_, "poison") << word;
    EXPECT_THAT(error_, HasSubstr(why)) << word;
    EXPECT_THAT(error_, HasSubstr("3 processes of the plug-in ended on this answer"));
    EXPECT_EQ(ScoreOf("score 0.5"), 0.5) << word;
    EXPECT_EQ(host_->starts(), 4u) << word;
  }
}

TEST_F(PluginHostTest, AHangIsKilledAtTheDeadlineAndIsPoisonTheThirdTime) {
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
  EXPECT_THAT((*results)[0].error, HasSubstr("gave no answer in 300ms and was killed"));
}

TEST_F(PluginHostTest, AProcessKilledInTheMiddleCostsNoAnswerItsScore) {
  StartHost();
  EXPECT_EQ(ScoreOf(absl::StrCat("kill_once ", testing_data::TempPath("killed"))), 1);
  EXPECT_EQ(host_->starts(), 2u);
}

TEST_F(PluginHostTest, ASecondAnswerToACallEndsTheProcessAndChangesNoScore) {
  StartHost();
  EXPECT_EQ(ScoreOf("twice"), 1);  // The first answer counts.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ScoreOf("score 0.25"), 0.25);
  EXPECT_LE(host_->starts(), 2u);
}

TEST_F(PluginHostTest, AnswersMayComeInAnyOrder) {
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

TEST_F(PluginHostTest, ManyCallersGetTheirOwnScoresWhileProcessesAreKilled) {
  StartHost({{"in_flight", 3}}, {{"processes", 3}});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        if (t == 0 && i % 20 == 0) {
          const auto killed =
              Score({absl::StrCat("kill_once ", testing_data::TempPath(absl::StrCat("mark", i)))});
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

TEST_F(PluginHostTest, NoiseOnStderrBlocksNothing) {
  StartHost();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ScoreOf("stderr"), 1);
}

TEST_F(PluginHostTest, AnAnswerThatIsTooLargeIsUnscorableAndHarmsNobody) {
  StartHost();
  EXPECT_TRUE(std::isnan(ScoreOf("score " + std::string(17 << 20, '0'))));
  EXPECT_EQ(reason_, "too_large");
  EXPECT_EQ(ScoreOf("score 1"), 1);
  EXPECT_EQ(ScoreOf("score 1." + std::string(1 << 20, '0')), 1) << "a megabyte goes through";
}

// What is wrong at the start is said, and nobody waits for ever.
TEST_F(PluginHostTest, AProgramThatCannotStartIsReportedWithItsReason) {
  const std::tuple<json, std::string> starts[] = {
      {{{"start", "exit"}},
       "it ended before it described itself, with exit code 1; it last wrote "
       "to stderr: cannot find the model"},
      {{{"start", "silent"}}, "it gave no description of itself in time"},
      {{{"start", "garbage"}}, "no JSON object: Welcome!"},
      {{{"self_test", 0.5}}, "its self-test 1 gave 1; wanted: 0.5"},
      {{{"granularity", "group"}}, "it scores whole groups; set granularity: group"}};
  for (const auto& [config, why] : starts) {
    Mutex mu;
    CondVar changed;
    absl::Status broken;
    PluginHost::Options options;
    options.start_timeout =
        config.value("start", "") == "silent" ? absl::Milliseconds(300) : absl::Seconds(30);
    options.on_broken = [&](absl::Status status) {
      MutexLock lock(&mu);
      broken = std::move(status);
      changed.NotifyAll();
    };
    StartHost(config, json::object(), options);
    {
      MutexLock lock(&mu);
      while (broken.ok()) changed.Wait(&mu);
      EXPECT_THAT(std::string(broken.message()), HasSubstr(why));
      EXPECT_THAT(std::string(broken.message()), HasSubstr("conformance/program.py"));
    }
    const auto results = Score({"score 1"}, absl::Milliseconds(10));
    EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN");
    EXPECT_THAT(std::string(host_->Capacity().status().message()), HasSubstr(why));
    host_.reset();
  }
}

TEST_F(PluginHostTest, FilesThatChangeWhileTheJobRunsStopItInsteadOfMixingPrograms) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  WritePlugin("conformance/program.py", absl::StrCat(kProgram, "\n# changed\n"));
  const auto results = Score({"kill"}, absl::Seconds(3));
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN") << results.status();
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("have changed since the job began"));
  // The old files bring it back.
  WritePlugin("conformance/program.py", kProgram);
  EXPECT_EQ(ScoreOf("score 1"), 1);
}

TEST_F(PluginHostTest, APluginWithManyErrorsGetsNoAnswersForAWhile) {
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

TEST_F(PluginHostTest, StopEndsCallsThatHangAndTheirProcesses) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  absl::Status status;
  std::thread caller([&] { status = Score({"hang"}, absl::Minutes(10)).status(); });
  host_->Stop();
  caller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(PluginHostTest, CapacityIsTwiceWhatTheProcessesTake) {
  StartHost({{"in_flight", 3}}, {{"processes", 2}});
  ASSERT_EQ(ScoreOf("score 1"), 1);
  while (*host_->Capacity() < 12) Clock::Real()->Sleep(absl::Milliseconds(1));
  EXPECT_EQ(*host_->Capacity(), 12u);
}

}  // namespace
}  // namespace sluice
