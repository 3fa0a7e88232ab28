#include "services/trainer/core/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "services/trainer/core/lineage.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

Id16 GroupOf(int64_t k) {
  Id16 id;
  id.bytes[15] = static_cast<uint8_t>(k + 1);
  return id;
}

// Checkpoints of a run whose batch k trains one trajectory.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointStore Store(int keep_last = 3, int64_t keep_every = 0) {
    return CheckpointStore({.dir = dir_, .source = model_, .keep_last = keep_last, .keep_every_steps = keep_every});
  }

  // Writes version `number`, going on from version `from` (0: the initial model).
  absl::StatusOr<std::string> Write(CheckpointStore store, int64_t number, int64_t from, int64_t incarnation = 1) {
    CheckpointContents contents;
    contents.model = &weights_;
    contents.optimizer = &moments_;
    contents.state.job = std::string(32, 'a');
    contents.state.version = {incarnation, number};
    contents.state.updates = number;
    contents.state.ledger_hash = FirstLedgerHash();
    contents.cursor = absl::StrCat("cursor ", number);
    for (int64_t k = 0; k < number; ++k) {
      const LineageEntry entry{k, GroupOf(k), 0, 1, 7, {}, ""};
      contents.state.ledger_hash = NextLedgerHash(contents.state.ledger_hash, k, CanonicalBytes({entry}));
      if (k >= from) contents.lineage_tail += LineageLine(entry);
    }
    if (from > 0) contents.previous = absl::StrCat(dir_, "/step-", from);
    return store.Write(contents);
  }

  const std::string dir_ = FreshDir();
  const ModelDir model_ = TinyModelDir();
  TensorSet weights_ = *InitWeights(model_.config, 3);
  TensorSet moments_ = *TensorSet::Create({{"m.x", DType::kF32, {2}}, {"v.x", DType::kF32, {2}}});
};

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsSaidBeforeTheFirstStep) {
  EXPECT_TRUE(Store().Prepare().ok());
  EXPECT_THAT(Store().List(), ElementsAre());
  const CheckpointStore blocked({.dir = "/dev/null/checkpoints", .source = model_});
  EXPECT_TRUE(absl::StrContains(blocked.Prepare().message(), "/dev/null/checkpoints")) << blocked.Prepare();
}

TEST_F(CheckpointTest, WhatIsReadIsWhatWasWritten) {
  moments_.as<float>(0)[1] = 0.5f;
  ASSERT_TRUE(Write(Store(), 2, 0).ok());
  std::vector<std::string> damaged;
  const auto checkpoint = Store().Newest(&damaged);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(checkpoint->has_value());
  EXPECT_EQ((*checkpoint)->state.version, (PolicyVersion{1, 2}));
  EXPECT_EQ((*checkpoint)->state.updates, 2);
  EXPECT_EQ((*checkpoint)->cursor, "cursor 2");
  EXPECT_EQ((*checkpoint)->model.layout_id(), weights_.layout_id());
  EXPECT_TRUE(std::equal(weights_.buffer().begin(), weights_.buffer().end(), (*checkpoint)->model.buffer().begin()));
  EXPECT_EQ((*checkpoint)->optimizer.as<float>(0)[1], 0.5f);
  EXPECT_THAT(damaged, SizeIs(0));
}

TEST_F(CheckpointTest, AnEmptyFolderHasNone) {
  const auto checkpoint = Store().Newest(nullptr);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_FALSE(checkpoint->has_value());
}

TEST_F(CheckpointTest, LineageGoesOnFromThePreviousCheckpoint) {
  ASSERT_TRUE(Write(Store(), 2, 0).ok());
  const auto path = Write(Store(), 5, 2);
  ASSERT_TRUE(path.ok());
  EXPECT_TRUE(ReadCheckpoint(*path).ok()) << ReadCheckpoint(*path).status();
  EXPECT_EQ(CheckLineage(*ReadFile(*path + "/lineage.jsonl"), 5)->trajectories, 5);
}

TEST_F(CheckpointTest, TheNewestThatVerifiesIsTakenAndTheDamagedIsNamed) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "cursor.bin", "lineage.jsonl", "config.json", "state.json"}) {
    ASSERT_TRUE(Write(Store(), 1, 0).ok());
    const auto path = Write(Store(), 2, 1);
    ASSERT_TRUE(path.ok());
    std::string bytes = *ReadFile(absl::StrCat(*path, "/", name));
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomic(absl::StrCat(*path, "/", name), bytes).ok());

    std::vector<std::string> damaged;
    const auto checkpoint = Store().Newest(&damaged);
    ASSERT_TRUE(checkpoint.ok() && checkpoint->has_value()) << name << " " << checkpoint.status();
    EXPECT_EQ((*checkpoint)->state.version.number, 1) << name;
    if (std::string(name) != "state.json") {  // A checkpoint is known by its state.json.
      ASSERT_THAT(damaged, SizeIs(1)) << name;
      EXPECT_TRUE(absl::StrContains(damaged[0], name)) << damaged[0];
    }
    ASSERT_TRUE(RemoveTree(*path).ok());
  }
}

TEST_F(CheckpointTest, ACutFileIsNoCheckpoint) {
  const auto path = Write(Store(), 1, 0);
  ASSERT_TRUE(path.ok());
  const std::string bytes = *ReadFile(*path + "/model.safetensors");
  ASSERT_TRUE(WriteFileAtomic(*path + "/model.safetensors", bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_EQ(ReadCheckpoint(*path).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, OldOnesGoButForThoseToBeKept) {
  for (int64_t v = 1; v <= 5; ++v) ASSERT_TRUE(Write(Store(2, 2), v, v - 1).ok());
  EXPECT_THAT(Store().List(), ElementsAre(dir_ + "/step-2", dir_ + "/step-4", dir_ + "/step-5"));
}

TEST_F(CheckpointTest, AHigherIncarnationIsNewerWhateverTheNumber) {
  ASSERT_TRUE(Write(Store(), 9, 0).ok());
  ASSERT_TRUE(Write(Store(), 4, 0, /*incarnation=*/2).ok());
  EXPECT_EQ((*Store().Newest(nullptr))->state.version, (PolicyVersion{2, 4}));
}

TEST_F(CheckpointTest, ANumberIsWrittenAnewByALaterIncarnation) {
  ASSERT_TRUE(Write(Store(), 3, 0).ok());
  ASSERT_TRUE(Write(Store(), 3, 0, /*incarnation=*/2).ok());
  EXPECT_EQ(Store().At(3)->state.version, (PolicyVersion{2, 3}));
  EXPECT_THAT(Store().List(), SizeIs(1));
  EXPECT_EQ(Store().At(4).status().code(), absl::StatusCode::kNotFound);
}

#ifdef SLUICE_FAILPOINTS
TEST_F(CheckpointTest, AProcessKilledBeforeTheRenameLeavesTheOldCheckpointNewest) {
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    (void)ArmFailpoint("trainer.checkpoint.before_rename", "kill", 1);
    (void)Write(Store(), 2, 1);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

  EXPECT_EQ((*Store().Newest(nullptr))->state.version.number, 1);
  ASSERT_TRUE(Write(Store(), 2, 1).ok());  // What it left behind is in nobody's way.
  EXPECT_EQ((*Store().Newest(nullptr))->state.version.number, 2);
}
#endif

}  // namespace
}  // namespace sluice::trainer
