#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/rpc/client.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/tmpfs.h"

// Every wait is explained: daemons stop, for a time (SIGSTOP) or for good, while a job runs, and
// `why` names them.
namespace sluice::integration {
namespace {

using testing::HasSubstr;

class WhyTest : public testing::Test {
 protected:
  void Start(ClusterOptions options = {}) {
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
  }

  void Submit(std::vector<std::string> sets = {}) {
    auto job = SubmitDigits(cluster_.get(), /*steps=*/1000000, std::move(sets));
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
  }

  void Run() {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_NO_FATAL_FAILURE(Submit());
    ASSERT_EQ(job_->AwaitStep(3, kLong), absl::OkStatus());
  }

  job::v1::WhyResponse Why() {
    job::v1::WhyRequest request;
    request.set_job(job_->id());
    job::v1::WhyResponse response;
    EXPECT_EQ(rpc::Call(cluster_->controller(), request, &response), absl::OkStatus());
    return response;
  }

  // The chain ends at `daemon`, which is its own cause, and not at something that it waits for.
  static bool EndsAt(const job::v1::WhyResponse& why, const std::string& daemon) {
    if (why.chain_size() == 0) return false;
    const common::v1::WaitEdge& last = why.chain(why.chain_size() - 1);
    return last.waiter().id() == daemon && last.on().id() == daemon;
  }

  static bool Mentions(const job::v1::WhyResponse& why, common::v1::NodeKind kind) {
    return std::any_of(
        why.chain().begin(), why.chain().end(),
        [&](const common::v1::WaitEdge& edge) { return edge.waiter().kind() == kind; });
  }

  // Asks until the chain ends at `daemon`.
  job::v1::WhyResponse ExpectNamed(const std::string& daemon) {
    job::v1::WhyResponse why;
    const absl::Duration end = Clock::Real()->Monotonic() + kLong;
    while (Clock::Real()->Monotonic() < end) {
      why = Why();
      if (EndsAt(why, daemon)) return why;
    }
    ADD_FAILURE() << daemon << " is not named, the last answer: " << why.DebugString();
    return why;
  }

  std::string TextOf(const std::string& job) {
    const auto said = cluster_->Sluice({"why", job});
    EXPECT_EQ(said.status(), absl::OkStatus());
    return said.ok() ? said->out : "";
  }

  // Asks until `sluice why` prints `part`.
  std::string AwaitText(const std::string& part) {
    const absl::Duration end = Clock::Real()->Monotonic() + kLong;
    std::string text;
    while (text.find(part) == std::string::npos && Clock::Real()->Monotonic() < end)
      text = TextOf(job_->id());
    EXPECT_THAT(text, HasSubstr(part));
    return text;
  }

  // Stops `daemon` again and again, until it is named with work of all `kinds` that it holds and
  // `sluice why` prints all `parts`. A stop may find it without such work. If answers are slow, the
  // controller may also give the daemon up first (after 10 s of silence), and its work goes
  // elsewhere.
  void ExpectNamedWithItsWork(const std::string& daemon, const std::function<void()>& stop,
                              const std::vector<common::v1::NodeKind>& kinds,
                              const std::vector<std::string>& parts) {
    constexpr int kStops = 50, kAsks = 3;
    job::v1::WhyResponse why;
    std::string text;
    const auto mentioned = [&](common::v1::NodeKind kind) { return Mentions(why, kind); };
    const auto said = [&](const std::string& part) { return absl::StrContains(text, part); };

    for (int i = 0; i < kStops; ++i) {
      ASSERT_NO_FATAL_FAILURE(stop());
      for (int ask = 0; ask < kAsks; ++ask) {
        why = Why();
        if (!EndsAt(why, daemon)) continue;
        if (!std::all_of(kinds.begin(), kinds.end(), mentioned)) break;
        text = TextOf(job_->id());
        if (std::all_of(parts.begin(), parts.end(), said)) return cluster_->Signal(daemon, SIGCONT);
      }
      cluster_->Signal(daemon, SIGCONT);
      ASSERT_EQ(job_->AwaitStep(job_->steps() + 1, kLong), absl::OkStatus());
    }
    FAIL() << daemon << " is not named with its work; the last answer: " << why.DebugString()
           << text;
  }

