#include "services/trainer/core/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/evaluations.h"
#include "services/trainer/core/lineage.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kJob(32, 'a');

std::vector<std::string> PathsOf(const std::vector<CheckpointEntry>& entries) {
  std::vector<std::string> paths;
  for (const CheckpointEntry& entry : entries) paths.push_back(entry.path);
  return paths;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

void FlipABit(const std::string& path) {
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomic(path, bytes).ok());
}

// Changes the state.json of a checkpoint.
void EditState(const std::string& checkpoint, const std::function<void(nlohmann::json*)>& edit) {
  const std::string path = checkpoint + "/state.json";
  nlohmann::json state = nlohmann::json::parse(*ReadFile(path));
  edit(&state);
  ASSERT_TRUE(WriteFileAtomic(path, state.dump(2)).ok());
}

// Makes the checkpoint look as if a build with the next format had written it.
void MakeNewer(const std::string& checkpoint) {
  EditState(checkpoint, [](nlohmann::json* state) { (*state)["format"] = 6; });
}

Id16 GroupOf(int64_t k) {
  Id16 id;
  id.bytes[15] = static_cast<uint8_t>(k + 1);
  return id;
}

// Writes checkpoints of a run in which batch k trained one trajectory.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointStore Store(int keep_last = 3, int64_t keep_every = 0) {
    return CheckpointStore({.dir = dir_,
                            .job = kJob,
                            .source = model_,
                            .model_types = types_,
                            .keep_last = keep_last,
                            .keep_every_steps = keep_every,
                            .max_shard_bytes = max_shard_bytes_});
  }

  // Writes version `number` as a successor of version `from` (0: the initial model).
  absl::StatusOr<std::string> Write(CheckpointStore&& store, int64_t number, int64_t from,
                                    int64_t incarnation = 1) {
    return Write(store, number, from, incarnation);
  }

  absl::StatusOr<std::string> Write(CheckpointStore& store, int64_t number, int64_t from,
                                    int64_t incarnation = 1) {
    CheckpointContents contents;
    contents.model = std::make_shared<SetSource>(&weights_);
    contents.optimizer = std::make_shared<SetSource>(&moments_);
    if (critic_.size() > 0) {
      contents.critic = std::make_shared<SetSource>(&critic_);
      contents.critic_moments = std::make_shared<SetSource>(&moments_);
      contents.state.critic_updates = 10 + number;
      contents.state.reward_kl = 0.1 / 3;
    }
    contents.state.job = kJob;
    contents.state.version = {incarnation, number};
    contents.state.updates = number;
    contents.state.ledger_hash = FirstLedgerHash();
    contents.cursor = absl::StrCat("cursor ", number);

    for (int64_t k = 0; k < number; ++k) {
      const LineageEntry entry{k, GroupOf(k), 0, 1, 7, {}, ""};
      contents.state.ledger_hash =
          NextLedgerHash(contents.state.ledger_hash, k, CanonicalBytes({entry}));
      if (k >= from) contents.lineage_tail += LineageLine(entry);
    }

    contents.promoted = promoted_;
    if (from > 0) contents.previous = absl::StrCat(dir_, "/step-", from);
    return store.Write(contents);
  }

  const std::string dir_ = FreshDir();
  const ModelDir model_ = TinyModelDir();
  std::map<std::string, DType> types_;  // Of the model's tensors; those not listed are fp32.
  int64_t max_shard_bytes_ = kMaxShardBytes;
  std::optional<int64_t> promoted_;
  TensorSet weights_ = *InitWeights(model_.config, 3);
  TensorSet critic_;  // Empty: the job has none.
  TensorSet moments_ = *TensorSet::Create({{"m.x", DType::kF32, {2}}, {"v.x", DType::kF32, {2}}});
};

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsSaidBeforeTheFirstStep) {
  EXPECT_TRUE(Store().Prepare().ok());
  EXPECT_THAT(Store().List(), SizeIs(0));

  const CheckpointStore blocked({.dir = "/dev/null/checkpoints", .source = model_});
  EXPECT_TRUE(absl::StrContains(blocked.Prepare().message(), "/dev/null/checkpoints"))
      << blocked.Prepare();
}

