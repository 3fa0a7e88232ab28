#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/base/trace.h"

namespace sluice::log {
namespace {

TEST(LogTest, ALineIsJsonWithItsFieldsInOrder) {
  EXPECT_EQ(FormatLine("2026-01-02T03:04:05.678Z", Level::kWarning, "queue-0", "batch_cut",
                       {{"k", 12},
                        {"job_id", "digits"},
                        {"ratio", 0.5},
                        {"closed", true},
                        {"bytes", uint64_t{1} << 63}}),
            R"({"ts":"2026-01-02T03:04:05.678Z","level":"warning","daemon":"queue-0",)"
            R"("job_id":"digits","event":"batch_cut",)"
            R"("k":12,"ratio":0.5,"closed":true,"bytes":9223372036854775808})");
}

TEST(LogTest, HostileTextStaysOneParsableLine) {
  const std::string line = FormatLine("t", Level::kError, "d\n", "e\"",
                                      {{"text", "a\n\"b\\\xff"}, {"nan", std::nan("")}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["text"], "a\n\"b\\\xEF\xBF\xBD");
  EXPECT_TRUE(parsed["nan"].is_null());
}

TEST(LogTest, AStatusIsLoggedAsItsTextAndReason) {
  const auto parsed = nlohmann::json::parse(
      FormatLine("t", Level::kInfo, "d", "e",
                 {{"cause", sluice::Error(absl::StatusCode::kAborted, "FENCED", "2 < 3")},
                  {"end", absl::OkStatus()}}));
  EXPECT_EQ(parsed["cause"], "ABORTED: 2 < 3 (FENCED)");
  EXPECT_EQ(parsed["end"], "OK");
}

TEST(LogTest, ALineThatIsWrittenInATraceEndsWithItsId) {
  const Trace trace = MakeTrace();
  testing::internal::CaptureStderr();
  {
    const TraceScope scope(trace);
    Info("inside", {{"n", 1}});
  }
  Info("outside");
  const std::string written = testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, testing::HasSubstr("\"event\":\"inside\",\"n\":1,\"trace_id\":\"" +
                                          trace.id + "\"}\n"));
  EXPECT_THAT(written, testing::HasSubstr("\"event\":\"outside\"}\n"));
}

TEST(LogTest, LevelsAreParsedByName) {
  Level level = Level::kInfo;
  EXPECT_TRUE(ParseLevel("error", &level));
  EXPECT_EQ(level, Level::kError);
  EXPECT_FALSE(ParseLevel("loud", &level));
}

TEST(LogTest, LinesBelowTheLowestLevelAreLeftOut) {
  Init("test", Level::kWarning);
  testing::internal::CaptureStderr();
  Info("quiet");
  Warning("loud", {{"n", 1}});
  const std::string written = testing::internal::GetCapturedStderr();

  EXPECT_EQ(written.find("quiet"), std::string::npos);
  EXPECT_NE(written.find("\"event\":\"loud\",\"n\":1}\n"), std::string::npos);

  Init("test", Level::kInfo);  // The level is global, so later tests would keep it.
}

TEST(LogTest, AuditLinesAreWrittenAtEachLevel) {
  for (const Level lowest : {Level::kDebug, Level::kInfo, Level::kWarning, Level::kError}) {
    Init("test", lowest);
    testing::internal::CaptureStderr();
    WriteAudit("", {{"person", "alice"}});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::HasSubstr("\"level\":\"info\",\"daemon\":\"test\",\"event\":\"audit\","
                                   "\"person\":\"alice\"}\n"));
  }
  Init("test", Level::kInfo);
}

}  // namespace
}  // namespace sluice::log
