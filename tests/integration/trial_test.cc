#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/weights/fingerprint.h"
#include "services/trainer/core/checkpoint.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/weights/v1/weights.pb.h"
#include "tests/integration/faults.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// Jobs that go back to an older version: because a canary finds a new one at fault, or by hand.
class TrialTest : public FaultsTest {
 protected:
  void StartTrials(const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = {"resources.rollout.min=2", "resources.rollout.max=2",
                                     "checkpoint.every_steps=4", "checkpoint.keep_last=1000",
                                     // Work for both rollouts.
                                     "queue.groups_per_step=16", "weights.retain_versions=1000"};
    sets.insert(sets.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(StartJob({.rollouts = 2}, std::move(sets)));
    ASSERT_EQ(job_->AwaitStep(10, kLong), absl::OkStatus());
    before_ = ListStates();
  }

  std::vector<std::string> MessagesOf(const std::string& code) const {
    std::vector<std::string> messages;
    for (const common::v1::Event& event : job_->events()) {
      if (event.code() == code) messages.push_back(event.message());
    }
    return messages;
  }
  std::string Run(std::vector<std::string> args, int exit = 0) {
    args.insert(args.begin(), "weights");
    const auto said = cluster_->Sluice(args);
    EXPECT_EQ(said.status(), absl::OkStatus());
    if (!said.ok()) return "";
    EXPECT_EQ(said->exit, exit) << said->out << said->err;
    return said->out + said->err;
  }

  // The fingerprints of the versions that the trainer keeps.
  std::map<PolicyVersion, std::string> ListStates() {
    job::v1::InspectRequest request;
    request.set_job(job_->id());
    request.mutable_weights_list();
    job::v1::InspectResponse response;
    EXPECT_EQ(rpc::Call(cluster_->controller(), request, &response), absl::OkStatus());
    std::map<PolicyVersion, std::string> states;
    for (const weights::v1::VersionNode& node : response.weights_list().nodes())
      states[rpc::FromProto(node.version())] = node.state();
    return states;
  }

  // The version from which the run went on, as an event says.
  static int64_t WentOnFrom(const std::string& message) {
    std::smatch found;
    int64_t version = -1;
    if (std::regex_search(message, found, std::regex("goes on from version ([0-9]+)")))
      EXPECT_TRUE(absl::SimpleAtoi(found[1].str(), &version));
    return version;
  }

  // The bits of a version of the first incarnation: those of its checkpoint, or of the model.
  std::string StateBefore(int64_t version) {
    if (version == 0) return before_[{1, 0}];
    const std::string path = absl::StrCat(cluster_->dir(), "/checkpoints/digits-",
                                          job_->id().substr(0, 8), "/step-", version);
    const absl::StatusOr<TensorSet> model = trainer::ReadCheckpointModel(path);
    EXPECT_EQ(model.status(), absl::OkStatus());
    return model.ok() ? FingerprintOf(*model).bytes() : "";
  }

  // The run went back once to `version`, whose bits the rollouts are given again, and goes on.
  job::v1::JobStatus ExpectWentBackTo(int64_t version) {
    EXPECT_EQ(
        job_->AwaitStatus([](const auto& status) { return status.incarnation() == 2; }, kLong),
        absl::OkStatus());
    EXPECT_EQ(job_->AwaitStepsSince(absl::Now(), 2, kLong), absl::OkStatus());
    EXPECT_EQ(ListStates()[PolicyVersion({2, version})], StateBefore(version))
        << "the fingerprint of version " << version;
    EXPECT_THAT(Run({"list", job_->id()}), HasSubstr("was given up, and the run went on from"));

    EXPECT_EQ(job_->AwaitStepsSince(absl::Now(), kStepsAfter, kLong), absl::OkStatus());
    const auto said = cluster_->Sluice({"job", "cancel", job_->id()});
    EXPECT_TRUE(said.ok() && said->exit == 0);
    const auto end = job_->AwaitEnd(kLong);
    EXPECT_EQ(end.status(), absl::OkStatus());
    if (!end.ok()) return {};
    EXPECT_EQ(end->incarnation(), 2);
    // Checkpoints after `version` may have been durable or not.
    EXPECT_TRUE(CheckLedgerBalances(*end, true).ok() || CheckLedgerBalances(*end, false).ok())
        << CheckLedgerBalances(*end);
    return *end;
  }

  // A fault was planted. It must be found by one rollout alone, and no later version may be.
  void ExpectWithdrawn(const std::string& why, job::v1::JobStatus* end) {
    ASSERT_EQ(job_->AwaitEvent("version_withdrawn", kLong), absl::OkStatus());
    const std::string message = MessagesOf("version_withdrawn").front();
    EXPECT_THAT(message, HasSubstr(why));
    EXPECT_THAT(message, AnyOf(HasSubstr("which only rollout-0 has served"),
                               HasSubstr("which only rollout-1 has served")));

    const int64_t version = WentOnFrom(message);
    ASSERT_GE(version, 0) << message;
    EXPECT_EQ(version % 4, 0) << "a checkpoint";
    const MetricsPage page = ReadMetrics(cluster_->ops("trainer-0"));
    EXPECT_THAT(page.text, testing::ContainsRegex("sluice_weights_withdrawn_total\\{[^}]*\\} 1"));
    *end = ExpectWentBackTo(version);
    EXPECT_EQ(MessagesOf("version_withdrawn").size(), 1u);
  }

  std::map<PolicyVersion, std::string> before_;  // Before the fault.
};

constexpr char kCanary[] = "weights.canary={tokens: 64, wait: 5s}";

TEST_F(TrialTest, AVersionWithARowOfNaNIsWithdrawnBeforeASecondRolloutServesIt) {
  ASSERT_NO_FATAL_FAILURE(StartTrials({kCanary}));
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.publish.nan_row", "error", 1), absl::OkStatus());
  job::v1::JobStatus end;
  ExpectWithdrawn("rows of logits are not finite", &end);
}

// There is no checkpoint yet, so all that was sampled after the first step is dropped.
TEST_F(TrialTest, AVersionAfterAStepWithAThousandTimesTheLearningRateIsWithdrawn) {
  ASSERT_NO_FATAL_FAILURE(StartTrials({kCanary, "checkpoint.every_steps=1000"}));
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.optimizer.lr_x1000", "error", 1), absl::OkStatus());
  job::v1::JobStatus end;
  ASSERT_NO_FATAL_FAILURE(ExpectWithdrawn("weights.canary.max_gap is 2", &end));
  EXPECT_GT(end.result().ledger().dropped().at("off_branch"), 0) << Text(end);
}

TEST_F(TrialTest, StrictOnPolicyTrainingGoesOnThroughTrialsAndTheLossOfTheCanary) {
  ASSERT_NO_FATAL_FAILURE(StartTrials({kCanary, "queue.max_staleness=0"}));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-0"));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-1"));
  ExpectGoesOn();
  EXPECT_THAT(MessagesOf("version_withdrawn"), testing::IsEmpty());
}