TEST_F(CheckpointTest, WhatIsReadIsWhatWasWritten) {
  moments_.as<float>(0)[1] = 0.5f;
  ASSERT_TRUE(Write(Store(), 2, 0).ok());

  std::vector<std::string> damaged;
  const auto checkpoint = Store().ReadNewest(&damaged);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(checkpoint->has_value());
  EXPECT_EQ((*checkpoint)->state.version, (PolicyVersion{1, 2}));
  EXPECT_EQ((*checkpoint)->state.updates, 2);
  EXPECT_EQ((*checkpoint)->cursor, "cursor 2");
  EXPECT_EQ((*checkpoint)->model.layout_id(), weights_.layout_id());
  EXPECT_TRUE(std::equal(weights_.buffer().begin(), weights_.buffer().end(),
                         (*checkpoint)->model.buffer().begin()));
  EXPECT_EQ(ReadAll(*(*checkpoint)->optimizer)->as<float>(0)[1], 0.5f);
  EXPECT_THAT(damaged, SizeIs(0));
}

TEST_F(CheckpointTest, AnEmptyFolderHasNone) {
  const auto checkpoint = Store().ReadNewest(nullptr);
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
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "cursor.bin",
                           "lineage.jsonl", "config.json", "state.json"}) {
    ASSERT_TRUE(Write(Store(), 1, 0).ok());
    const auto path = Write(Store(), 2, 1);
    ASSERT_TRUE(path.ok());
    FlipABit(absl::StrCat(*path, "/", name));

    std::vector<std::string> damaged;
    const auto checkpoint = Store().ReadNewest(&damaged);
    ASSERT_TRUE(checkpoint.ok() && checkpoint->has_value()) << name << " " << checkpoint.status();
    EXPECT_EQ((*checkpoint)->state.version.number, 1) << name;
    ASSERT_THAT(damaged, SizeIs(1)) << name;
    EXPECT_TRUE(absl::StrContains(damaged[0], name)) << damaged[0];

    ASSERT_TRUE(RemoveTree(*path).ok());
  }
}

TEST_F(CheckpointTest, TensorsAboveTheLimitOfAFileAreInSeveralAndEachIsVerified) {
  types_ = {{weights_.spec(0).name, DType::kBF16}, {weights_.spec(1).name, DType::kBF16}};
  max_shard_bytes_ = 8;  // Each moment has a file of its own, and so has each larger tensor.
  moments_.as<float>(1)[0] = 0.25f;
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  const std::string path = *Write(Store(), 2, 1);
  EXPECT_TRUE(PathExists(path + "/optimizer-00001-of-00002.safetensors"));
  EXPECT_TRUE(PathExists(path + "/masters.safetensors.index.json"));
  EXPECT_FALSE(PathExists(path + "/model.safetensors"));
  const nlohmann::json state = nlohmann::json::parse(*ReadFile(path + "/state.json"));
  EXPECT_EQ(state["format"], 3);

  const Checkpoint read = *ReadCheckpoint(path);
  EXPECT_EQ(read.model.buffer(), weights_.buffer());
  EXPECT_EQ(ReadAll(*read.optimizer)->buffer(), moments_.buffer());
  EXPECT_EQ(ReadCheckpointModel(path)->buffer(), weights_.buffer());
  // transformers reads the model by its index.
  EXPECT_TRUE(ReadWeights(*ReadModelDir(path), DType::kF32).ok());
  const std::string copy = FreshDir();
  ASSERT_EQ(CopyCheckpointModel(path, copy), absl::OkStatus());
  EXPECT_TRUE(ReadWeights(*ReadModelDir(copy), DType::kF32).ok());
  EXPECT_FALSE(PathExists(copy + "/optimizer-00001-of-00002.safetensors"));

  for (const auto& [name, digest] : state["files"].items()) {
    SCOPED_TRACE(name);
    FlipABit(absl::StrCat(path, "/", name));
    std::vector<std::string> damaged;
    const auto newest = Store().ReadNewest(&damaged);
    ASSERT_TRUE(newest.ok() && newest->has_value()) << newest.status();
    EXPECT_EQ((*newest)->state.version.number, 1);
    ASSERT_THAT(damaged, SizeIs(1));
    EXPECT_TRUE(absl::StrContains(damaged[0], name)) << damaged[0];
    FlipABit(absl::StrCat(path, "/", name));  // It is whole again.
    ASSERT_TRUE(VerifyCheckpoint(path).ok());
  }
  ASSERT_TRUE(RemoveTree(path + "/optimizer-00002-of-00002.safetensors").ok());
  EXPECT_THAT(MessageOf(VerifyCheckpoint(path).status()),
              HasSubstr("optimizer-00002-of-00002.safetensors"));
}

