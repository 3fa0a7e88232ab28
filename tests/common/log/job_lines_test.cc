#include "common/log/job_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace sluice::log {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kAlices[] = "0123456789abcdef0123456789abcdef";
constexpr char kBobs[] = "fedcba9876543210fedcba9876543210";

JobLines::Line LineOf(const std::string& json, int64_t second = 0, Level level = Level::kInfo) {
  return {.at = absl::FromUnixSeconds(second), .level = level, .json = json};
}

std::vector<std::string> Texts(const JobLines::Answer& answer) {
  std::vector<std::string> texts;
  for (const JobLines::Line& line : answer.lines) texts.push_back(line.json);
  return texts;
}

TEST(JobLinesTest, LinesAreReadFromTheOneThatTheCallerHas) {
  JobLines lines;
  lines.Begin(kAlices, "digits");
  for (const char* text : {"a", "b", "c"}) lines.Add("digits", LineOf(text));

  const JobLines::Answer all = lines.Read(kAlices, {});
  EXPECT_THAT(Texts(all), ElementsAre("a", "b", "c"));
  EXPECT_NE(all.run, 0u);
  EXPECT_EQ(all.newest, 3u);
  EXPECT_EQ(all.lost, 0u);
  const JobLines::Answer rest = lines.Read(kAlices, {.after = 2, .run = all.run});
  EXPECT_THAT(Texts(rest), ElementsAre("c"));
  EXPECT_EQ(rest.lines[0].number, 3u);
  EXPECT_THAT(Texts(lines.Read(kAlices, {.after = 3, .run = all.run})), IsEmpty());
  EXPECT_THAT(Texts(lines.Read(kAlices, {.after = 2, .run = all.run + 1})),
              ElementsAre("a", "b", "c"))
      << "the daemon was started anew: the caller has none of these lines";
}

TEST(JobLinesTest, AJobThatIsNotKnownHasNoLines) {
  JobLines lines;
  lines.Add("digits", LineOf("nobody has begun"));
  EXPECT_EQ(lines.Read(kAlices, {}).run, 0u);
  EXPECT_THAT(lines.Read(kAlices, {}).lines, IsEmpty());
}

TEST(JobLinesTest, ALaterJobOfTheSameNameHasNoneOfTheLinesBefore) {
  JobLines lines;
  lines.Begin(kAlices, "digits");
  lines.Add("digits", LineOf("while alice's runs"));
  lines.End(kAlices, "digits");
  lines.Add("digits", LineOf("its last words"));
  lines.Begin(kBobs, "digits");
  lines.Add("digits", LineOf("while bob's runs"));

  EXPECT_THAT(Texts(lines.Read(kAlices, {})), ElementsAre("while alice's runs", "its last words"));
  EXPECT_THAT(Texts(lines.Read(kBobs, {})), ElementsAre("while bob's runs"));

  // Alice's goes on after Bob's has ended.
  lines.End(kBobs, "digits");
  lines.Begin(kAlices, "digits");
  lines.Add("digits", LineOf("again"));
  EXPECT_THAT(Texts(lines.Read(kAlices, {})),
              ElementsAre("while alice's runs", "its last words", "again"));
  EXPECT_THAT(Texts(lines.Read(kBobs, {})), ElementsAre("while bob's runs"));
}

TEST(JobLinesTest, WhileTwoJobsOfOneNameRunNeitherGetsALineOfTheOther) {
  JobLines lines;
  lines.Begin(kAlices, "digits");
  lines.Begin(kBobs, "digits");
  lines.Add("digits", LineOf("whose?"));
  lines.AddTo(kAlices, LineOf("alice's by its id"));
  lines.Add(kBobs, LineOf("bob's, named by its id"));
  lines.End(kAlices, "digits");
  lines.Add("digits", LineOf("bob's"));

  EXPECT_THAT(Texts(lines.Read(kAlices, {})), ElementsAre("alice's by its id"));
  EXPECT_THAT(Texts(lines.Read(kBobs, {})), ElementsAre("bob's, named by its id", "bob's"));
}

TEST(JobLinesTest, AJobThatIsNamedLikeTheIdOfAnotherGetsNoneOfItsLines) {
  JobLines lines;
  lines.Begin(kAlices, "digits");
  lines.Begin(kBobs, /*name=*/kAlices);
  lines.Add(kAlices, LineOf("whose?"));
  EXPECT_THAT(lines.Read(kAlices, {}).lines, IsEmpty());
  EXPECT_THAT(lines.Read(kBobs, {}).lines, IsEmpty());
}

TEST(JobLinesTest, AJobThatBeginsTwiceRunsUntilItsSecondEnd) {
  JobLines lines;
  lines.Begin(kAlices, "digits");
  lines.Begin(kAlices, "digits");
  lines.End(kAlices, "digits");
  lines.Add("digits", LineOf("a"));
  lines.End(kAlices, "digits");
  EXPECT_THAT(Texts(lines.Read(kAlices, {})), ElementsAre("a"));
}

