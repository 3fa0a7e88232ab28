#include "common/daemon/log_lines.h"

#include <gtest/gtest.h>

#include <string>

#include "common/log/job_lines.h"
#include "common/log/log.h"
#include "sluice/admin/v1/admin.pb.h"

namespace sluice::daemon {
namespace {

constexpr char kJob[] = "00112233445566778899aabbccddeeff";

admin::v1::LogsRequest QuestionAbout(const std::string& job) {
  admin::v1::LogsRequest request;
  request.mutable_call()->mutable_job()->set_job(job);
  return request;
}

TEST(LogLinesTest, AJobWithoutLinesIsAnsweredWithOneEmptyMessage) {
  const auto responses = ReadLogLines(QuestionAbout("ffeeddccbbaa99887766554433221100"));
  ASSERT_EQ(responses.size(), 1u);
  EXPECT_EQ(responses[0].run(), 0u);
  EXPECT_EQ(responses[0].lines_size(), 0);
}

TEST(LogLinesTest, LinesComeInMessagesOfBoundedSizeAndTheLastSaysHowFarItCame) {
  const log::JobScope scope(kJob, "digits");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 20; ++i)
    log::Info("long", {{"job_id", "digits"}, {"text", std::string(50'000, 'x')}});
  log::Warning("last", {{"job_id", "digits"}});
  (void)testing::internal::GetCapturedStderr();

  const auto responses = ReadLogLines(QuestionAbout(kJob));
  EXPECT_GE(responses.size(), 4u);
  uint64_t number = 0;
  for (size_t i = 0; i < responses.size(); ++i) {
    EXPECT_LE(responses[i].ByteSizeLong(), 300'000u);
    EXPECT_EQ(responses[i].run(), responses[0].run());
    EXPECT_EQ(responses[i].newest(), i + 1 == responses.size() ? 21u : 0u);
    for (const common::v1::LogLine& line : responses[i].lines()) EXPECT_EQ(line.number(), ++number);
  }
  EXPECT_EQ(number, 21u);

  admin::v1::LogsRequest rest = QuestionAbout(kJob);
  rest.set_run(responses[0].run());
  rest.set_after(19);
  rest.set_lowest(common::v1::LOG_LEVEL_WARNING);
  const auto newest = ReadLogLines(rest);
  ASSERT_EQ(newest.size(), 1u);
  ASSERT_EQ(newest[0].lines_size(), 1);
  EXPECT_EQ(newest[0].lines(0).level(), common::v1::LOG_LEVEL_WARNING);
  EXPECT_EQ(newest[0].newest(), 21u);

  rest.clear_lowest();
  *rest.mutable_since() = newest[0].lines(0).at();
  rest.mutable_since()->set_seconds(rest.since().seconds() + 3600);
  EXPECT_EQ(ReadLogLines(rest)[0].lines_size(), 0);
}

}  // namespace
}  // namespace sluice::daemon
