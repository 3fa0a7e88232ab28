// Step reports that come late: from a trainer that was cut off from the controller, trained on, and
// was replaced.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

constexpr absl::Duration kLong = absl::Minutes(2);  // After that a silent daemon is lost.

class StepReportsTest : public testing::Test {
 protected:
  void SetUp() override { Begin(); }
  void Begin() {
    world_ = std::make_unique<World>();
    world_->StartFleet();
    job_ = world_->Run("digits");
    world_->Start("trainer-1", Role::kTrainer);
    world_->Settle();
  }

  // Adds a report of step k, made by `trainer` in trainer group `group`, to its next heartbeat. Its
  // number of tokens tells which group made it.
  void Train(const std::string& trainer, int64_t group, int64_t k) {
    StepReport step;
    step.k = k;
    step.version = {group, k + 1};
    step.at = world_->clock.Now();
    step.values = {{"reward_mean", 0.5}, {"reward_count", 8}, {"tokens", TokensOf(group, k)}};
    world_->actors[trainer].steps.emplace_back(job_, step);
  }
  static double TokensOf(int64_t group, int64_t k) { return static_cast<double>(group * 1000 + k); }

  // Lets the present trainer be lost, and the other one take over from step k.
  void CutOff(const std::string& trainer, const std::string& other, int64_t k) {
    world_->actors[trainer].silent = true;
    world_->Pass(kLong);
    ASSERT_NE(world_->job(job_).assign.Find(other), nullptr);
    world_->actors[other].progress[job_].step = k;
    world_->AllReady(job_);
  }

  void ComeBack(const std::string& trainer) {
    world_->actors[trainer].progress.clear();
    ASSERT_TRUE(world_->Reregister(trainer).ok());
    world_->actors[trainer].silent = false;
    world_->Settle();
  }

  // Tokens by step: of the controller's memory, which the store must agree with.
  std::map<int64_t, double> Tokens() {
    std::map<int64_t, double> tokens, stored;
    for (const auto& [k, step] : world_->job(job_).steps) tokens[k] = step.tokens;
    const std::vector<meta::Entry> entries = world_->store()->List(JobKey(job_, "steps/")).value();
    for (const meta::Entry& entry : entries) {
      const StepReport step = *Decode<StepReport>(entry.key, entry.value);
      stored[step.k] = step.values.at("tokens");
    }
    EXPECT_EQ(tokens, stored);
    return tokens;
  }

  std::unique_ptr<World> world_;
  std::string job_;
};

TEST_F(StepReportsTest, TheStepsOfACutOffTrainerCountUpToTheFirstStepOfTheNextGroup) {
  for (int64_t k = 0; k < 3; ++k) Train("trainer-0", 1, k);
  world_->Settle();
  world_->actors["trainer-0"].silent = true;
  for (int64_t k = 3; k < 8; ++k) Train("trainer-0", 1, k);
  CutOff("trainer-0", "trainer-1", 6);  // It loads a checkpoint that trainer-0 wrote meanwhile.
  ASSERT_EQ(world_->job(job_).assign.trainer_incarnation, 2);
  for (int64_t k = 6; k < 9; ++k) Train("trainer-1", 2, k);
  world_->Settle();
  EXPECT_EQ(Tokens().size(), 6u);
  const size_t rewrites = world_->job(job_).rewritten_from.size();

  ComeBack("trainer-0");

  std::map<int64_t, double> want;
  for (int64_t k = 0; k < 9; ++k) want[k] = TokensOf(k < 6 ? 1 : 2, k);
  EXPECT_EQ(Tokens(), want);
  EXPECT_EQ(world_->job(job_).record.step, 9);
  EXPECT_EQ(world_->job(job_).record.version.incarnation, 2);
  EXPECT_TRUE(world_->actors["trainer-0"].steps.empty());
  // A watcher goes back to the first of the steps that it has not seen.
  EXPECT_GT(world_->job(job_).rewritten_from.size(), rewrites);
  EXPECT_EQ(world_->job(job_).rewritten_from[rewrites], 3);
}

