#include "services/controller/ui/ui.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/metrics/metrics.h"
#include "services/controller/loop.h"
#include "services/controller/peers.h"
#include "services/controller/ui/query.h"
#include "services/controller/ui/steps.h"
#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class UiTest : public testing::Test {
 protected:
  // The world's core runs on a loop from now on; what it has stored is in its store.
  void Serve(std::vector<std::string> hosts = {}) {
    peers_.emplace("controller-0");
    loop_.emplace(std::move(world_.core), world_.store(), &world_.clock);
    loop_->Start({.set_job = [](Controller&, const SetJobCall&) {},
                  .release = [](const ReleaseCall&) {},
                  .daemon_changed = [](Controller&, const std::string&) {},
                  .job_changed = [](Controller&, const std::string&) {},
                  .diagnose = [](Controller&, const std::string&) {},
                  .tick = [](Controller&) {},
                  .transaction_tried = [](const char*, absl::Duration) {}});
    ui_.emplace(&*loop_, &*peers_, world_.store(), std::move(hosts));
  }
  ~UiTest() override {
    if (peers_) peers_->Stop();
    if (loop_) loop_->Stop();
  }

  daemon::HttpResponse Get(const std::string& path, const std::string& query = "",
                           const std::string& host = "localhost") {
    return ui_->Answer({.path = path, .query = query, .host = host});
  }
  json GetJson(const std::string& path, const std::string& query = "") {
    const daemon::HttpResponse response = Get("/ui/api/" + path, query);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  std::vector<std::string> Names(const std::string& query) {
    const json list = GetJson("jobs", query);
    std::vector<std::string> names;
    for (const json& job : list["jobs"]) names.push_back(job["name"]);
    return names;
  }

  metrics::Registry metrics_;
  World world_;
  std::optional<Peers> peers_;
  std::optional<Loop> loop_;
  std::optional<Ui> ui_;
};

TEST_F(UiTest, OnlyItsOwnHostsAreAnswered) {
  Serve({"sluice.example.com"});
  for (const char* host : {"", "localhost", "LOCALHOST:7401", "127.0.0.1:7401", "[::1]:7401",
                           "Sluice.Example.com", "sluice.example.com:7401"}) {
    EXPECT_EQ(Get("/ui", "", host).status, 200) << host;
    EXPECT_EQ(Get("/ui/api/jobs", "", host).status, 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "10.0.0.1:7401", "sluice.example.com.evil.example"}) {
    EXPECT_EQ(Get("/ui", "", host).status, 403) << host;
    EXPECT_EQ(Get("/ui/api/jobs", "", host).status, 403) << host;
  }
}

TEST_F(UiTest, EveryAnswerForbidsScriptsAndFramesOfOthers) {
  Serve();
  for (const char* path : {"/ui", "/ui/app.js", "/ui/style.css", "/ui/nothing", "/ui/api/jobs"}) {
    std::map<std::string, std::string> headers;
    for (const auto& [name, value] : Get(path).headers) headers[name] = value;
    EXPECT_THAT(headers["Content-Security-Policy"],
                testing::AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self';"),
                               HasSubstr("frame-ancestors 'none'")))
        << path;
    EXPECT_EQ(headers["X-Content-Type-Options"], "nosniff") << path;
  }
  EXPECT_EQ(Get("/ui/nothing").status, 404);
  EXPECT_EQ(Get("/ui/../etc/passwd").status, 404);
  EXPECT_EQ(Get("/ui/api/nothing").status, 404);
  EXPECT_EQ(Get("/ui/api/jobs/nobody").status, 404);
  EXPECT_EQ(Get("/ui/api/jobs", "limit=0").status, 400);
  EXPECT_EQ(Get("/ui/api/jobs", "skip=-1").status, 400);
}

TEST_F(UiTest, TheListShowsTheNewestFirstPageByPage) {
  for (const char* name : {"a-one", "b-two", "c-three"}) world_.Submit(name);
  ASSERT_TRUE(world_.core->Cancel(world_.now(), "b-two", true).ok());
  world_.Settle();
  Serve();

  EXPECT_THAT(Names(""), ElementsAre("c-three", "b-two", "a-one"));
  EXPECT_THAT(Names("limit=2"), ElementsAre("c-three", "b-two"));
  EXPECT_THAT(Names("limit=2&skip=2"), ElementsAre("a-one"));
  EXPECT_THAT(Names("skip=7"), IsEmpty());
  EXPECT_THAT(Names("show=ended"), ElementsAre("b-two"));
  EXPECT_THAT(Names("show=live&limit=1"), ElementsAre("c-three"));
  EXPECT_THAT(Names("find=%2Dth"), ElementsAre("c-three"));
  const json list = GetJson("jobs", "limit=1");
  EXPECT_EQ(list["total"], 3);
  EXPECT_EQ(list["states"], (json{{"WAITING", 2}, {"CANCELLED", 1}}));
  EXPECT_THAT(std::string(list["jobs"][0]["waits"]), HasSubstr("waits for"));
}