TEST_F(CheckpointTest, ACriticIsPartOfTheCheckpointButNotOfTheModel) {
  critic_ = *InitWeights(model_.config, 5);
  moments_.as<float>(0)[1] = 0.5f;
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  const std::string path = *Write(Store(), 2, 1);
  const nlohmann::json state = nlohmann::json::parse(*ReadFile(path + "/state.json"));
  EXPECT_EQ(state["format"], 4);

  const Checkpoint read = *ReadCheckpoint(path);
  EXPECT_EQ(read.model.buffer(), weights_.buffer());
  EXPECT_EQ(ReadAll(*read.critic)->buffer(), critic_.buffer());
  EXPECT_EQ(ReadAll(*read.critic_moments)->buffer(), moments_.buffer());
  EXPECT_EQ(read.state.critic_updates, 12);
  EXPECT_EQ(read.state.reward_kl, 0.1 / 3);
  EXPECT_EQ(ReadWeights(*ReadModelDir(path), DType::kF32)->buffer(), weights_.buffer());
  const std::string copy = FreshDir();
  ASSERT_EQ(CopyCheckpointModel(path, copy), absl::OkStatus());
  const std::vector<std::string> copied = *ListDir(copy);
  for (const std::string& name : copied) EXPECT_FALSE(absl::StrContains(name, "critic")) << name;

  for (const char* name : {"critic.safetensors", "critic_moments.safetensors"}) {
    FlipABit(absl::StrCat(path, "/", name));
    std::vector<std::string> damaged;
    EXPECT_EQ((*Store().ReadNewest(&damaged))->state.version.number, 1);
    ASSERT_THAT(damaged, SizeIs(1));
    EXPECT_TRUE(absl::StrContains(damaged[0], name)) << damaged[0];
    FlipABit(absl::StrCat(path, "/", name));  // It is whole again.
  }

  // A critic above the limit of a file is in several.
  max_shard_bytes_ = 8;
  const std::string parts = *Write(Store(), 3, 2);
  EXPECT_TRUE(PathExists(parts + "/critic.safetensors.index.json"));
  EXPECT_EQ(ReadAll(*ReadCheckpoint(parts)->critic)->buffer(), critic_.buffer());
  EXPECT_FALSE(ReadCheckpointWithoutModel(parts)->critic == nullptr);
}

TEST_F(CheckpointTest, AMountWithoutAnExchangeOfFoldersKeepsCheckpointsToo) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  moments_.as<float>(0)[0] = 3;
  ASSERT_EQ(ArmFailpoint("trainer.checkpoint.no_exchange", "error", 1), absl::OkStatus());
  ASSERT_TRUE(Write(Store(), 1, 0, /*incarnation=*/2).ok());  // In place of the first.
  const auto newest = Store().ReadNewest(nullptr);
  ASSERT_TRUE(newest.ok() && newest->has_value()) << newest.status();
  EXPECT_EQ((*newest)->state.version, (PolicyVersion{2, 1}));
  EXPECT_EQ(ReadAll(*(*newest)->optimizer)->as<float>(0)[0], 3);
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-1"));
}