TEST(JobLinesTest, TheOldestLinesAreDroppedAndCountedAsLost) {
  JobLines lines({.lines = 3});
  lines.Begin(kAlices, "digits");
  for (int i = 1; i <= 10; ++i) lines.Add("digits", LineOf(absl::StrCat(i), i));

  const JobLines::Answer all = lines.Read(kAlices, {});
  EXPECT_THAT(Texts(all), ElementsAre("8", "9", "10"));
  EXPECT_EQ(all.lost, 7u);
  EXPECT_EQ(lines.Read(kAlices, {.after = 5, .run = all.run}).lost, 2u);
  EXPECT_EQ(lines.Read(kAlices, {.after = 7, .run = all.run}).lost, 0u);
  EXPECT_EQ(lines.Read(kAlices, {.since = absl::FromUnixSeconds(9)}).lost, 0u)
      << "those that were lost are older";
  EXPECT_EQ(lines.Read(kAlices, {.tail = 3}).lost, 0u) << "there are as many as were asked for";
  EXPECT_EQ(lines.Read(kAlices, {.tail = 4}).lost, 7u);
}

TEST(JobLinesTest, TheBytesOfAJobAreBounded) {
  JobLines lines({.bytes = 10'000});
  for (int i = 0; i < 100; ++i) lines.AddTo(kAlices, LineOf(std::string(1000, 'x')));
  const JobLines::Answer answer = lines.Read(kAlices, {});
  EXPECT_GE(answer.lines.size(), 8u);
  EXPECT_LE(answer.lines.size(), 10u);
  EXPECT_EQ(answer.lost + answer.lines.size(), 100u);

  lines.AddTo(kAlices, LineOf(std::string(20'000, 'x')));
  EXPECT_THAT(lines.Read(kAlices, {}).lines, IsEmpty()) << "no line is larger than the limit";
  EXPECT_EQ(lines.Read(kAlices, {}).newest, 101u);
}

TEST(JobLinesTest, OfTooManyJobsTheOneThatIsQuietForLongestIsForgotten) {
  JobLines lines({.jobs = 2});
  lines.Begin(kAlices, "digits");
  lines.Begin(kBobs, "sums");
  const uint64_t run = lines.Read(kAlices, {}).run;
  lines.Add("sums", LineOf("b"));
  lines.AddTo("third", LineOf("c"));
  EXPECT_EQ(lines.Read(kAlices, {}).run, 0u);
  EXPECT_THAT(Texts(lines.Read(kBobs, {})), ElementsAre("b"));

  // It still runs. Its lines are counted anew, so that nobody takes them for the old ones.
  lines.Add("digits", LineOf("a"));
  EXPECT_THAT(Texts(lines.Read(kAlices, {.after = 1, .run = run})), ElementsAre("a"));
  lines.End(kAlices, "digits");
  lines.End(kBobs, "sums");
}

TEST(JobLinesTest, AQueryLeavesOutLevelsTimesAndAllButTheNewest) {
  JobLines lines;
  lines.AddTo(kAlices, LineOf("a", 1, Level::kError));
  lines.AddTo(kAlices, LineOf("b", 2, Level::kInfo));
  lines.AddTo(kAlices, LineOf("c", 3, Level::kWarning));
  lines.AddTo(kAlices, LineOf("d", 4, Level::kDebug));
  EXPECT_THAT(Texts(lines.Read(kAlices, {.lowest = Level::kWarning})), ElementsAre("a", "c"));
  EXPECT_THAT(Texts(lines.Read(kAlices, {.since = absl::FromUnixSeconds(2)})),
              ElementsAre("b", "c", "d"));
  EXPECT_THAT(Texts(lines.Read(kAlices, {.lowest = Level::kInfo, .tail = 2})),
              ElementsAre("b", "c"));
  EXPECT_EQ(lines.Read(kAlices, {.lowest = Level::kError}).newest, 4u);
}

TEST(JobLinesTest, WrittenLinesOfAJobAreKeptAsTheyWereWritten) {
  const auto scope = std::make_unique<JobScope>(kAlices, "digits");
  testing::internal::CaptureStderr();
  Info("first", {{"job_id", "digits"}, {"text", "a\x1b[31m\n"}});
  Info("of another job", {{"job_id", "sums"}});
  Info("of no job");
  Debug("not enabled", {{"job_id", "digits"}});
  WriteFor(kAlices, Level::kWarning, "by id");
  Error("long", {{"job_id", "digits"}, {"text", std::string(1 << 20, 'x')}});
  const std::string written = testing::internal::GetCapturedStderr();

  const JobLines::Answer kept = ProcessJobLines().Read(kAlices, {});
  ASSERT_EQ(kept.lines.size(), 3u);
  EXPECT_EQ(written.substr(0, kept.lines[0].json.size() + 1), kept.lines[0].json + "\n");
  EXPECT_EQ(kept.lines[0].json.find('\x1b'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(kept.lines[1].json)["event"], "by id");
  EXPECT_EQ(kept.lines[1].level, Level::kWarning);
  const auto stub = nlohmann::json::parse(kept.lines[2].json);
  EXPECT_EQ(stub["event"], "long");
  EXPECT_GT(stub["bytes_left_out"], 1 << 20);
  EXPECT_EQ(kept.newest, 3u);
}

}  // namespace
}  // namespace sluice::log