// So much is asked of the canary that the trial is over only with its time.
TEST_F(TrialTest, ATrialIsNamedByWhyAndListAndKeepsNoJobFromItsEnd) {
  ASSERT_NO_FATAL_FAILURE(StartJob(
      {.rollouts = 2}, {"resources.rollout.min=2", "resources.rollout.max=2",
                        "queue.max_staleness=1", "weights.canary={tokens: 1000000, wait: 10m}"}));
  const absl::Time deadline = absl::Now() + kLong;
  std::string why;
  while (!absl::StrContains(why, "is on trial at one rollout")) {
    ASSERT_LT(absl::Now(), deadline) << why;
    const auto said = cluster_->Sluice({"why", job_->id()});
    ASSERT_EQ(said.status(), absl::OkStatus());
    why = said->out;
  }
  EXPECT_THAT(Run({"list", job_->id()}),
              testing::ContainsRegex("version 1:1 is on trial at rollout-[01] since"));

  const auto said = cluster_->Sluice({"job", "cancel", job_->id()});
  ASSERT_TRUE(said.ok() && said->exit == 0);
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_CANCELLED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

// The next trainer goes on from a checkpoint of weights that no rollout has tried to the end.
TEST_F(TrialTest, AVersionThatWasOnTrialWhenTheTrainerDiedIsTriedAgain) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob({.rollouts = 2},
               {"resources.rollout.min=2", "resources.rollout.max=2", "queue.max_staleness=1",
                "checkpoint.every_steps=1", "weights.canary={tokens: 1000000, wait: 10m}"}));
  ASSERT_EQ(job_->AwaitEvent("checkpoint", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ASSERT_EQ(job_->AwaitStatus([](const auto& status) { return status.incarnation() == 2; }, kLong),
            absl::OkStatus());

  const absl::Time deadline = absl::Now() + kLong;
  std::string list;
  while (!std::regex_search(list, std::regex("version 2:[12] is on trial at rollout-[01]"))) {
    ASSERT_LT(absl::Now(), deadline) << list;
    const auto said = cluster_->Sluice({"weights", "list", job_->id()});
    ASSERT_EQ(said.status(), absl::OkStatus());
    list = said->out;  // Empty as long as the trainer serves nothing.
  }
  EXPECT_THAT(list, testing::Not(HasSubstr("promoted")));
  const auto said = cluster_->Sluice({"job", "cancel", job_->id()});
  ASSERT_TRUE(said.ok() && said->exit == 0);
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_CANCELLED) << Text(*end);
}

