// Two controllers that share a job store in a real Redis: one leads, and the other takes over.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/leader_search.h"
#include "common/testing/data.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/redis_group.h"
#include "tests/integration/harness/redis_history.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::integration {
namespace {

using testing::HasSubstr;

constexpr char kPassword[] = "open sesame";

class ControllersTest : public FaultsTest {
 protected:
  // As a fleet on several hosts must run: with TLS and a password at the Redis, and with
  // certificates of all daemons.
  void SetUp() override {
    StartControllers(2);
    if (HasFatalFailure()) return;
    standby_ = leader_ == "controller-0" ? "controller-1" : "controller-0";
  }

  void StartControllers(int count) {
    const std::string tls_dir = MakeRedisTlsDir(testing_data::TempPath("redis-tls"));
    redis_ = RedisServer::Start({.password = kPassword, .tls_dir = tls_dir, .durable = true});
    ASSERT_NE(redis_, nullptr);
    const std::vector<std::string> args = {"--store-ca", redis_->endpoint().ca_file};
    std::map<std::string, std::vector<std::string>> args_of;
    for (int i = 0; i < count; ++i) args_of[absl::StrCat("controller-", i)] = args;
    ASSERT_NO_FATAL_FAILURE(StartJob({.controllers = count,
                                      .store = absl::StrCat("rediss://", redis_->endpoint().str()),
                                      .env = {{"SLUICE_STORE_PASSWORD", kPassword}},
                                      .args = args_of,
                                      .tls = true}));
    const auto leader = cluster_->AwaitLeader(kLong);
    ASSERT_EQ(leader.status(), absl::OkStatus());
    leader_ = *leader;
    ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  }

  // The job has gone on all the time under the trainer group that it had, and one controller at a
  // time has written to the store.
  void ExpectNothingDisturbed(int leaders) {
    const job::v1::JobStatus end = ExpectGoesOn();
    EXPECT_EQ(end.incarnation(), 1);
    for (const auto& [role, count] : end.result().restarts()) {
      EXPECT_TRUE(count == 0 || role == "controller") << role << " " << count;
    }
    const auto history = ReadStoreHistory(redis_->dir());
    ASSERT_EQ(history.status(), absl::OkStatus());
    EXPECT_EQ(CheckOneLeaderAtATime(*history), absl::OkStatus());
    EXPECT_EQ(CountLeaders(*history), leaders);
  }

  std::string ReadyText(const std::string& id) {
    return daemon::HttpGet(cluster_->ops(id), "/readyz");
  }

  std::unique_ptr<RedisServer> redis_;
  std::string leader_, standby_;
};

TEST_F(ControllersTest, AStandbyIsReadyRefusesCallsAndNamesTheLeader) {
  EXPECT_THAT(ReadyText(leader_), HasSubstr("\r\n\r\nleader\n"));
  EXPECT_THAT(ReadyText(standby_),
              HasSubstr(absl::StrCat("\r\n\r\nstandby; ", cluster_->address(leader_), " leads")));
  EXPECT_THAT(ReadyText(standby_), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(daemon::HttpGet(cluster_->ops(leader_), "/metrics"),
              HasSubstr("sluice_controller_leader 1"));
  const std::string metrics = daemon::HttpGet(cluster_->ops(standby_), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("sluice_controller_leader 0"));
  EXPECT_THAT(metrics, testing::Not(HasSubstr("sluice_job_state")));

  job::v1::ListResponse jobs;
  const absl::Status refused = rpc::Call(*cluster_->channel(standby_), job::v1::ListRequest(),
                                         &jobs, {.give_up = absl::Milliseconds(500)});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailOf(refused).reason, rpc::kStandby);
  EXPECT_EQ(DetailOf(refused).current, cluster_->address(leader_));
  EXPECT_GT(DetailOf(refused).retry_after, absl::ZeroDuration());
  RecordFault();
  ExpectNothingDisturbed(1);
}

TEST_F(ControllersTest, TheStandbyTakesOverFromAKilledLeaderAndTheCliWatchesOn) {
  const auto watch = cluster_->StartSluice({"job", "watch", job_->id()});
  ASSERT_EQ(watch.status(), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill(leader_), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->AwaitLeader(kLong).status(), absl::OkStatus());
  EXPECT_THAT(cluster_->Log(standby_),
              testing::ContainsRegex("copied_before_up_to_revision\":[1-9]"))
      << "it has read nothing while it stood by";
  ASSERT_EQ(cluster_->Start(leader_), absl::OkStatus());  // As a standby.
  ASSERT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());

