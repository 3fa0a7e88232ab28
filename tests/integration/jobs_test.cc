// Several jobs on one fleet, and what people do to a job: pause, resume, retry, delete.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tools/sluice/client.h"

namespace sluice::integration {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Job>> SubmitNamed(Cluster* cluster, const std::string& name,
                                                 int steps, std::vector<std::string> more = {}) {
  more.push_back(absl::StrCat("name=", name));
  return SubmitDigits(cluster, steps, std::move(more));
}

// Runs the CLI and expects it to end with `exit`. Returns what it printed on stderr.
std::string Sluice(Cluster& cluster, std::vector<std::string> args, int exit = 0) {
  const auto ran = cluster.Sluice(std::move(args), kLong);
  if (!ran.ok()) {
    ADD_FAILURE() << ran.status();
    return "";
  }
  EXPECT_EQ(ran->exit, exit) << ran->err;
  return ran->err;
}

void ExpectSucceeded(Job& job, int64_t steps) {
  const auto end = job.AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), steps);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

absl::Time StartOf(const Job& job) {
  for (const common::v1::Event& event : job.events()) {
    if (event.code() == "state" && event.message() == "WAITING -> STARTING")
      return rpc::FromProto(event.at());
  }
  ADD_FAILURE() << job.id() << " never started";
  return absl::InfiniteFuture();
}

TEST(JobsTest, TwoJobsRunAtOnceAndOfTwoThatWaitTheOneWithTheHigherPriorityIsNext) {
  Cluster cluster({.rollouts = 2, .trainers = 2});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  constexpr int kSteps = 24;
  const auto first = SubmitNamed(&cluster, "first", kSteps);
  const auto second = SubmitNamed(&cluster, "second", kSteps);
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ(second.status(), absl::OkStatus());
  ASSERT_EQ((*second)->AwaitState(job::v1::JOB_STATE_RUNNING, kLong), absl::OkStatus());

  const auto late = SubmitNamed(&cluster, "late", 8);
  const auto urgent = SubmitNamed(&cluster, "urgent", 8, {"run.priority=5"});
  ASSERT_EQ(late.status(), absl::OkStatus());
  ASSERT_EQ(urgent.status(), absl::OkStatus());
  const auto waiting = cli::GetJob(cluster.controller(), "late");
  ASSERT_EQ(waiting.status(), absl::OkStatus());
  EXPECT_EQ(waiting->state(), job::v1::JOB_STATE_WAITING);
  EXPECT_THAT(waiting->message(), HasSubstr("1 of 1 trainer"));
  EXPECT_THAT(waiting->starts_when(), HasSubstr("job first has "));
  EXPECT_TRUE(waiting->has_since());

  ExpectSucceeded(**first, kSteps);
  ExpectSucceeded(**second, kSteps);
  ExpectSucceeded(**urgent, 8);
  ExpectSucceeded(**late, 8);

  // The two ran at once, on daemons of their own, with one queue and one reward.
  const auto span = [](const Job& job) {
    const std::vector<job::v1::StepReport> steps = job.reports();
    return std::pair(rpc::FromProto(steps.front().at()), rpc::FromProto(steps.back().at()));
  };
  EXPECT_LT(span(**first).first, span(**second).second);
  EXPECT_LT(span(**second).first, span(**first).second);
  EXPECT_LE(StartOf(**urgent), StartOf(**late));
}

TEST(JobsTest, APausedJobGivesItsDaemonsToAnotherAndThenGoesOnWithTheNextStep) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  constexpr int kSteps = 150;
  const auto job = SubmitNamed(&cluster, "long", kSteps);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  Sluice(cluster, {"job", "pause", "long"});
  ASSERT_EQ((*job)->AwaitState(job::v1::JOB_STATE_PAUSED, kLong), absl::OkStatus());
  const auto paused = cli::GetJob(cluster.controller(), "long");
  ASSERT_EQ(paused.status(), absl::OkStatus());
  EXPECT_LT(paused->step(), kSteps) << "nothing would be left to go on with";
  EXPECT_THAT(paused->daemons(), testing::ElementsAre("queue-0"));

  const auto other = SubmitNamed(&cluster, "short", 4);
  ASSERT_EQ(other.status(), absl::OkStatus());
  ExpectSucceeded(**other, 4);
  EXPECT_EQ((*job)->status().state(), job::v1::JOB_STATE_PAUSED);

  // The controller stores what it needs to go on with a paused job.
  ASSERT_EQ(cluster.Kill("controller-0"), absl::OkStatus());
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  Sluice(cluster, {"job", "resume", "long"});
  ExpectSucceeded(**job, kSteps);

  std::set<int64_t> trained;
  for (const job::v1::StepReport& step : (*job)->reports())
    EXPECT_TRUE(trained.insert(step.k()).second) << "step " << step.k() << " was trained twice";
  EXPECT_EQ(static_cast<int>(trained.size()), kSteps);
}

