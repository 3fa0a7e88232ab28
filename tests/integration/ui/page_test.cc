// The controller's web page, in a real browser, with real daemons and a job that trains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/daemon/controller_link.h"
#include "common/rpc/convert.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/ui/browser.h"

namespace sluice::integration {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kHostile[] =
    "</td><script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 1\">";

class UiPageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::Exists()) GTEST_SKIP() << "there is no /usr/bin/chromium: apt install chromium";
    auto browser = Browser::Start(1360, 900);
    ASSERT_EQ(browser.status(), absl::OkStatus());
    browser_ = *std::move(browser);
  }

  void Start(ClusterOptions options = {}) {
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
    url_ = absl::StrCat("http://", cluster_->ops("controller-0"), "/ui");
  }

  // Waits until the page shows the text.
  void AwaitText(const std::string& text) {
    EXPECT_EQ(browser_->Await(absl::StrCat("document.body.innerText.includes(",
                                           nlohmann::json(text).dump(), ")"),
                              kLong),
              absl::OkStatus());
  }
  void Await(const std::string& expression) {
    EXPECT_EQ(browser_->Await(expression, kLong), absl::OkStatus());
  }
  void Open(const std::string& hash) {
    ASSERT_EQ(browser_->Evaluate(absl::StrCat("location.hash = '", hash, "'")).status(),
              absl::OkStatus());
  }
  // Takes a picture if the developer asks for it.
  void Picture(const std::string& name) {
    const char* const dir = std::getenv("SLUICE_UI_PICTURES");
    if (dir == nullptr) return;
    for (const bool dark : {false, true}) {
      ASSERT_EQ(browser_->SetDark(dark), absl::OkStatus());
      EXPECT_EQ(browser_->Screenshot(absl::StrCat(dir, "/", name, dark ? "-dark" : "", ".png")),
                absl::OkStatus());
    }
    ASSERT_EQ(browser_->SetDark(false), absl::OkStatus());
  }

  std::unique_ptr<Browser> browser_;
  std::unique_ptr<Cluster> cluster_;
  std::string url_;
};