  // And back again.
  ASSERT_EQ(cluster_->Kill(standby_), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->AwaitLeader(kLong).value_or(""), leader_);
  ExpectNothingDisturbed(3);

  // The lines go on behind the last one that was printed, though the watch was broken twice.
  const auto said = (*watch)->ReadAll(kLong);
  ASSERT_EQ(said.status(), absl::OkStatus());
  int64_t last = -1;
  for (absl::string_view line : absl::StrSplit(*said, '\n')) {
    if (!absl::ConsumePrefix(&line, "step ")) continue;
    int64_t step = -1;
    EXPECT_TRUE(absl::SimpleAtoi(line.substr(0, line.find('/')), &step)) << line;
    EXPECT_GT(step, last) << *said;
    last = step;
  }
  EXPECT_GT(last, fault_step_) << *said;
}

TEST_F(ControllersTest, APausedLeaderIsReplacedAndEndsWithoutAWriteWhenItWakes) {
  cluster_->Signal(leader_, SIGSTOP);
  RecordFault();
  ASSERT_EQ(cluster_->AwaitLeader(kLong, leader_).value_or(""), standby_);
  ASSERT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());

  cluster_->Signal(leader_, SIGCONT);
  EXPECT_EQ(cluster_->process(leader_).Await(kLong).value_or(0), 1);
  EXPECT_THAT(cluster_->Log(leader_), HasSubstr("SLUICE-META-0011"));
  ExpectNothingDisturbed(2);
}

class ThreeControllersTest : public ControllersTest {
 protected:
  void SetUp() override { StartControllers(3); }
};

TEST_F(ThreeControllersTest, TwoLeadersAreKilledOneAfterTheOtherAndTheThirdLeads) {
  std::set<std::string> led = {leader_};
  for (int kill = 0; kill < 2; ++kill) {
    ASSERT_EQ(cluster_->Kill(leader_), absl::OkStatus());
    RecordFault();
    const auto next = cluster_->AwaitLeader(kLong, leader_);
    ASSERT_EQ(next.status(), absl::OkStatus());
    leader_ = *next;
    EXPECT_TRUE(led.insert(leader_).second) << leader_ << " was killed before";
    ASSERT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());
  }
  ExpectNothingDisturbed(3);
}

TEST_F(ControllersTest, ALeaderThatIsAskedToEndGivesTheLeaseBack) {
  EXPECT_EQ(cluster_->Terminate(leader_, kLong).value_or(-1), 0);
  RecordFault();
  EXPECT_EQ(redis_->Run({"GET", "sluice:lease"}).text.find(cluster_->address(leader_)),
            std::string::npos);
  ASSERT_EQ(cluster_->AwaitLeader(kLong).value_or(""), standby_);
  ExpectNothingDisturbed(2);
}

TEST_F(ControllersTest, ARedisThatIsKilledPausedAndFlushedDisturbsNoJob) {
  redis_->Kill();
  RecordFault();
  ASSERT_EQ(job_->AwaitStepsSince(fault_time_, 0, kLong), absl::OkStatus());
  ASSERT_EQ(redis_->Restart(), absl::OkStatus());
  ASSERT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());

  redis_->Signal(SIGSTOP);
  RecordFault();
  // Until the leader has noticed.
  const std::string before = cluster_->Log(leader_);
  while (cluster_->Log(leader_).find("store_away", before.size()) == std::string::npos) {
  }
  redis_->Signal(SIGCONT);
  ASSERT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());

  redis_->Run({"FLUSHALL"});
  RecordFault();
  ASSERT_EQ(job_->AwaitEvent("store_rebuilt", kLong), absl::OkStatus());
  ExpectNothingDisturbed(1);
}