TEST_F(CheckpointTest, ACheckpointThatWasBeingReplacedIsThereAfterAKill) {
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  // As plain renames leave it between the two.
  std::filesystem::rename(dir_ + "/step-1", dir_ + "/.step-1.2.old.tmp");
  ASSERT_TRUE(MakeDirs(dir_ + "/.step-1.2.tmp").ok());
  ASSERT_EQ(Store().Prepare(), absl::OkStatus());
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-1"));
  EXPECT_TRUE(Store().ReadNewest(nullptr)->has_value());

  // Afterwards it is removed.
  ASSERT_TRUE(MakeDirs(dir_ + "/.step-1.2.old.tmp").ok());
  ASSERT_EQ(Store().Prepare(), absl::OkStatus());
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-1"));
}

TEST_F(CheckpointTest, ACutFileIsNoCheckpoint) {
  const auto path = Write(Store(), 1, 0);
  ASSERT_TRUE(path.ok());
  const std::string bytes = *ReadFile(*path + "/model.safetensors");
  ASSERT_TRUE(
      WriteFileAtomic(*path + "/model.safetensors", bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_EQ(ReadCheckpoint(*path).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, OldOnesGoButForThoseToBeKept) {
  for (int64_t v = 1; v <= 5; ++v)
    ASSERT_TRUE(Write(Store(/*keep_last=*/2, /*keep_every=*/2), v, v - 1).ok());
  EXPECT_THAT(PathsOf(Store().List()),
              ElementsAre(dir_ + "/step-2", dir_ + "/step-4", dir_ + "/step-5"));
}

TEST_F(CheckpointTest, ACheckpointThatALinkNamesIsKept) {
  ASSERT_TRUE(LinkCheckpoint(dir_, kBestLink, 2).ok());
  ASSERT_TRUE(LinkCheckpoint(dir_, kEvaluatingLink, 4).ok());
  for (int64_t number = 1; number <= 6; ++number)
    ASSERT_TRUE(Write(Store(/*keep_last=*/1), number, number - 1).ok());
  EXPECT_THAT(PathsOf(Store().List()),
              ElementsAre(dir_ + "/step-2", dir_ + "/step-4", dir_ + "/step-6"));

  ASSERT_TRUE(LinkCheckpoint(dir_, kBestLink, 6).ok());
  ASSERT_TRUE(RemoveLink(dir_, kEvaluatingLink).ok());
  ASSERT_TRUE(Write(Store(/*keep_last=*/1), 7, 6).ok());
  EXPECT_THAT(PathsOf(Store().List()), ElementsAre(dir_ + "/step-6", dir_ + "/step-7"));
}

TEST_F(CheckpointTest, AHigherIncarnationIsNewerWhateverTheNumber) {
  ASSERT_TRUE(Write(Store(), 9, 0).ok());
  ASSERT_TRUE(Write(Store(), 4, 0, /*incarnation=*/2).ok());
  EXPECT_EQ((*Store().ReadNewest(nullptr))->state.version, (PolicyVersion{2, 4}));
}

TEST_F(CheckpointTest, WhatLiesOffTheBranchIsPassedOverAlsoIfItIsNewer) {
  for (int64_t v = 1; v <= 3; ++v) ASSERT_TRUE(Write(Store(), v, v - 1).ok());
  const auto until = [](int64_t most) {
    return [most](const PolicyVersion& version) { return version.number <= most; };
  };
  EXPECT_EQ((*Store().ReadNewest(nullptr, until(2)))->state.version, (PolicyVersion{1, 2}));
  EXPECT_FALSE(Store().ReadNewest(nullptr, until(0))->has_value());
}

// The trial of version 3 may end badly while checkpoints of later versions are written.
TEST_F(CheckpointTest, TheNewestThatIsNotYoungerThanThePromotedVersionIsKept) {
  for (int64_t v = 1; v <= 5; ++v) {
    promoted_ = 2;
    ASSERT_TRUE(Write(Store(/*keep_last=*/1), v, v - 1).ok());
  }
  EXPECT_THAT(PathsOf(Store().List()), ElementsAre(dir_ + "/step-2", dir_ + "/step-5"));

  promoted_ = 5;
  ASSERT_TRUE(Write(Store(/*keep_last=*/1), 6, 5).ok());
  EXPECT_THAT(PathsOf(Store().List()), ElementsAre(dir_ + "/step-5", dir_ + "/step-6"));
}

TEST_F(CheckpointTest, CheckpointsOfABranchThatWasGivenUpCountForNothingAndGoFirst) {
  for (const int64_t v : {10, 20, 30}) ASSERT_TRUE(Write(Store(/*keep_last=*/3), v, v - 10).ok());
  // The run went back to version 10, so 20 and 30 of the first incarnation were given up.
  CheckpointStore store({.dir = dir_,
                         .keep_last = 2,
                         .keep_every_steps = 0,
                         .is_on_branch = [](const PolicyVersion& version) {
                           return version.incarnation > 1 || version.number <= 10;
                         }});
  promoted_ = 23;
  ASSERT_TRUE(Write(std::move(store), 25, 10, /*incarnation=*/2).ok());
  EXPECT_THAT(PathsOf(Store().List()), ElementsAre(dir_ + "/step-10", dir_ + "/step-25"));
}

TEST_F(CheckpointTest, ANumberIsWrittenAnewByALaterIncarnation) {
  ASSERT_TRUE(Write(Store(), 3, 0).ok());
  ASSERT_TRUE(Write(Store(), 3, 0, /*incarnation=*/2).ok());
  EXPECT_EQ(Store().ReadVersion(3)->state.version, (PolicyVersion{2, 3}));
  EXPECT_THAT(Store().List(), SizeIs(1));
  EXPECT_EQ(Store().ReadVersion(4).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, ADamagedLineageIsNotCarriedIntoTheNextCheckpoint) {
  const auto first = Write(Store(), 2, 0);
  ASSERT_TRUE(first.ok());
  FlipABit(*first + "/lineage.jsonl");

  const absl::Status status = Write(Store(), 4, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED");
  EXPECT_THAT(MessageOf(status), HasSubstr(*first + "/lineage.jsonl"));
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-2"));
}

TEST_F(CheckpointTest, APredecessorThatIsGoneIsDamageToo) {
  ASSERT_TRUE(Write(Store(), 2, 0).ok());
  ASSERT_TRUE(RemoveTree(dir_ + "/step-2").ok());
  EXPECT_EQ(ReasonOf(Write(Store(), 4, 2).status()), "CHECKPOINT_DAMAGED");
}

TEST_F(CheckpointTest, ACheckpointWithoutStateIsNamedAndNotPassedOver) {
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  const auto path = Write(Store(), 2, 1);
  ASSERT_TRUE(RemoveTree(*path + "/state.json").ok());

  const std::vector<CheckpointEntry> entries = Store().List();
  ASSERT_THAT(PathsOf(entries), ElementsAre(*path, dir_ + "/step-1"));
  EXPECT_EQ(entries[0].status.code(), absl::StatusCode::kDataLoss);
  std::vector<std::string> damaged;
  ASSERT_TRUE(Store().ReadNewest(&damaged).ok());
  EXPECT_THAT(damaged, ElementsAre(HasSubstr(*path + "/state.json")));
}

TEST_F(CheckpointTest, StateIsHeldToItsOwnDigest) {
  const auto path = Write(Store(), 2, 0);
  ASSERT_TRUE(path.ok());
  EditState(*path, [](nlohmann::json* state) { (*state)["updates"] = 3; });
  EXPECT_EQ(VerifyCheckpoint(*path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(VerifyCheckpoint(*path).status()), HasSubstr(*path + "/state.json"));

  EditState(*path, [](nlohmann::json* state) {
    (*state)["updates"] = 2;
    state->erase("sha256");
  });
  EXPECT_EQ(VerifyCheckpoint(*path).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, TheFormerFormatIsStillRead) {
  const auto path = Write(Store(), 2, 0);
  ASSERT_TRUE(path.ok());
  EditState(*path, [](nlohmann::json* state) {
    (*state)["format"] = 1;
    state->erase("sha256");
  });

  const auto checkpoint = Store().ReadNewest(nullptr);
  ASSERT_TRUE(checkpoint.ok() && checkpoint->has_value()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->state.updates, 2);

  ASSERT_TRUE(Write(Store(), 4, 2).ok());
  EXPECT_TRUE(VerifyCheckpoint(dir_ + "/step-4").ok());
}

TEST_F(CheckpointTest, ANewerFormatIsRefusedThoughAnOlderCheckpointIsThere) {
  ASSERT_TRUE(Write(Store(), 1, 0).ok());
  ASSERT_TRUE(Write(Store(), 2, 1).ok());
  MakeNewer(dir_ + "/step-2");

  for (const absl::Status& status :
       {Store().ReadNewest(nullptr).status(), Store().ReadVersion(1).status(),
        Write(Store(), 3, 1).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr(dir_ + "/step-2/state.json"), HasSubstr("format 6")));
    EXPECT_THAT(DetailOf(status).hint, HasSubstr("use the build that wrote it"));
  }
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-1", "step-2"));
}

TEST_F(CheckpointTest, AnotherJobsCheckpointIsRefusedWithBothIds) {
  ASSERT_TRUE(Write(Store(), 2, 0).ok());
  CheckpointStore other({.dir = dir_, .job = std::string(32, 'b'), .source = model_});
  for (const absl::Status& status : {other.ReadNewest(nullptr).status(),
                                     other.ReadVersion(2).status(), Write(other, 4, 0).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(kJob), HasSubstr(std::string(32, 'b'))));
    EXPECT_THAT(DetailOf(status).hint,
                AllOf(HasSubstr("another checkpoint.dir"), HasSubstr("model.path")));
  }
}

TEST_F(CheckpointTest, AnEarlierJobOfTheSameNameIsFoundByItsFolder) {
  const std::string earlier = dir_ + "/digits-aaaaaaaa", own = dir_ + "/digits-bbbbbbbb";
  CheckpointStore store({.dir = earlier, .job = kJob, .source = model_});
  ASSERT_TRUE(MakeDirs(own).ok());
  EXPECT_FALSE(FindEarlierJob(own).has_value());
  ASSERT_TRUE(Write(store, 2, 0).ok());

  const auto found = FindEarlierJob(own);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, earlier + "/step-2");
  EXPECT_EQ(found->state.job, kJob);
  EXPECT_FALSE(FindEarlierJob(earlier).has_value());
  EXPECT_FALSE(FindEarlierJob(dir_ + "/other-bbbbbbbb").has_value());
}

TEST_F(CheckpointTest, DamagedOnesDoNotPushOutTheLastThatVerifies) {
  for (int64_t v = 1; v <= 3; ++v) ASSERT_TRUE(Write(Store(), v, v - 1).ok());
  FlipABit(dir_ + "/step-2/model.safetensors");
  FlipABit(dir_ + "/step-3/model.safetensors");

  CheckpointStore store = Store(/*keep_last=*/2);
  ASSERT_EQ((*store.ReadNewest(nullptr))->state.version.number, 1);

  ASSERT_TRUE(Write(store, 4, 1, /*incarnation=*/2).ok());
  EXPECT_TRUE(VerifyCheckpoint(dir_ + "/step-1").ok());

  // Now two that verify are newer than step-1. Those that were found damaged stay.
  ASSERT_TRUE(Write(store, 5, 4, /*incarnation=*/2).ok());
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-2", "step-3", "step-4", "step-5"));
}

TEST_F(CheckpointTest, AnIncarnationThatWasReplacedWritesNoMore) {
  ASSERT_TRUE(Write(Store(), 2, 0, /*incarnation=*/2).ok());
  const absl::Status status = Write(Store(), 3, 0, /*incarnation=*/1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(status), "FENCED");
  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-2"));
}

TEST_F(CheckpointTest, WhatAKilledWriterLeftIsRemovedAtTheStart) {
  ASSERT_TRUE(MakeDirs(dir_ + "/.step-7.1.tmp").ok());
  ASSERT_TRUE(Store().Prepare().ok());
  EXPECT_THAT(*ListDir(dir_), SizeIs(0));
}

TEST_F(CheckpointTest, ModelFilesKeepTheTypesOfTheModelAndTheRunItsFp32Parameters) {
  const std::string narrow = weights_.spec(0).name, half = weights_.spec(1).name;
  types_ = {{narrow, DType::kBF16}, {half, DType::kF16}};
  weights_.as<float>(0)[0] = 1.0f + 1e-6f;  // Lost in bf16.
  const auto path = Write(Store(), 2, 0);
  ASSERT_TRUE(path.ok()) << path.status();

  const TensorSet stored = *ReadSafetensors(*path + "/model.safetensors");
  for (size_t i = 0; i < weights_.size(); ++i) {
    const TensorSpec& spec = stored.spec(stored.Find(weights_.spec(i).name));
    const auto type = types_.find(spec.name);
    EXPECT_EQ(spec.dtype, type == types_.end() ? DType::kF32 : type->second) << spec.name;
  }

  const TensorSet masters = *ReadSafetensors(*path + "/masters.safetensors");
  EXPECT_EQ(masters.size(), 2u);  // Those of `narrow` and `half`.

  const Checkpoint read = *ReadCheckpoint(*path);
  EXPECT_EQ(read.model.buffer(), weights_.buffer());
  EXPECT_EQ(ReadCheckpointModel(*path)->buffer(), weights_.buffer());
}

TEST_F(CheckpointTest, TheConfigNamesTheTypeOfMostElements) {
  for (const TensorSpec& spec : weights_.specs()) types_[spec.name] = DType::kBF16;
  types_.erase("model.norm.weight");
  const auto path = Write(Store(), 1, 0);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(ReadModelDir(*path)->config.dtype, DType::kBF16);
}

TEST_F(CheckpointTest, ALostMasterIsDamage) {
  types_ = {{weights_.spec(0).name, DType::kBF16}};
  const auto path = Write(Store(), 1, 0);
  ASSERT_TRUE(path.ok());
  FlipABit(*path + "/masters.safetensors");
  EXPECT_EQ(ReadCheckpoint(*path).status().code(), absl::StatusCode::kDataLoss);

  ASSERT_TRUE(RemoveTree(*path + "/masters.safetensors").ok());
  EXPECT_THAT(MessageOf(ReadCheckpoint(*path).status()), HasSubstr("masters.safetensors"));
}

TEST_F(CheckpointTest, AWeightThatItsTypeCannotHoldIsNamed) {
  types_ = {{weights_.spec(0).name, DType::kF16}};
  weights_.as<float>(0)[3] = 1e6f;
  EXPECT_THAT(MessageOf(Write(Store(), 1, 0).status()),
              AllOf(HasSubstr("element 3 of " + weights_.spec(0).name),
                    HasSubstr("which is too large for F16")));
}

TEST_F(CheckpointTest, EveryFileIsListedWithTheDigestOfWhatLiesOnDisk) {
  types_ = {{weights_.spec(0).name, DType::kBF16}};
  const auto path = Write(Store(), 1, 0);
  ASSERT_TRUE(path.ok());
  const nlohmann::json files = nlohmann::json::parse(*ReadFile(*path + "/state.json")).at("files");
  const std::vector<std::string> names = *ListDir(*path);

  for (const std::string& name : names) {
    if (name == "state.json") continue;
    const FileDigest digest = *DigestFile(absl::StrCat(*path, "/", name));
    ASSERT_TRUE(files.contains(name)) << name;
    EXPECT_EQ(files[name]["bytes"], digest.bytes) << name;
    EXPECT_EQ(files[name]["sha256"], ToHex(digest.sha256)) << name;
  }
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
  EXPECT_EQ((*Store().ReadNewest(nullptr))->state.version.number, 1);
  ASSERT_TRUE(Write(Store(), 2, 1).ok());  // What the killed process left is no obstacle.
  EXPECT_EQ((*Store().ReadNewest(nullptr))->state.version.number, 2);
}
#endif

}  // namespace
}  // namespace sluice::trainer
