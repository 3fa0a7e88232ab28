// A real Prometheus scrapes a real fleet, with the rules and dashboards of deploy/monitoring.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/pki/certificate.h"
#include "common/pki/tls_dir.h"
#include "nlohmann/json.hpp"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/prometheus.h"
#include "tests/integration/harness/tmpfs.h"
#include "tools/monitoring/table.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {
using testing::Contains;
using testing::IsEmpty;
using testing::Not;

const std::string kMonitoring = std::string(SLUICE_SOURCE_DIR) + "/deploy/monitoring";

// The queries of all dashboards, by dashboard and panel, for all jobs.
std::map<std::string, std::string> ReadPanels() {
  std::map<std::string, std::string> queries;
  for (const auto& entry : std::filesystem::directory_iterator(kMonitoring + "/dashboards")) {
    const nlohmann::json dashboard = nlohmann::json::parse(*ReadFile(entry.path().string()));
    for (const nlohmann::json& panel : dashboard["panels"]) {
      for (const nlohmann::json& target : panel["targets"]) {
        queries[absl::StrCat(entry.path().stem().string(), ": ", std::string(panel["title"]))] =
            absl::StrReplaceAll(std::string(target["expr"]), {{"$job_id", ".*"}});
      }
    }
  }
  return queries;
}

// The rules of the tree with short times, so that a fault is seen at once. How long an alert waits
// is tested in deploy/monitoring/rules_test.yaml.
std::string WriteHastyRules(const std::string& dir) {
  const std::string rules = *ReadFile(kMonitoring + "/rules.yaml"), path = dir + "/rules.yaml";
  const std::string hasty = absl::StrReplaceAll(rules, {{"for: 2m", "for: 0s"},
                                                        {"for: 1m", "for: 0s"},
                                                        {"for: 10m", "for: 0s"},
                                                        {"_seconds, 120)", "_seconds, 5)"},
                                                        {", 14400)", ", 10)"}});
  EXPECT_EQ(WriteFileAtomic(path, hasty), absl::OkStatus());
  return path;
}

class MonitoringTest : public testing::Test {
 protected:
  // Starts the fleet, and a Prometheus with these rules that has seen all of it.
  void StartFleet(const std::string& rules) {
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    Prometheus::Options options{.targets = {}, .rules = rules, .dir = cluster_.dir()};
    for (const std::string& id : cluster_.ids()) options.targets.push_back(cluster_.ops(id));
    auto prometheus = Prometheus::Start(options);
    ASSERT_TRUE(prometheus.ok()) << prometheus.status();
    prometheus_ = *std::move(prometheus);
    ASSERT_EQ(prometheus_->AwaitSeries("sluice_build_info", options.targets.size()),
              absl::OkStatus());
    ExpectEnds("SluiceDaemonDown");  // It fired as long as no controller was seen.
    EXPECT_THAT(Firing(), IsEmpty());
  }
  // Submits a job that does not end by itself.
  void StartJob(std::vector<std::string> sets = {}) {
    sets.push_back("limits.wall=30m");
    auto job = SubmitDigits(&cluster_, 1000000, std::move(sets));
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  std::set<std::string> Firing() {
    const auto firing = prometheus_->ListFiring();
    EXPECT_TRUE(firing.ok()) << firing.status();
    return firing.value_or(std::set<std::string>());
  }
  void ExpectFires(const std::string& alert) {
    EXPECT_EQ(prometheus_->AwaitFiring(alert), absl::OkStatus());
  }
  // The series of an alert while it fires for what has this label, such as mount="log".
  static std::string FiringFor(const std::string& alert, const std::string& label) {
    return absl::StrCat("ALERTS{alertname=\"", alert, "\",alertstate=\"firing\",", label, "}");
  }
  void ExpectSeries(const std::string& query) {
    ASSERT_EQ(prometheus_->AwaitSeries(query), absl::OkStatus());
  }
  void ExpectEnds(const std::string& alert) {
    EXPECT_EQ(prometheus_->AwaitSilent(alert), absl::OkStatus());
  }

  Cluster cluster_{{.tls = true}};
  std::unique_ptr<Prometheus> prometheus_;
  std::unique_ptr<Job> job_;
};

TEST_F(MonitoringTest, EveryPanelShowsDataOfAFleetThatWorksAndRecovers) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(kMonitoring + "/rules.yaml"));
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(5, kLong), absl::OkStatus());
  std::map<std::string, std::string> queries = ReadPanels();
  ASSERT_GE(queries.size(), 30u);
  const auto table = monitoring::ReadTable(kMonitoring + "/table.yaml");
  ASSERT_TRUE(table.ok()) << table.status();
  for (const monitoring::Recorded& recorded : table->recorded)
    queries[recorded.record] = recorded.record;

  const absl::Time killed = absl::Now();
  ASSERT_EQ(cluster_.Kill("queue-0"), absl::OkStatus());
  ASSERT_EQ(job_->AwaitState(job::v1::JOB_STATE_RECOVERING, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_.Start("queue-0"), absl::OkStatus());
  ASSERT_EQ(job_->AwaitStepsSince(killed, 5, kLong), absl::OkStatus());

  for (const auto& [panel, query] : queries)
    EXPECT_EQ(prometheus_->AwaitSeries(query), absl::OkStatus()) << panel;
  EXPECT_THAT(Firing(), IsEmpty());
}

