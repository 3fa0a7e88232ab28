// sluice job logs, on real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/process.h"

namespace sluice::integration {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<nlohmann::json> ParseLines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(LogsTest, TheLinesOfAJobComeFromAllItsDaemonsInTheOrderOfTime) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/1'000'000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, kLong), absl::OkStatus());

  const auto shown = cluster.Sluice({"job", "logs", (*job)->id(), "-o", "jsonl"});
  ASSERT_EQ(shown.status(), absl::OkStatus());
  EXPECT_EQ(shown->exit, 0) << shown->err;
  EXPECT_EQ(shown->err, "");
  std::set<std::string> daemons;
  std::string last;
  for (const nlohmann::json& line : ParseLines(shown->out)) {
    daemons.insert(line["daemon"].get<std::string>());
    const auto ts = line["ts"].get<std::string>();
    EXPECT_LE(last, ts);
    last = ts;
  }
  EXPECT_EQ(daemons, (std::set<std::string>{"controller-0", "queue-0", "reward-0", "rollout-0",
                                            "trainer-0"}));

  // As text, of one daemon and the newest line alone.
  const auto one = cluster.Sluice(
      {"job", "logs", (*job)->id(), "--daemon", "trainer-0", "--tail", "1", "--level", "info"});
  ASSERT_EQ(one.status(), absl::OkStatus());
  const std::vector<std::string> lines = absl::StrSplit(one->out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 1u) << one->out;
  EXPECT_THAT(lines[0], AllOf(HasSubstr(" trainer-0 "), Not(HasSubstr("{"))));
  EXPECT_EQ(cluster.Sluice({"job", "logs", (*job)->id(), "--daemon", "nobody"})->exit, 5);

  // A daemon that is down is named, and the others answer.
  ASSERT_EQ(cluster.Kill("reward-0"), absl::OkStatus());
  const auto without = cluster.Sluice({"job", "logs", (*job)->id()});
  EXPECT_EQ(without->exit, 0);
  EXPECT_THAT(without->err, HasSubstr("the lines of reward-0 are missing: "));
  EXPECT_THAT(without->out, AllOf(HasSubstr(" queue-0 "), Not(HasSubstr(" reward-0 "))));

  // A bug report has the same lines, though these daemons are not of `dev up`.
  const std::string report = cluster.dir() + "/report.tar.gz";
  const auto made = cluster.Sluice({"bug-report", (*job)->id(), "-o", report});
  ASSERT_EQ(made.status(), absl::OkStatus());
  ASSERT_EQ(made->exit, 0) << made->err;
  const auto log = RunToEnd({.binary = "/bin/tar",
                             .args = {"-xzOf", report, "--wildcards", "*/jobs/*/log.jsonl"},
                             .log = cluster.dir() + "/tar.log"},
                            kLong);
  ASSERT_EQ(log.status(), absl::OkStatus());
  std::set<std::string> notes;
  daemons.clear();
  for (const nlohmann::json& line : ParseLines(log->out)) {
    if (line.contains("note")) notes.insert(line["note"].get<std::string>());
    else daemons.insert(line["daemon"].get<std::string>());
  }
  EXPECT_EQ(daemons, (std::set<std::string>{"controller-0", "queue-0", "rollout-0", "trainer-0"}));
  EXPECT_THAT(notes, testing::Contains(HasSubstr("the lines of reward-0 are missing: ")));
}

TEST(LogsTest, FollowedLinesGoOnUntilCtrlCAndHaveTheTraceOfTheCommandThatCausedThem) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/1'000'000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, kLong), absl::OkStatus());
  auto follower = cluster.StartSluice({"job", "logs", (*job)->id(), "--follow", "-o", "jsonl"});
  ASSERT_EQ(follower.status(), absl::OkStatus());
  ASSERT_EQ((*follower)->ReadLine(kLong).status(), absl::OkStatus());

  const auto paused = cluster.Sluice({"job", "pause", (*job)->id(), "-v"});
  ASSERT_EQ(paused.status(), absl::OkStatus());
  ASSERT_EQ(paused->err.rfind("trace ", 0), 0u) << paused->err;
  const std::string trace = paused->err.substr(6, 32);
  nlohmann::json line;
  do {
    const absl::StatusOr<std::string> text = (*follower)->ReadLine(kLong);
    ASSERT_EQ(text.status(), absl::OkStatus());
    line = nlohmann::json::parse(*text);
  } while (line["event"] != "audit" || line["method"] != "Pause");
  EXPECT_EQ(line["trace_id"], trace);
  EXPECT_EQ(line["person"], "operator");
  EXPECT_EQ(line["job_id"], (*job)->status().name());

  (*follower)->Signal(SIGINT);
  EXPECT_EQ((*follower)->Await(kLong).value_or(-1), 130);
}

TEST(LogsTest, ALaterJobOfTheSameNameShowsNoLineOfTheOneBefore) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto first = SubmitDigits(&cluster, /*steps=*/2);
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitEnd(kLong).status(), absl::OkStatus());
  const auto second = SubmitDigits(&cluster, /*steps=*/1'000'000);
  ASSERT_EQ(second.status(), absl::OkStatus());
  ASSERT_EQ((*second)->AwaitStep(1, kLong), absl::OkStatus());
  ASSERT_EQ((*second)->status().name(), (*first)->status().name());

  const auto count = [&](const std::string& job, const std::string& daemon,
                         const std::string& event) {
    const auto shown = cluster.Sluice({"job", "logs", job, "-o", "jsonl", "--daemon", daemon});
    EXPECT_EQ(shown.status(), absl::OkStatus());
    int found = 0;
    for (const nlohmann::json& line : ParseLines(shown->out)) found += line["event"] == event;
    return found;
  };
  for (const std::string& job : {(*first)->id(), (*second)->id()}) {
    EXPECT_GE(count(job, "trainer-0", "job_started"), 1) << job;
    EXPECT_EQ(count(job, "queue-0", "job_set"), 1) << job;
    EXPECT_EQ(count(job, "controller-0", "audit"), 1) << job;
  }
  EXPECT_EQ(count((*first)->id(), "trainer-0", "job_done"), 1);
  EXPECT_EQ(count((*second)->id(), "trainer-0", "job_done"), 0);
}

}  // namespace
}  // namespace sluice::integration