TEST_F(ControllersTest, ARedisWithASettingThatLosesJobsIsRefusedAtTheStart) {
  RecordFault();
  ExpectNothingDisturbed(1);
  redis_->Run({"CONFIG", "SET", "appendfsync", "no"});
  EXPECT_EQ(cluster_->Terminate(standby_, kLong).value_or(-1), 0);
  (void)cluster_->Start(standby_);
  EXPECT_EQ(cluster_->process(standby_).Await(kLong).value_or(-1), 1);
  EXPECT_THAT(cluster_->Log(standby_), HasSubstr("appendfsync no"));
}

// Controllers whose Redis has a replica and three Sentinels.
class SentinelControllersTest : public FaultsTest {
 protected:
  void SetUp() override {
    group_ = RedisGroup::Start();
    ASSERT_NE(group_, nullptr);
    ASSERT_NO_FATAL_FAILURE(StartJob({.controllers = 2, .store = group_->url()}, {}, kSteps));
    ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  }

  std::unique_ptr<RedisGroup> group_;
};

TEST_F(SentinelControllersTest, AKilledMasterIsReplacedAndTheJobSucceedsUnderTheSameLeader) {
  const auto leader = cluster_->AwaitLeader(kLong);
  ASSERT_EQ(leader.status(), absl::OkStatus());
  group_->server(0).Kill();
  RecordFault();
  ASSERT_TRUE(group_->AwaitMaster(1));
  ASSERT_EQ(cluster_->AwaitLeader(kLong).value_or(""), *leader);
  ASSERT_EQ(group_->server(0).Restart(), absl::OkStatus());

  // A copy of the store can be had, and holds the job.
  const std::string file = cluster_->dir() + "/jobs.backup";
  const auto copied = cluster_->Sluice({"meta", "backup", "-o", file});
  ASSERT_EQ(copied.status(), absl::OkStatus());
  EXPECT_EQ(copied->exit, 0) << copied->err;
  EXPECT_THAT(copied->err, HasSubstr("1 jobs"));
  const auto doctor = cluster_->Sluice({"doctor", "store", "--store", group_->url()});
  ASSERT_EQ(doctor.status(), absl::OkStatus());
  EXPECT_EQ(doctor->exit, 0) << doctor->out;
  EXPECT_THAT(doctor->out, HasSubstr(absl::StrCat(cluster_->address(*leader), " leads")));

  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.state(), job::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(end.incarnation(), 1);
  for (const auto& [role, count] : end.result().restarts()) EXPECT_EQ(count, 0) << role;
  // The new master has had every write since the start, those of its time as a replica included.
  const auto history = ReadStoreHistory(group_->server(1).dir());
  ASSERT_EQ(history.status(), absl::OkStatus());
  EXPECT_EQ(CheckOneLeaderAtATime(*history, /*failed_over=*/true), absl::OkStatus());
  EXPECT_EQ(CountLeaders(*history), 1);
  EXPECT_THAT(group_->server(0).Run({"INFO", "commandstats"}).text,
              testing::Not(HasSubstr("cmdstat_eval:")));
}

TEST(StoreFlagsTest, WhatIsNoRedisAndFlagsWithoutOneAreRefused) {
  const std::string log = testing::TempDir() + "/store_flags.log";
  const auto said = [&](std::vector<std::string> flags) {
    flags.push_back("--insecure-loopback");
    const auto ended =
        RunToEnd({.binary = "sluice-controller", .args = std::move(flags), .log = log}, kLong);
    EXPECT_TRUE(ended.ok() && ended->exit == 1) << ended.status();
    return ended.ok() ? ended->err : "";
  };
  EXPECT_THAT(said({"--store", "sqlite:meta.db"}), HasSubstr("SLUICE-META-0001"));
  EXPECT_THAT(said({"--store", "redis://10.0.0.1"}), HasSubstr("SLUICE-AUTH-0020"));
  EXPECT_THAT(said({"--store", "redis+sentinel://10.0.0.1/jobs"}), HasSubstr("SLUICE-AUTH-0020"));
  EXPECT_THAT(said({"--store", "rediss+sentinel://10.0.0.1/jobs"}), HasSubstr("SLUICE-AUTH-0022"));
  EXPECT_THAT(said({"--data-dir", testing::TempDir(), "--store-ca", "ca.crt"}),
              HasSubstr("--store-ca is given without --store"));
}

}  // namespace
}  // namespace sluice::integration
