#include "tools/sluice/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "common/rpc/convert.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

JobHistory History() {
  JobHistory history;
  history.status.set_name("digits");
  history.status.set_state(job::v1::JOB_STATE_RUNNING);
  for (int64_t k : {0, 2}) {
    job::v1::StepReport& step = history.steps.emplace_back();
    step.set_k(k);
    step.mutable_version()->set_incarnation(1);
    (*step.mutable_values())["reward_mean"] = 0.5;
  }
  return history;
}

// The text between the tags of the page's data.
std::string DataText(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(ReportTest, TheStepsAreColumnsWithNullWhereAStepHasNoValue) {
  JobHistory history = History();
  (*history.steps[1].mutable_values())["kl"] = 0.25;
  (*history.steps[1].mutable_values())["ess_seq"] = std::numeric_limits<double>::quiet_NaN();

  const auto data = nlohmann::json::parse(DataText(ReportPage(history, kNow)));
  EXPECT_EQ(data["made"], 1'800'000'000);
  EXPECT_EQ(data["steps"]["k"], nlohmann::json({0, 2}));
  EXPECT_EQ(data["steps"]["values"]["kl"], nlohmann::json({nullptr, 0.25}));
  EXPECT_EQ(data["steps"]["values"]["ess_seq"], nlohmann::json({nullptr, nullptr}));
  EXPECT_EQ(data["status"]["state"], "RUNNING");
}

TEST(ReportTest, TextOfTheJobCannotEndItsElementOrFillAPlaceOfThePage) {
  JobHistory history = History();
  common::v1::Event& event = history.events.emplace_back();
  event.set_severity(common::v1::SEVERITY_WARNING);
  event.set_message("</script><script>hacked()</script> /*SCRIPT*/ \xff");

  const std::string page = ReportPage(history, kNow);
  EXPECT_THAT(page, Not(HasSubstr("<script>hacked")));
  const auto data = nlohmann::json::parse(DataText(page));
  EXPECT_THAT(data["events"][0]["message"].get<std::string>(),
              HasSubstr("</script><script>hacked()</script> /*SCRIPT*/"));
  EXPECT_EQ(data["events"][0]["severity"], "warning");
}

TEST(ReportTest, ThePageNamesNoOtherFile) {
  const std::string page = ReportPage(History(), kNow);
  for (const char* part : {"src=", "https://", "url(", "\nimport ", "\nexport "})
    EXPECT_THAT(page, Not(HasSubstr(part))) << part;
}

TEST(ReportTest, AJobWithoutAStepHasAReportToo) {
  JobHistory history;
  history.status.set_name("empty");
  const auto data = nlohmann::json::parse(DataText(ReportPage(history, kNow)));
  EXPECT_TRUE(data["steps"]["k"].empty());
}

}  // namespace
}  // namespace sluice::cli