TEST_F(TrialTest, APersonTakesAJobBackToACheckpointAndToNothingElse) {
  ASSERT_NO_FATAL_FAILURE(StartTrials());
  EXPECT_THAT(Run({"rollback", job_->id(), "7"}, 5),
              HasSubstr("no checkpoint holds version 7; the run can go back to version 0"));
  EXPECT_THAT(Run({"rollback", job_->id(), "4"}), HasSubstr("goes back to version 4"));

  ASSERT_EQ(job_->AwaitEvent("rolled_back", kLong), absl::OkStatus());
  EXPECT_EQ(WentOnFrom(MessagesOf("rolled_back").front()), 4);
  const job::v1::JobStatus end = ExpectWentBackTo(4);
  EXPECT_GT(end.result().ledger().dropped().at("off_branch"), 0) << Text(end);
  EXPECT_THAT(MessagesOf("rolled_back"), testing::SizeIs(1));
}

TEST_F(TrialTest, ATrainerThatDiesRightAfterItHasAgreedToARollbackBeginsOnTheNewBranch) {
  ASSERT_NO_FATAL_FAILURE(StartTrials());
  ASSERT_EQ(cluster_->Arm("trainer-0", "trainer.go_back", "kill", 1), absl::OkStatus());
  EXPECT_THAT(Run({"rollback", job_->id(), "4"}), HasSubstr("goes back to version 4"));
  ASSERT_EQ(cluster_->AwaitKilled("trainer-0", kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  const job::v1::JobStatus end = ExpectWentBackTo(4);
  EXPECT_GT(end.result().ledger().dropped().at("off_branch"), 0) << Text(end);
}

// The new branch must not go on from checkpoints of the old one, which are newer by their number.
TEST_F(TrialTest, ATrainerThatDiesAfterARollbackStaysOnTheNewBranch) {
  ASSERT_NO_FATAL_FAILURE(StartTrials({"checkpoint.every_steps=1000"}));
  EXPECT_THAT(Run({"rollback", job_->id(), "0"}), HasSubstr("goes back to version 0"));
  ASSERT_EQ(job_->AwaitStatus([](const auto& status) { return status.incarnation() == 2; }, kLong),
            absl::OkStatus());
  ASSERT_EQ(job_->AwaitStepsSince(absl::Now(), 3, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  RecordFault();
  fault_step_ = 0;
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_GE(end.incarnation(), 3);
}

}  // namespace
}  // namespace sluice::integration
