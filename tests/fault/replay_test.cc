#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/lineage.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// The weights that come out of a job do not show, in any bit, that its daemons were killed: the
// real ones, level full.
//
// At max_staleness 0 the job's seed says what a job trains on: exactly the groups of step k are
// admitted under version k, their prompts and draws follow from the seed and their ordinals, the
// position in a sequence is the whole state of its sampling, the engine's numbers do not depend on
// what else is in its batch, and the cut orders groups of equal deadline by ordinal. So two jobs
// train the same batches, and whatever a kill may do, a trajectory lost or doubled, a batch frozen
// anew, payload that the log changed, a prefix sampled on wrongly, an optimizer a step off, gives
// other bits. (A queue of level metadata that is killed loses what was sealed and samples it anew
// from other groups: other batches, rightly.)
namespace sluice::fault {
namespace {
using integration::Cluster;
using integration::Job;

constexpr int kSteps = 100;
constexpr absl::Duration kLong = absl::Minutes(2);

struct Kill {
  const char* daemon;
  const char* failpoint;  // Empty: at once.
  int64_t step;           // Was reported before.
  // Comes while the one killed before starts again, so it is armed first.
  bool of_the_restart = false;
};

// What a job leaves behind.
struct Result {
  trainer::Checkpoint checkpoint;
  // A line per trained trajectory: step, group's ordinal, member, CRC32C of its tokens and
  // log-probs.
  std::string batches;
};

void Arm(Cluster& cluster, const Kill& kill) {
  if (*kill.failpoint == '\0') return;
  ASSERT_EQ(cluster.Arm(kill.daemon, kill.failpoint, "kill", 1), absl::OkStatus());
}

// `next`: the kill behind it; nullptr: none.
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

// One job of kSteps steps, with a checkpoint every so many. `result` stays empty where the test has
// failed.
void RunJob(const std::vector<Kill>& kills, int checkpoint, Result* result) {
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
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << integration::Text(*end);
  EXPECT_EQ(integration::CheckBooks(*end), absl::OkStatus());
  const std::string& path = end->result().checkpoint();
  auto checkpoint_read = trainer::ReadCheckpoint(path);
  ASSERT_EQ(checkpoint_read.status(), absl::OkStatus());
  const auto lineage = ReadFile(path + "/lineage.jsonl");
  ASSERT_EQ(lineage.status(), absl::OkStatus());
  for (const absl::string_view line : absl::StrSplit(*lineage, '\n', absl::SkipEmpty())) {
    const auto entry = trainer::ParseLineageLine(line);
    ASSERT_EQ(entry.status(), absl::OkStatus());
    absl::StrAppend(&result->batches, entry->k, " ", entry->group.hex().substr(16), " ",
                    entry->member, " ", entry->crc32c, "\n");
  }
  result->checkpoint = *std::move(checkpoint_read);
}

bool EqualBits(const TensorSet& a, const TensorSet& b) {
  return a.layout_id() == b.layout_id() && a.buffer().size() == b.buffer().size() &&
         std::memcmp(a.buffer().data(), b.buffer().data(), a.buffer().size()) == 0;
}

class ReplayTest : public testing::Test {
 protected:
  // `kills` change nothing.
  void ExpectAsUndisturbed(const std::vector<Kill>& kills, int checkpoint) {
    if (undisturbed_.batches.empty()) {
      ASSERT_NO_FATAL_FAILURE(RunJob({}, 5, &undisturbed_));
    }
    Result killed;
    ASSERT_NO_FATAL_FAILURE(RunJob(kills, checkpoint, &killed));
    EXPECT_EQ(killed.batches, undisturbed_.batches);
    EXPECT_EQ(killed.checkpoint.state.version.number, kSteps);
    EXPECT_EQ(killed.checkpoint.state.updates, undisturbed_.checkpoint.state.updates);
    EXPECT_GT(killed.checkpoint.model.buffer().size(), 0u);
    EXPECT_TRUE(EqualBits(killed.checkpoint.model, undisturbed_.checkpoint.model));
    EXPECT_TRUE(EqualBits(killed.checkpoint.optimizer, undisturbed_.checkpoint.optimizer));
  }

  static inline Result undisturbed_;
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

// Without a checkpoint all that was done is trained again from the log, at the end by a queue that
// has just come back.
TEST_F(ReplayTest, AllStepsReplayedFromTheLogOfAKilledQueueChangeNoBit) {
  ExpectAsUndisturbed({{"queue-0", "", 4},
                       {"trainer-0", "trainer.step.after_apply", 9},
                       {"queue-0", "queue.restore.after", 9, /*of_the_restart=*/true}},
                      1000);
}

}  // namespace
}  // namespace sluice::fault