  void Cancel() {
    EXPECT_EQ(cluster_->Sluice({"job", "cancel", job_->id()})->exit, 0);
    EXPECT_EQ(job_->AwaitEnd(kLong).status(), absl::OkStatus());
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Job> job_;
};

TEST_F(WhyTest, AStoppedRolloutIsNamedWithTheGroupThatLacksItsWork) {
  ASSERT_NO_FATAL_FAILURE(Run());
  cluster_->Signal("rollout-0", SIGSTOP);
  const job::v1::WhyResponse why = ExpectNamed("rollout-0");
  EXPECT_TRUE(Mentions(why, common::v1::NODE_KIND_BATCH)) << why.DebugString();
  EXPECT_THAT(TextOf(job_->id()), HasSubstr("rollout-0"));

  cluster_->Signal("rollout-0", SIGCONT);
  Cancel();
}

TEST_F(WhyTest, AJobWithoutARolloutSaysThatNoneIsThere) {
  ASSERT_NO_FATAL_FAILURE(Start({.rollouts = 0}));
  ASSERT_NO_FATAL_FAILURE(Submit());
  const std::string text = TextOf(job_->id());
  EXPECT_THAT(text, HasSubstr("rollout"));
  EXPECT_THAT(text, HasSubstr("WAITING"));
  Cancel();
}

TEST_F(WhyTest, AKilledRolloutIsNamedUntilItComesBack) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ASSERT_EQ(cluster_->Kill("rollout-0"), absl::OkStatus());
  ExpectNamed("rollout-0");
  ASSERT_EQ(cluster_->Start("rollout-0"), absl::OkStatus());
  ASSERT_EQ(job_->AwaitStep(job_->steps() + 2, kLong), absl::OkStatus());
  Cancel();
}

TEST_F(WhyTest, ARewardThatHangsIsNamedWithTheTaskTheGroupAndTheMemberItHolds) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto stop = [&] {
    ASSERT_EQ(cluster_->Arm("reward-0", "reward.leased", "stop", 1), absl::OkStatus());
    ASSERT_EQ(cluster_->process("reward-0").AwaitStopped(), absl::OkStatus());
  };

  ExpectNamedWithItsWork(
      "reward-0", stop, {common::v1::NODE_KIND_GROUP, common::v1::NODE_KIND_TASK},
      {"group 1:", "member ", "reward-0 has had task ", "by itself: ", "goes to another reward"});

  Cancel();
}

TEST_F(WhyTest, AStragglerIsNamedWithTheMemberThatItsBatchLacksAndItsAge) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto stop = [&] { cluster_->Signal("rollout-0", SIGSTOP); };
  ExpectNamedWithItsWork("rollout-0", stop, {common::v1::NODE_KIND_TRAJECTORY},
                         {"batch ", " groups", "group 1:", "rollout-0 has had member ", " for ",
                          "by itself: ", "goes on at another rollout from token "});
  Cancel();
}

