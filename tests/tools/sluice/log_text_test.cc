#include "tools/sluice/log_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {
namespace {

job::v1::DaemonLine LineWith(const std::string& json) {
  job::v1::DaemonLine line;
  line.set_daemon("queue-0");
  *line.mutable_line()->mutable_at() =
      rpc::ToProto(absl::FromUnixSeconds(1'700'000'000) + absl::Milliseconds(78));
  line.mutable_line()->set_level(common::v1::LOG_LEVEL_WARNING);
  line.mutable_line()->set_json(json);
  return line;
}

std::string TextOf(const std::string& json) {
  return LogLineText(LineWith(json), absl::UTCTimeZone());
}

constexpr char kStart[] = "2023-11-14 22:13:20.078 warning queue-0 ";

TEST(LogText, ALineHasTimeLevelDaemonEventAndFields) {
  EXPECT_EQ(TextOf(log::FormatLine("t", log::Level::kWarning, "queue-0", "batch_cut",
                                   {{"job_id", "digits"},
                                    {"k", 12},
                                    {"closed", true},
                                    {"ratio", 0.5},
                                    {"cause", "the queue is full"},
                                    {"path", "/a/b"},
                                    {"empty", ""}},
                                   "4bf92f3577b34da6a3ce929d0e0e4736")),
            std::string(kStart) +
                "batch_cut k=12 closed=true ratio=0.5 cause=\"the queue is full\" path=/a/b "
                "empty=\"\" trace_id=4bf92f3577b34da6a3ce929d0e0e4736");
}

TEST(LogText, AFieldCannotLookLikeAnotherField) {
  EXPECT_EQ(TextOf(R"({"event":"e","a":"1 b=2","c":"x=y","d":"q\"","k v":1})"),
            std::string(kStart) + R"(e a="1 b=2" c="x=y" d="q\"" k v=1)");
}

TEST(LogText, NoControlCharacterReachesTheTerminal) {
  const std::string hostile =
      "a\x1b[2J\r\nb\x7f\xc2\x9b"
      "31m\xe2\x80\xae\xff";
  EXPECT_EQ(EscapeControls(hostile), "a\\u001b[2J\\u000d\\u000ab\\u007f\\u009b31m\\u202e\\ufffd");
  EXPECT_EQ(EscapeControls("größer 東京 ✓"), "größer 東京 ✓");

  const std::string line =
      log::FormatLine("t", log::Level::kError, "queue-0", "e", {{"text", hostile}});
  for (const std::string& shown : {TextOf(line), TextOf(hostile), EscapeControls(line)}) {
    for (const char c : shown) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << shown;
    EXPECT_EQ(shown.find('\x7f'), std::string::npos);
    EXPECT_EQ(shown.find("\xc2\x9b"), std::string::npos);
  }
  EXPECT_EQ(nlohmann::json::parse(EscapeControls(line)), nlohmann::json::parse(line))
      << "a JSON line means the same";
}

TEST(LogText, ALineThatIsNotJsonIsShownAsItIs) {
  EXPECT_EQ(TextOf("not json"), std::string(kStart) + "not json");
  EXPECT_EQ(TextOf("[1]"), std::string(kStart) + "[1]");
}

TEST(LogText, SilentDaemonsAndLostLinesAreNamed) {
  job::v1::LogsResponse response;
  EXPECT_EQ(LogNotes(response), "");
  response.add_silent()->set_daemon("rollout-1");
  response.mutable_silent(0)->set_cause("it sends no\nheartbeats");
  response.add_lost()->set_daemon("queue-0");
  response.mutable_lost(0)->set_count(7);
  EXPECT_EQ(LogNotes(response),
            "the lines of rollout-1 are missing: it sends no\\u000aheartbeats\n"
            "queue-0 no longer keeps 7 older lines of the job; its own log has them\n");
}

TEST(LogText, LevelsAreParsedByName) {
  EXPECT_EQ(*ParseLogLevel("warning"), common::v1::LOG_LEVEL_WARNING);
  EXPECT_FALSE(ParseLogLevel("loud").ok());
}

}  // namespace
}  // namespace sluice::cli