TEST_F(UiTest, AJobIsShownWithItsSpecsLimitsAndItsSteps) {
  world_.StartFleet();
  const std::string id = world_.Run("digits");
  for (int64_t k = 0; k < 3; ++k) world_.Step(id, k);
  Serve();

  const json row = GetJson("jobs")["jobs"][0];
  EXPECT_EQ(row["state"], "RUNNING");
  EXPECT_EQ(row["step"], 3);
  EXPECT_EQ(row["spark"].size(), 3u);

  const json job = GetJson("jobs/digits");
  EXPECT_EQ(job["id"], id);
  EXPECT_EQ(job["steps"]["k"], json({0, 1, 2}));
  EXPECT_EQ(job["steps"]["values"]["reward_mean"].size(), 3u);
  EXPECT_EQ(job["workers"].size(), 4u);
  EXPECT_EQ(job["events"][0]["code"], "submitted");

  // A viewer who has all of it gets nothing again.
  const json again =
      GetJson("jobs/digits", absl::StrCat("cursor=", std::string(job["steps"]["cursor"]),
                                          "&after_event=", job["last_event"].get<int>()));
  EXPECT_THAT(again["steps"]["k"], IsEmpty());
  EXPECT_THAT(again["events"], IsEmpty());
  EXPECT_EQ(again["steps"]["from"], 3);
}

TEST_F(UiTest, DaemonsAreShownWithTheirJobs) {
  world_.StartFleet();
  world_.Submit("digits");
  Serve();
  const json daemons = GetJson("daemons")["daemons"];
  ASSERT_EQ(daemons.size(), 4u);
  for (const json& daemon : daemons) EXPECT_EQ(daemon["jobs"][0]["name"], "digits") << daemon;
}

TEST(UiStepsTest, AViewerGoesBackToTheFirstStepThatIsTrainedAgain) {
  const std::vector<int64_t> drops = {40, 30};
  EXPECT_EQ(Follow({"run", 0, 50}, "run", drops).after, 29);
  EXPECT_EQ(Follow({"run", 1, 35}, "run", drops).after, 29);
  EXPECT_EQ(Follow({"run", 2, 50}, "run", drops).after, 50);
  EXPECT_EQ(Follow({"run", 2, 50}, "run", drops).ToText(), "run.2.50");
  // Another process may have dropped other steps, so all of them are sent again.
  EXPECT_EQ(Follow({"old", 1, 50}, "run", drops).ToText(), "run.2.-1");
  EXPECT_EQ(Follow({"run", 3, 50}, "run", drops).after, -1);
}

TEST(UiStepsTest, ACursorThatIsNoneMeansThatTheViewerHasNothing) {
  EXPECT_EQ(StepCursor::Parse("run.2.50").ToText(), "run.2.50");
  for (const char* text : {"", ".", "..", "run.2", "run.x.50", "run.-1.50", "run.1.-2", "a.1.2.3"})
    EXPECT_EQ(StepCursor::Parse(text).ToText(), ".0.-1") << text;
}

TEST(UiStepsTest, AValueThatOnlySomeStepsHaveIsNullInTheOthers) {
  std::vector<StepReport> steps(3);
  for (int64_t k = 0; k < 3; ++k) steps[static_cast<size_t>(k)].k = k;
  steps[1].values = {{"entropy", 0.123456789}, {"not_drawn", 1}};
  steps[2].values = {{"seconds_step", std::nan("")}};
  const json columns = ColumnsOf(steps);
  EXPECT_EQ(columns["values"], (json{{"entropy", {nullptr, 0.12346, nullptr}},
                                     {"seconds_step", {nullptr, nullptr, nullptr}}}));
}

TEST(UiQueryTest, ValuesAreDecoded) {
  const Query query = Query::Parse("a=1&b=x%20y+z&c&d=%zz%4&a=2&=3");
  EXPECT_EQ(query.Find("a"), "2");
  EXPECT_EQ(query.Find("b"), "x y z");
  EXPECT_EQ(query.Find("c"), "");
  EXPECT_EQ(query.Find("d"), "%zz%4");
  EXPECT_EQ(*query.FindNumber("a", 7, 0, 9), 2);
  EXPECT_EQ(*query.FindNumber("none", 7, 0, 9), 7);
  EXPECT_FALSE(query.FindNumber("a", 7, 3, 9).ok());
  EXPECT_FALSE(query.FindNumber("b", 7, 0, 9).ok());
}

TEST(UiHostsTest, TheFlagListsNamesAndAddresses) {
  EXPECT_THAT(*ParseUiHosts("localhost,Sluice.Example.com,[::1]"),
              ElementsAre("localhost", "sluice.example.com", "[::1]"));
  for (const char* flag : {"a b", "http://x", "x/y", "*"})
    EXPECT_EQ(ParseUiHosts(flag).status().code(), absl::StatusCode::kInvalidArgument) << flag;
}

}  // namespace
}  // namespace sluice::controller