// The queue's data directory is a small file system of its own, which another file fills.
TEST_F(WhyTest, AFullDiskOfTheQueueIsNamedAndWorkGoesOnOnceThereIsRoom) {
  cluster_ = std::make_unique<Cluster>();
  const std::string dir = cluster_->dir() + "/queue-0";
  const Tmpfs disk(dir, "640m");
  if (!disk.mounted()) GTEST_SKIP() << "needs a tmpfs of its own, and root to mount it";
  ASSERT_EQ(cluster_->Start(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Submit({"queue.keep.durability=full"}));
  ASSERT_EQ(job_->AwaitStep(3, kLong), absl::OkStatus());

  struct statvfs room;
  ASSERT_EQ(statvfs(dir.c_str(), &room), 0);
  const int file = open((dir + "/ballast").c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(
      posix_fallocate(file, 0, static_cast<off_t>(room.f_bavail * room.f_frsize) - (32 << 20)), 0);
  EXPECT_THAT(AwaitText("the disk of the queue's log is "),
              HasSubstr("you could: make room on the disk"));

  EXPECT_EQ(ftruncate(file, 0), 0);
  close(file);
  EXPECT_EQ(job_->AwaitStep(job_->steps() + 3, kLong), absl::OkStatus());
  Cancel();
}

TEST_F(WhyTest, AStoppedTrainerIsNamedThoughRolloutsWaitForIt) {
  ASSERT_NO_FATAL_FAILURE(Run());
  cluster_->Signal("trainer-0", SIGSTOP);
  const job::v1::WhyResponse why = ExpectNamed("trainer-0");
  EXPECT_THAT(why.chain(why.chain_size() - 1).cause(), HasSubstr("trainer-0"));
  cluster_->Signal("trainer-0", SIGCONT);
  Cancel();
}

TEST_F(WhyTest, AJobThatStartsBlamesTheStoppedTrainerNotTheRolloutsThatWaitForIt) {
  ASSERT_NO_FATAL_FAILURE(Start());

  // It stops before it publishes its first weights, when it has the job.
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.publish.before", "stop", 1), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Submit());
  ASSERT_EQ(cluster_->process("trainer-0").AwaitStopped(), absl::OkStatus());
  ExpectNamed("trainer-0");

  cluster_->Signal("trainer-0", SIGCONT);
  ASSERT_EQ(job_->AwaitStep(0, kLong), absl::OkStatus());
  Cancel();
}

TEST_F(WhyTest, ALostQueueIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Run());
  ASSERT_EQ(cluster_->Kill("queue-0"), absl::OkStatus());
  ExpectNamed("queue-0");
  ASSERT_EQ(cluster_->Start("queue-0"), absl::OkStatus());
  Cancel();
}

TEST_F(WhyTest, AStallIsToldWithItsDiagnosisAndEndsTheJobWithIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Submit({"limits.stall_warn=4s", "limits.stall_fail=10s"}));
  ASSERT_EQ(job_->AwaitStep(3, kLong), absl::OkStatus());
  cluster_->Signal("reward-0", SIGSTOP);
  const auto end = job_->AwaitEnd(kLong);
  cluster_->Signal("reward-0", SIGCONT);
  ASSERT_EQ(end.status(), absl::OkStatus());

  EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED) << Text(*end);
  EXPECT_THAT(end->message(), HasSubstr("reward")) << Text(*end);
  EXPECT_THAT(end->message(), HasSubstr("stall_fail"));

  bool told = false;
  for (const common::v1::Event& event : job_->events())
    told |= event.code() == "stalled" && event.message().find("reward") != std::string::npos;
  EXPECT_TRUE(told);
}

TEST_F(WhyTest, PeopleReadStatsGroupsAndTheLedgerOfARunningJob) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto stats = cluster_->Sluice({"queue", "stats", job_->id()});
  ASSERT_EQ(stats->exit, 0) << stats->err;
  EXPECT_THAT(stats->out, HasSubstr("balanced"));

  cluster_->Signal("reward-0", SIGSTOP);  // So that some groups stay.
  ExpectNamed("reward-0");
  const auto list = cluster_->Sluice({"queue", "peek", job_->id()});
  ASSERT_EQ(list->exit, 0) << list->err;
  EXPECT_THAT(list->out, HasSubstr("1:"));

  const size_t at = list->out.find("\n1:");
  ASSERT_NE(at, std::string::npos) << list->out;
  const std::string group = list->out.substr(at + 1, list->out.find(' ', at) - at - 1);

  const auto one = cluster_->Sluice({"queue", "peek", job_->id(), group, "--show-text"});
  ASSERT_EQ(one->exit, 0) << one->err;
  EXPECT_THAT(one->out, HasSubstr("prompt:"));
  EXPECT_THAT(one->out, HasSubstr("=")) << "the digits' prompts end with it";
  EXPECT_EQ(cluster_->Sluice({"queue", "fsck", job_->id()})->exit, 0);

  cluster_->Signal("reward-0", SIGCONT);
  Cancel();
  EXPECT_EQ(cluster_->Sluice({"queue", "fsck", job_->id()})->exit, 0)
      << "the ledger of an ended job is kept";
}

}  // namespace
}  // namespace sluice::integration