TEST_F(UiPageTest, ThePageTellsWhatToTypeFirstAndThenShowsTheJobToItsEnd) {
  ASSERT_NO_FATAL_FAILURE(Start({.rollouts = 2}));
  ASSERT_EQ(browser_->Open(url_), absl::OkStatus());
  AwaitText("No jobs yet");
  AwaitText("sluice job submit configs/examples/digits.yaml");
  Picture("empty");

  const auto job = SubmitDigits(cluster_.get(), 1000000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  Await("document.querySelector('#jobs .name').textContent == 'digits'");
  AwaitText("RUNNING");
  ASSERT_EQ((*job)->AwaitStep(60, kLong), absl::OkStatus());
  Await("document.querySelector('#jobs .spark path') != null");
  Picture("jobs");

  Open(absl::StrCat("#/job/", (*job)->id()));
  // A curve in each of the six figures, and one area for each phase of a step.
  Await("document.querySelectorAll('figure .curve').length >= 6");
  Await("document.querySelectorAll('figure .area').length == 6");
  AwaitText("balanced");
  Await("document.querySelectorAll('.chain li').length > 0");
  AwaitText("queue-0");
  Await("document.querySelector('#events').innerText.includes('assigned')");
  Picture("job");

  Open("#/daemons");
  Await("document.querySelectorAll('#daemons tr').length == 5");
  EXPECT_THAT(browser_->Text(), AllOf(HasSubstr("rollout-1"), HasSubstr("trainer-0"),
                                      HasSubstr(cluster_->address("queue-0"))));
  Picture("daemons");

  ASSERT_EQ(cluster_->Sluice({"job", "cancel", (*job)->id()})->exit, 0);
  ASSERT_EQ((*job)->AwaitEnd(kLong).status(), absl::OkStatus());
  Open(absl::StrCat("#/job/", (*job)->id()));
  AwaitText("CANCELLED");
  AwaitText("balanced");
  Await("document.querySelectorAll('figure .curve').length >= 6");
  Picture("ended");
  EXPECT_EQ(browser_->errors(), "");
}

// The report of a job: a file that is opened without any daemon.
TEST_F(UiPageTest, TheReportOfAJobShowsItsCurvesItsFaultsAndItsLineage) {
  ASSERT_NO_FATAL_FAILURE(Start());
  auto job = SubmitDigits(cluster_.get(), 60);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(30, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitEnd(kLong).status(), absl::OkStatus());
  const std::string path = absl::StrCat(testing::TempDir(), "report-", (*job)->id(), ".html");
  ASSERT_EQ(cluster_->Sluice({"job", "report", "digits", "-o", path})->exit, 0);
  job->reset();
  cluster_.reset();

  ASSERT_EQ(browser_->Open(absl::StrCat("file://", path)), absl::OkStatus());
  AwaitText("SUCCEEDED");
  Await("document.querySelectorAll('figure .curve').length >= 12");
  Await("document.querySelectorAll('figure .area').length == 6");
  Await("document.querySelectorAll('#lineage tr').length == 2");
  Await("document.querySelector('#faults').innerText.includes('trainer-0')");
  Await("document.querySelector('#job-file').textContent.includes('max_staleness')");
  AwaitText("balanced");
  Picture("report");
  EXPECT_EQ(browser_->errors(), "");
  EXPECT_EQ(std::remove(path.c_str()), 0);
}

TEST_F(UiPageTest, ThePageSaysWhenTheControllerIsGoneAndGoesOnWhenItIsBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(browser_->Open(url_), absl::OkStatus());
  AwaitText("updated");

  ASSERT_EQ(cluster_->Kill("controller-0"), absl::OkStatus());
  AwaitText("The controller does not answer, since");
  Picture("gone");

  ASSERT_EQ(cluster_->Start("controller-0"), absl::OkStatus());
  AwaitText("updated");
  EXPECT_THAT(browser_->Text(), Not(HasSubstr("does not answer")));
}

TEST_F(UiPageTest, AStalledJobShowsWhomItWaitsFor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto job = SubmitDigits(cluster_.get(), 1000000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  cluster_->Signal("trainer-0", SIGSTOP);

  ASSERT_EQ(browser_->Open(absl::StrCat(url_, "#/job/", (*job)->id())), absl::OkStatus());
  Await(
      "document.querySelector('.chain .fault') != null && "
      "document.querySelector('.chain .fault').innerText.includes('trainer-0')");
  Picture("stalled");
  cluster_->Signal("trainer-0", SIGCONT);
}

TEST_F(UiPageTest, TextOfDaemonsIsShownAndNeverRun) {
  ASSERT_NO_FATAL_FAILURE(Start({.trainers = 0}));
  daemon::ControllerLink* trainer = nullptr;
  daemon::ControllerLink link({.controller = cluster_->address("controller-0"),
                               .id = "trainer-0",
                               .role = rpc::Role::kTrainer,
                               .addresses = {{"grpc", "127.0.0.1:1"}}},
                              {.on_registered = {},
                               .on_assigned =
                                   [&](const registry::v1::HeartbeatResponse& assigned) {
                                     for (const registry::v1::Assignment& job : assigned.jobs()) {
                                       registry::v1::Progress progress;
                                       progress.set_job(job.job());
                                       progress.set_incarnation(job.incarnation());
                                       progress.set_phase(kHostile);
                                       trainer->SetProgress(progress);
                                       common::v1::Event event;
                                       event.set_severity(common::v1::SEVERITY_ALARM);
                                       event.set_code(kHostile);
                                       event.set_message(kHostile);
                                       trainer->RaiseEvent(event);
                                     }
                                   },
                               .on_drain = {},
                               .on_refused = {}});
  trainer = &link;
  link.SetLoad({{kHostile, 1}});
  link.Start();
  const auto job = SubmitDigits(cluster_.get(), 10);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitEvent(kHostile, kLong), absl::OkStatus());

  ASSERT_EQ(browser_->Open(absl::StrCat(url_, "#/job/", (*job)->id())), absl::OkStatus());
  AwaitText(kHostile);
  EXPECT_EQ(*browser_->Evaluate("document.querySelectorAll('main script, main img').length"), 0);
  Open("#/daemons");
  AwaitText(kHostile);
  EXPECT_EQ(*browser_->Evaluate("document.querySelectorAll('main script, main img').length"), 0);
  EXPECT_EQ(*browser_->Evaluate("typeof window.hacked"), "undefined");
  EXPECT_EQ(browser_->errors(), "");

  // Were the page to make the mistake, the browser would still not run it.
  ASSERT_EQ(browser_
                ->Evaluate(absl::StrCat("document.body.insertAdjacentHTML('beforeend', ",
                                        nlohmann::json(kHostile).dump(), ")"))
                .status(),
            absl::OkStatus());
  Await("document.querySelector('body > img') != null");
  EXPECT_EQ(*browser_->Evaluate("typeof window.hacked"), "undefined");
  link.Stop();
}

}  // namespace
}  // namespace sluice::integration