TEST(JobsTest, ACancelledJobIsRetriedFromItsLastCheckpointAndAnEndedOneIsDeleted) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  constexpr int kSteps = 40;
  const auto job = SubmitNamed(&cluster, "digits", kSteps);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  Sluice(cluster, {"job", "cancel", "digits"});
  const auto cancelled = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(cancelled.status(), absl::OkStatus());
  ASSERT_EQ(cancelled->state(), job::v1::JOB_STATE_CANCELLED) << Text(*cancelled);

  EXPECT_THAT(Sluice(cluster, {"job", "pause", "digits"}, 8), HasSubstr("SLUICE-CTL-0020"));
  Sluice(cluster, {"job", "retry", "digits"});
  Sluice(cluster, {"job", "wait", "digits"});
  const auto end = cli::GetJob(cluster.controller(), "digits");
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->job(), (*job)->id());
  EXPECT_EQ(end->result().steps(), kSteps);
  EXPECT_GE(end->result().ledger().durable(), cancelled->result().ledger().durable());
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  // The last checkpoint was written after the last step, so no step is trained twice.
  std::set<int64_t> trained;
  for (const job::v1::StepReport& step : (*job)->reports())
    EXPECT_TRUE(trained.insert(step.k()).second) << "step " << step.k() << " was trained twice";

  Sluice(cluster, {"job", "delete", "digits"}, 2);  // Nobody can be asked.
  Sluice(cluster, {"job", "delete", "digits", "--yes"});
  Sluice(cluster, {"job", "describe", "digits"}, 5);
}

// Whether the daemon works for the job.
std::function<bool(const job::v1::JobStatus&)> Works(const std::string& daemon, bool works = true) {
  return [daemon, works](const job::v1::JobStatus& status) {
    const auto& daemons = status.daemons();
    return (std::find(daemons.begin(), daemons.end(), daemon) != daemons.end()) == works;
  };
}

TEST(JobsTest, ARolloutJoinsARunningJobAndIsUsefulAndAnotherIsDrainedAndComesBack) {
  Cluster cluster({.rollouts = 2});
  for (const char* id : {"controller-0", "queue-0", "rollout-0", "reward-0", "trainer-0"})
    ASSERT_EQ(cluster.Start(id), absl::OkStatus());
  const auto job = SubmitNamed(&cluster, "digits", kEndless);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  ASSERT_EQ(cluster.Start("rollout-1"), absl::OkStatus());
  Sluice(cluster, {"job", "set", "digits", "resources.rollout.max=2"});  // The file says 1.
  ASSERT_EQ((*job)->AwaitStatus(Works("rollout-1"), kLong), absl::OkStatus());
  EXPECT_THAT(Sluice(cluster, {"job", "set", "digits", "trainer.optimizer.lr=1"}, 2),
              HasSubstr("SLUICE-CTL-0026"));

  // Without the first rollout, all further answers come from the second.
  Sluice(cluster, {"daemon", "drain", "rollout-0"});
  ASSERT_EQ((*job)->AwaitStatus(Works("rollout-0", false), kLong), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep((*job)->steps() + kStepsAfter, kLong), absl::OkStatus());

  Sluice(cluster, {"daemon", "undrain", "rollout-0"});
  ASSERT_EQ((*job)->AwaitStatus(Works("rollout-0"), kLong), absl::OkStatus());
  Sluice(cluster, {"daemon", "drain", "rollout-1"});
  ASSERT_EQ((*job)->AwaitStatus(Works("rollout-1", false), kLong), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep((*job)->steps() + kStepsAfter, kLong), absl::OkStatus());

  const auto list = cluster.Sluice({"daemon", "list"});
  ASSERT_EQ(list.status(), absl::OkStatus());
  EXPECT_THAT(list->out, testing::ContainsRegex("rollout-1 +rollout +default +drained"));
  Sluice(cluster, {"job", "cancel", "digits"});
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  EXPECT_EQ(end->result().restarts().at("rollout"), 0);
}

TEST(JobsTest, ADrainedTrainerHandsTheJobToAnotherWithoutTrainingAStepTwice) {
  Cluster cluster({.trainers = 2});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitNamed(&cluster, "digits", kEndless);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  Sluice(cluster, {"daemon", "drain", "trainer-0"});
  ASSERT_EQ((*job)->AwaitStatus(Works("trainer-1"), kLong), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStatus(Works("trainer-0", false), kLong), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep((*job)->steps() + kStepsAfter, kLong), absl::OkStatus());

  Sluice(cluster, {"job", "cancel", "digits"});
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  EXPECT_EQ(end->result().restarts().at("trainer"), 0);
  std::set<int64_t> trained;
  for (const job::v1::StepReport& step : (*job)->reports())
    EXPECT_TRUE(trained.insert(step.k()).second) << "step " << step.k() << " was trained twice";
}

TEST(JobsTest, AJobGivesRolloutsBackToAWaitingOneAndTwoQueuesServeOneJobEach) {
  Cluster cluster({.queues = 2, .rollouts = 2, .trainers = 2});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto first = SubmitNamed(&cluster, "first", kEndless, {"resources.rollout.max=2"});
  ASSERT_EQ(first.status(), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitStatus(Works("rollout-1"), kLong), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitStep(3, kLong), absl::OkStatus());

  const auto second = SubmitNamed(&cluster, "second", 8);
  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_TRUE(Works("queue-0")((*first)->status()));
  ASSERT_EQ((*second)->AwaitStatus(Works("queue-1"), kLong), absl::OkStatus());
  ASSERT_EQ((*second)->AwaitStatus(Works("rollout-1"), kLong), absl::OkStatus());
  ExpectSucceeded(**second, 8);

  // The rollout comes back to the first job.
  ASSERT_EQ((*first)->AwaitStatus(Works("rollout-1"), kLong), absl::OkStatus());
  ASSERT_EQ((*first)->AwaitStep((*first)->steps() + kStepsAfter, kLong), absl::OkStatus());
  Sluice(cluster, {"job", "cancel", "first"});
  const auto end = (*first)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