TEST_F(MonitoringTest, ALostDaemonAndAStoppedTrainerFireAndEndTheirAlerts) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(5, kLong), absl::OkStatus());
  ExpectEnds("SluiceJobNoProgress");  // The start may have taken longer than the short time.
  EXPECT_THAT(Firing(), IsEmpty());

  ASSERT_EQ(cluster_.Kill("reward-0"), absl::OkStatus());
  ExpectFires("SluiceDaemonDown");
  ASSERT_EQ(cluster_.Start("reward-0"), absl::OkStatus());
  ExpectEnds("SluiceDaemonDown");

  ExpectEnds("SluiceJobNoProgress");  // The job had no reward meanwhile.
  cluster_.Signal("trainer-0", SIGSTOP);
  ExpectFires("SluiceJobNoProgress");
  cluster_.Signal("trainer-0", SIGCONT);
  ExpectEnds("SluiceJobNoProgress");
}

// The controller has lost the daemon for a while each time. That is the same alert, but it has the
// label of the controller's instance.
TEST_F(MonitoringTest, ADaemonThatStartsAgainAndAgainFiresAnAlertThoughItIsUp) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  const std::string instance = absl::StrCat("instance=\"", cluster_.ops("reward-0"), "\"");
  const std::string started = absl::StrCat("sluice_start_timestamp_seconds{", instance, "}");
  const std::string firing = FiringFor("SluiceDaemonDown", instance);

  for (int starts = 1; starts <= 4; ++starts) {
    const auto fires = prometheus_->Query(firing);
    ASSERT_TRUE(fires.ok()) << fires.status();
    EXPECT_THAT(*fires, IsEmpty()) << starts;

    // The next start must not have the same second.
    ASSERT_NO_FATAL_FAILURE(ExpectSeries(absl::StrCat("time() - ", started, " > 1")));
    ASSERT_EQ(cluster_.Kill("reward-0"), absl::OkStatus());
    ASSERT_EQ(cluster_.Start("reward-0"), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(ExpectSeries(absl::StrCat("changes(", started, "[15m]) >= ", starts)));
  }

  ExpectSeries(firing);
}

// The queue's log has a small disk of its own, which another file fills bit by bit.
TEST_F(MonitoringTest, ADiskThatFillsUpFiresTheAlertBeforeItIsFull) {
  constexpr int kMiB = 1 << 20;
  const Tmpfs disk(cluster_.dir() + "/queue-0", "64m");
  if (!disk.mounted()) GTEST_SKIP() << "needs a tmpfs of its own, and root to mount it";
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  const Fd ballast(open((disk.path() + "/ballast").c_str(), O_CREAT | O_WRONLY, 0600));
  ASSERT_TRUE(ballast.valid());

  for (int used = 8; used <= 56; used += 8) {
    ASSERT_EQ(posix_fallocate(ballast.get(), 0, used * kMiB), 0);
    ASSERT_NO_FATAL_FAILURE(ExpectSeries(
        absl::StrCat("sluice_disk_free_bytes{mount=\"log\"} <= ", (64 - used) * kMiB)));
  }
  ExpectSeries(FiringFor("SluiceRunningOut", "mount=\"log\""));

  ASSERT_EQ(ftruncate(ballast.get(), 0), 0);
  ExpectEnds("SluiceRunningOut");
}

TEST_F(MonitoringTest, ABitFlippedInAnEngineFiresTheAlertAboutWeights) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(5, kLong), absl::OkStatus());
  ASSERT_EQ(prometheus_->AwaitSeries("sluice_weights_verify_failures_total"), absl::OkStatus());
  EXPECT_THAT(Firing(), Not(Contains("SluiceWeightsMismatch")));

  ASSERT_EQ(cluster_.Arm("rollout-0", "rollout.activate.bitflip", "error", 1), absl::OkStatus());

  ExpectFires("SluiceWeightsMismatch");
}

// The job fails within seconds, so this also shows that a scrape after its end still counts.
TEST_F(MonitoringTest, ALearningRateThatIsFarTooHighFiresTheAlertAboutDivergence) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  ASSERT_NO_FATAL_FAILURE(StartJob({"trainer.optimizer.lr=1e30"}));

  ExpectFires("SluiceTrainerDiverged");
}

TEST_F(MonitoringTest, AnswersThatCannotBeScoredFireTheAlertAboutWaste) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  const std::string rows = cluster_.dir() + "/rows.jsonl";
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    const int digits = 1000 + i;
    absl::StrAppend(&text, "{\"digits\": \"", digits,
                    "\", \"gold\": ", i % 4 == 0 ? "null" : absl::StrCat("\"", digits, "\""),
                    "}\n");
  }
  ASSERT_EQ(WriteFileAtomic(rows, text), absl::OkStatus());

  ASSERT_NO_FATAL_FAILURE(StartJob({"data.train.0.path=" + rows, "data.train.0.answer=gold"}));

  ExpectFires("SluiceDataWasted");
  EXPECT_THAT(Firing(), Not(Contains("SluiceLedgerBroken")));
}

// The certificate that lies in the folder is read for each scrape.
TEST_F(MonitoringTest, ACertificateThatEndsSoonFiresTheAlertAboutIt) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(WriteHastyRules(cluster_.dir())));
  const absl::Time now = absl::Now();
  const auto authority = pki::MakeAuthority({.name = "a", .uri = "spiffe://local"},
                                            {now - absl::Hours(1), now + absl::Hours(48)});
  ASSERT_TRUE(authority.ok()) << authority.status();

  ASSERT_EQ(pki::WriteTlsDir(cli::FleetTlsDir(cluster_.dir(), "reward-0"),
                             {*authority, authority->certificate}),
            absl::OkStatus());

  ExpectFires("SluiceRunningOut");
}

}  // namespace
}  // namespace sluice::integration
