#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/fault/trained.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// Killing the daemons of a job does not change a single bit of the weights that it trains. The test
// kills real daemons, at durability `full`.
namespace sluice::fault {
namespace {
using integration::Cluster;
using integration::Job;

constexpr int kSteps = 100;
constexpr absl::Duration kLong = absl::Minutes(2);

struct Kill {
  const char* daemon;
  const char* failpoint;  // Empty: kill at once.
  int64_t step;           // The kill waits until the job has reported this step.
  // The kill happens while the daemon of the previous kill restarts. So its failpoint is armed
  // before that restart.
  bool of_the_restart = false;
};

void Arm(Cluster& cluster, const Kill& kill) {
  if (*kill.failpoint == '\0') return;
  ASSERT_EQ(cluster.Arm(kill.daemon, kill.failpoint, "kill", 1), absl::OkStatus());
}

// Carries out one kill and starts the daemon again. `next` is the kill after it, or null.
void KillIn(Cluster& cluster, Job& job, const Kill& kill, const Kill* next) {
  if (!kill.of_the_restart) {
    ASSERT_EQ(job.AwaitStep(kill.step, kLong), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(Arm(cluster, kill));
  }

  if (*kill.failpoint == '\0') {
    ASSERT_EQ(cluster.Kill(kill.daemon), absl::OkStatus());
  } else {
    ASSERT_EQ(cluster.AwaitKilled(kill.daemon, kLong), absl::OkStatus()) << kill.failpoint;
  }

  ASSERT_LT(job.steps(), kSteps) << "the kill came after the job's end";

  if (next != nullptr && next->of_the_restart) {
    ASSERT_NO_FATAL_FAILURE(Arm(cluster, *next));
  }

  ASSERT_EQ(cluster.Start(kill.daemon), absl::OkStatus());
}

// Runs one job of kSteps steps that saves a checkpoint every `checkpoint` steps. After a failure
// `result` stays empty.
void RunJob(const std::vector<Kill>& kills, int checkpoint, Trained* result) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  auto job = integration::SubmitDigits(
      &cluster, kSteps,
      {"queue.max_staleness=0", "queue.keep.durability=full",
       absl::StrCat("checkpoint.every_steps=", checkpoint), "limits.restarts_per_hour=100"});
  ASSERT_EQ(job.status(), absl::OkStatus());

  for (size_t i = 0; i < kills.size(); ++i)
    ASSERT_NO_FATAL_FAILURE(
        KillIn(cluster, **job, kills[i], i + 1 < kills.size() ? &kills[i + 1] : nullptr));

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  auto trained = ReadTrained(*end);
  ASSERT_EQ(trained.status(), absl::OkStatus());
  EXPECT_EQ(trained->checkpoint.state.version.number, kSteps);
  *result = *std::move(trained);
}

class ReplayTest : public testing::Test {
 protected:
  // Runs a job with these kills and one without, and expects the same result.
  void ExpectAsUndisturbed(const std::vector<Kill>& kills, int checkpoint) {
    if (undisturbed_.batches.empty()) {
      ASSERT_NO_FATAL_FAILURE(RunJob({}, 5, &undisturbed_));
    }

    Trained killed;
    ASSERT_NO_FATAL_FAILURE(RunJob(kills, checkpoint, &killed));
    EXPECT_EQ(absl::StrJoin(Differences(undisturbed_, killed), "\n"), "");
  }

  static inline Trained undisturbed_;
};

TEST_F(ReplayTest, ASecondUndisturbedRunGivesTheSameBits) { ExpectAsUndisturbed({}, 5); }

TEST_F(ReplayTest, KillsOfTheTrainerChangeNoBit) {
  ExpectAsUndisturbed({{"trainer-0", "trainer.step.before_apply", 2},
                       {"trainer-0", "trainer.step.after_apply", 6},
                       {"trainer-0", "trainer.checkpoint.before_rename", 8}},
                      5);
}

TEST_F(ReplayTest, KillsOfTheQueueChangeNoBit) {
  ExpectAsUndisturbed({{"queue-0", "queue.put.after", 2},
                       {"queue-0", "", 5},
                       {"queue-0", "wal.sync.before", 8},
                       {"queue-0", "queue.apply.after", 9}},
                      5);
}

TEST_F(ReplayTest, KillsOfRolloutAndRewardChangeNoBit) {
  ExpectAsUndisturbed({{"rollout-0", "rollout.put.after_ack", 2},
                       {"reward-0", "reward.leased", 5},
                       {"rollout-0", "rollout.seal.before", 8}},
                      5);
}

// There is no checkpoint yet, so a restarted trainer trains every step again, on the batches in the
// queue's log. The last kill hits the queue while it answers the trainer's Restore, so the trainer
// repeats that call at a queue that has itself just restarted.
TEST_F(ReplayTest, AllStepsReplayedFromTheLogOfAKilledQueueChangeNoBit) {
  ExpectAsUndisturbed({{"queue-0", "", 4},
                       {"trainer-0", "trainer.step.after_apply", 9},
                       {"queue-0", "queue.restore.after", 9, /*of_the_restart=*/true}},
                      1000);
}

}  // namespace
}  // namespace sluice::fault