TEST_F(StepReportsTest, ADaemonThatWasNotInTheTrainerGroupCannotReportForIt) {
  Train("trainer-0", 1, 0);
  Train("trainer-1", 1, 1);
  world_->Settle();

  EXPECT_EQ(Tokens().size(), 1u);
  EXPECT_TRUE(world_->actors["trainer-1"].steps.empty());  // It is told to forget it.
}

TEST_F(StepReportsTest, ReportsOfAJobThatHasEndedAreForgotten) {
  Train("trainer-0", 1, 0);
  world_->Settle();
  world_->Say("trainer-0", job_, "done");
  world_->Leave();
  world_->Leave();
  world_->Pass(absl::Minutes(1));
  ASSERT_EQ(world_->job(job_).record.stage, Stage::kOver);
  Train("trainer-0", 1, 1);
  world_->Settle();

  EXPECT_TRUE(world_->actors["trainer-0"].steps.empty());
}

TEST_F(StepReportsTest, ARecordOfABuildWithoutTrainerGroupsIsReadAndTheGroupGoesOn) {
  Train("trainer-0", 1, 0);
  world_->Settle();
  const meta::Entry entry = world_->store()->Get(JobKey(job_, "status")).value();
  std::string text = entry.value;
  const size_t at = text.find("\"groups\":");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 9, "\"no_key\":");
  ASSERT_TRUE(world_->store()->Txn({}, {{JobKey(job_, "status"), text}}).ok());

  world_->Restart();
  ASSERT_TRUE(world_->Reregister("trainer-0").ok());
  for (const char* id : {"queue-0", "trainer-1", "rollout-0", "reward-0"})
    ASSERT_TRUE(world_->Reregister(id).ok());
  Train("trainer-0", 1, 1);
  world_->Settle();
  EXPECT_EQ(Tokens().size(), 2u);
}

// The model: an array of who trained each step. A group that begins cuts it, and each step is
// appended. The reports of a cut-off trainer come at any later time.
TEST_F(StepReportsTest, WhateverTheOrderTheReportsLeftAreThoseOfOneLineOfTraining) {
  for (int seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto draw = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
    };
    Begin();
    const auto& job = world_->job(job_);
    std::vector<double> line;
    std::string trainer = "trainer-0";

    for (int group = 1; group <= 5; ++group) {
      ASSERT_EQ(job.assign.trainer_incarnation, group);
      const std::string other = trainer == "trainer-0" ? "trainer-1" : "trainer-0";
      const int64_t heard = draw(4), unheard = draw(4);
      for (int64_t i = 0; i < heard + unheard; ++i) {
        if (i == heard) world_->actors[trainer].silent = true;
        Train(trainer, group, static_cast<int64_t>(line.size()));
        line.push_back(TokensOf(group, static_cast<int64_t>(line.size())));
        if (i < heard && draw(1) == 0) world_->Settle();
      }
      // The trainer before may come back while this group trains, or later.
      if (world_->actors[other].silent) ComeBack(other);
      world_->Settle();
      if (group == 5) break;

      const int64_t back = std::min<int64_t>(draw(5), static_cast<int64_t>(line.size()));
      line.resize(line.size() - static_cast<size_t>(back));
      CutOff(trainer, other, static_cast<int64_t>(line.size()));
      trainer = other;
    }
    for (const char* id : {"trainer-0", "trainer-1"}) {
      if (world_->actors[id].silent) ComeBack(id);
    }
    world_->Settle();

    std::map<int64_t, double> want;
    for (size_t k = 0; k < line.size(); ++k) want[static_cast<int64_t>(k)] = line[k];
    EXPECT_EQ(Tokens(), want);
    for (const char* id : {"trainer-0", "trainer-1"})
      EXPECT_TRUE(world_->actors[id].steps.empty()) << id;
  }
}

}  // namespace
}  // namespace sluice::controller
