// Checkpoints to which each rank writes its part.

#include "services/trainer/core/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/rendezvous.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/lineage.h"
#include "services/trainer/core/shard_exchange.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kJob(32, 'a');

// Tensors of which each rank has a random part.
struct Parted {
  PartedTensors layout;
  TensorSet whole;
};

Parted RandomParts(uint64_t seed, int world, DType dtype) {
  SplitMix64 random(seed);
  Parted out;
  for (const char* name : {"m.a", "m.b", "m.c", "v.a", "v.b", "v.c"}) {
    const int64_t rows = 1 + static_cast<int64_t>(random.Below(9)), columns = 5;
    out.layout.specs.push_back({.name = name, .dtype = dtype, .shape = {rows, columns}});
    std::vector<int64_t>& begins = out.layout.begins.emplace_back();
    for (int rank = 1; rank < world; ++rank)
      begins.push_back(static_cast<int64_t>(random.Below(rows * columns + 1)));
    begins.push_back(0), begins.push_back(rows * columns);
    std::sort(begins.begin(), begins.end());
  }
  out.whole = *TensorSet::Create(out.layout.specs);
  for (size_t i = 0; i < out.whole.size(); ++i) {
    const size_t bytes = static_cast<size_t>(out.whole.elements(i)) * DTypeBytes(dtype);
    for (std::byte& byte : absl::MakeSpan(out.whole.data(i), bytes))
      byte = static_cast<std::byte>(random.Below(256));
  }
  return out;
}

ShardSnapshot SnapshotOf(const Parted& parted, int rank) {
  ShardSnapshot out;
  static_cast<PartedTensors&>(out) = parted.layout;
  std::vector<Snapshot::Live> live;
  for (size_t i = 0; i < out.specs.size(); ++i) {
    const int64_t first = out.begins[i][rank], count = out.begins[i][rank + 1] - first;
    live.push_back(
        {out.specs[i],
         parted.whole.data(i) + first * static_cast<int64_t>(DTypeBytes(out.specs[i].dtype)),
         count});
  }
  out.part = std::make_shared<Snapshot>(std::move(live));
  return out;
}

// Ranks that hold parts of tensors, in this process. `folders` are those in which each rank sees
// the checkpoints; rank 0's is the store's.
class Ranks {
 public:
  Ranks(const Parted& parted, const std::vector<std::string>& folders) : parted_(parted) {
    const int world = static_cast<int>(folders.size());
    std::vector<std::shared_ptr<Collective>> groups(world);
    std::vector<std::thread> joins;
    for (int rank = 0; rank < world; ++rank) {
      joins.emplace_back([&, rank] {
        absl::StatusOr<std::unique_ptr<Collective>> joined =
            JoinC10d({.rank = rank, .world = world, .timeout = absl::Seconds(60)}, &rendezvous_);
        ASSERT_TRUE(joined.ok()) << joined.status();
        groups[rank] = *std::move(joined);
      });
    }
    for (std::thread& join : joins) join.join();
    reader_.emplace(groups[0]);
    for (int rank = 1; rank < world; ++rank) {
      servers_.push_back(std::make_unique<ShardServer>(groups[rank], rank));
      if (!folders[rank].empty()) servers_.back()->SetFolder(folders[rank]);
    }
  }

  std::shared_ptr<const TensorSource> TakeSnapshot() {
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (servers_[i] != nullptr) servers_[i]->Add(SnapshotOf(parted_, static_cast<int>(i) + 1));
    }
    return reader_->Open(SnapshotOf(parted_, 0));
  }
  void Lose(int rank) { servers_[static_cast<size_t>(rank) - 1].reset(); }

 private:
  const Parted& parted_;
  LocalRendezvous rendezvous_;
  std::optional<ShardReader> reader_;
  std::vector<std::unique_ptr<ShardServer>> servers_;
};

class PartsTest : public ::testing::Test {
 protected:
  CheckpointStore Store() {
    return CheckpointStore({.dir = dir_,
                            .job = kJob,
                            .source = model_,
                            .keep_last = 9,
                            .max_shard_bytes = max_shard_bytes_});
  }
  std::vector<std::string> Folders(int world) { return std::vector<std::string>(world, dir_); }

  absl::StatusOr<std::string> Write(CheckpointStore& store, Ranks& ranks, int64_t number) {
    CheckpointContents contents;
    contents.model = std::make_shared<SetSource>(&weights_);
    contents.optimizer = ranks.TakeSnapshot();
    contents.state = {.job = kJob, .version = {1, number}, .updates = number};
    contents.state.ledger_hash = FirstLedgerHash();
    for (int64_t k = 0; k < number; ++k) {
      Id16 id;
      id.bytes[15] = static_cast<uint8_t>(k + 1);
      const LineageEntry entry{k, id, 0, 1, 7, {}, ""};
      contents.state.ledger_hash =
          NextLedgerHash(contents.state.ledger_hash, k, CanonicalBytes({entry}));
      contents.lineage_tail += LineageLine(entry);
    }
    contents.cursor = "cursor";
    return store.Write(std::move(contents));
  }
  absl::StatusOr<std::string> Write(Ranks& ranks, int64_t number) {
    CheckpointStore store = Store();
    return Write(store, ranks, number);
  }

  int64_t Newest(std::vector<std::string>* damaged = nullptr) {
    const auto found = Store().ReadNewest(damaged);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && found->has_value() ? (*found)->state.version.number : -1;
  }

  const std::string dir_ = FreshDir();
  const ModelDir model_ = TinyModelDir();
  const TensorSet weights_ = *InitWeights(model_.config, 3);
  int64_t max_shard_bytes_ = kMaxShardBytes;
};

TEST_F(PartsTest, WhatEachRankWritesMakesTheWholeTensors) {
  for (uint64_t seed = 0; seed < 9; ++seed) {
    const int world = 2 + static_cast<int>(seed % 3);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", world, " ranks"));
    const Parted parted = RandomParts(seed, world, seed % 2 == 0 ? DType::kF32 : DType::kBF16);
    max_shard_bytes_ = seed < 3 ? kMaxShardBytes : 40;
    Ranks ranks(parted, Folders(world));
    CheckpointStore store = Store();
    const absl::StatusOr<std::string> path = Write(store, ranks, static_cast<int64_t>(seed) + 1);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(store.writers().ranks, world);

    const Checkpoint read = *ReadCheckpoint(*path);
    EXPECT_EQ(ReadAll(*read.optimizer)->buffer(), parted.whole.buffer());
    EXPECT_EQ(read.model.buffer(), weights_.buffer());
    EXPECT_EQ(nlohmann::json::parse(*ReadFile(*path + "/state.json"))["format"], 5);
    EXPECT_FALSE(PathExists(*path + "/optimizer.safetensors"));
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_TRUE(
          PathExists(absl::StrCat(*path, "/optimizer-rank", rank, ".safetensors")) ||
          PathExists(absl::StrCat(*path, "/optimizer-rank", rank, ".safetensors.index.json")));
    }
    // Nothing but the files that state.json lists.
    const nlohmann::json state = nlohmann::json::parse(*ReadFile(*path + "/state.json"));
    EXPECT_THAT(*ListDir(*path), SizeIs(state["files"].size() + 1));

    // In pieces that lie across the parts.
    for (size_t i = 0; i < parted.layout.specs.size(); ++i) {
      const int64_t size = static_cast<int64_t>(DTypeBytes(parted.layout.specs[i].dtype)),
                    elements = parted.whole.elements(i);
      for (int64_t first = 0; first < elements; first += 3) {
        const int64_t count = std::min<int64_t>(7, elements - first);
        std::vector<std::byte> piece(static_cast<size_t>(count * size));
        ASSERT_TRUE(read.optimizer->Read(i, first, count, piece.data()).ok());
        EXPECT_TRUE(std::equal(piece.begin(), piece.end(), parted.whole.data(i) + first * size));
      }
    }
  }
}

// A model that transformers loads has no parts.
TEST_F(PartsTest, ACopyOfTheModelHasNoFilesOfRanks) {
  const Parted parted = RandomParts(1, 2, DType::kF32);
  Ranks ranks(parted, Folders(2));
  const std::string path = *Write(ranks, 1), copy = FreshDir();
  ASSERT_EQ(CopyCheckpointModel(path, copy), absl::OkStatus());
  const std::vector<std::string> names = *ListDir(copy);
  for (const std::string& name : names) EXPECT_FALSE(absl::StartsWith(name, "optimizer")) << name;
  EXPECT_EQ(ReadWeights(*ReadModelDir(path), DType::kF32)->buffer(), weights_.buffer());
}

TEST_F(PartsTest, AFlippedBitInAnyFileIsFoundAndNamed) {
  const Parted parted = RandomParts(2, 3, DType::kF32);
  max_shard_bytes_ = 64;
  Ranks ranks(parted, Folders(3));
  ASSERT_TRUE(Write(ranks, 1).ok());
  const std::string path = *Write(ranks, 2);
  const auto flip = [](const std::string& file) {
    std::string bytes = *ReadFile(file);
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomic(file, bytes).ok());
  };
  int files = 0;
  const std::vector<std::string> names = *ListDir(path);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    if (absl::StartsWith(name, "optimizer")) ++files;
    flip(absl::StrCat(path, "/", name));
    std::vector<std::string> damaged;
    EXPECT_EQ(Newest(&damaged), 1);
    ASSERT_THAT(damaged, SizeIs(1));
    EXPECT_THAT(damaged[0], HasSubstr(name));
    flip(absl::StrCat(path, "/", name));
    EXPECT_EQ(Newest(), 2);
  }
  EXPECT_GE(files, 7);  // The index of all, and for each rank an index and files.
}

TEST_F(PartsTest, AnIndexThatDoesNotFitTheFilesIsRefused) {
  const Parted parted = RandomParts(3, 2, DType::kF32);
  Ranks ranks(parted, Folders(2));
  const std::string path = *Write(ranks, 1), index = path + "/optimizer.parts.json";
  const nlohmann::json good = nlohmann::json::parse(*ReadFile(index));
  const auto opens = [&](const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json json = good;
    edit(json);
    EXPECT_TRUE(WriteFileAtomic(index, json.dump()).ok());
    return OpenTensors(path, "optimizer").status();
  };
  EXPECT_TRUE(opens([](nlohmann::json&) {}).ok());
  for (const auto& edit : std::vector<std::function<void(nlohmann::json&)>>{
           [](nlohmann::json& json) { json["tensors"][0]["begins"] = {0, 1}; },
           [](nlohmann::json& json) { json["tensors"][0]["begins"][1] = -1; },
           [](nlohmann::json& json) { json["tensors"][0]["shape"] = {99, 99}; },
           [](nlohmann::json& json) { json["tensors"][0]["dtype"] = "BF16"; },
           [](nlohmann::json& json) { json["tensors"].erase(0); },
           [](nlohmann::json& json) { std::swap(json["tensors"][0], json["tensors"][1]); },
           [](nlohmann::json& json) { json.erase("ranks"); },
           [](nlohmann::json& json) { json = nlohmann::json::array(); }}) {
    const absl::Status status = opens(edit);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(index));
  }
}

TEST_F(PartsTest, ARankThatSeesAnotherFolderLeavesTheWritingToRank0) {
  const Parted parted = RandomParts(4, 3, DType::kF32);
  for (const std::string& other : {FreshDir(), std::string("/nonexistent"), std::string()}) {
    std::vector<std::string> folders = Folders(3);
    folders[2] = other;
    Ranks ranks(parted, folders);
    CheckpointStore store = Store();
    const absl::StatusOr<std::string> path = Write(store, ranks, 1);
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(store.writers().ranks, 1);
    EXPECT_THAT(store.writers().why, HasSubstr("rank 2"));
    EXPECT_EQ(nlohmann::json::parse(*ReadFile(*path + "/state.json"))["format"], 2);
    EXPECT_EQ(ReadAll(*ReadCheckpoint(*path)->optimizer)->buffer(), parted.whole.buffer());
    EXPECT_TRUE(PathExists(*path + "/optimizer.safetensors"));
    EXPECT_FALSE(PathExists(*path + "/.nonce"));
  }
}

// A folder of the same name on another disk, in which an earlier probe has left its word.
TEST_F(PartsTest, AFolderOfTheSameNameIsNotTheSameFolder) {
  const Parted parted = RandomParts(5, 2, DType::kF32);
  const std::string other = FreshDir();
  ASSERT_TRUE(MakeDirs(other + "/.step-1.1.tmp").ok());
  ASSERT_TRUE(WriteFileAtomic(other + "/.step-1.1.tmp/.nonce", std::string(32, '0')).ok());
  Ranks ranks(parted, {dir_, other});
  CheckpointStore store = Store();
  ASSERT_TRUE(Write(store, ranks, 1).ok());
  EXPECT_EQ(store.writers().ranks, 1);
  EXPECT_THAT(store.writers().why, HasSubstr("is another folder here"));
}

TEST_F(PartsTest, ARankThatIsGoneLeavesTheOldCheckpointNewest) {
  const Parted parted = RandomParts(6, 3, DType::kF32);
  Ranks ranks(parted, Folders(3));
  ASSERT_TRUE(Write(ranks, 1).ok());
  ranks.Lose(2);
  EXPECT_FALSE(Write(ranks, 2).ok());
  EXPECT_EQ(Newest(), 1);
  ASSERT_TRUE(Store().Prepare().ok());
  EXPECT_THAT(*ListDir(dir_), testing::ElementsAre("step-1"));
}

#ifdef SLUICE_FAILPOINTS
// Each place at which the writing may end, and how often it is hit there before it does.
std::vector<std::pair<std::string, int>> Ends() {
  std::vector<std::pair<std::string, int>> out = {{"trainer.checkpoint.before_index", 1},
                                                  {"trainer.checkpoint.before_rename", 1}};
  for (int hit = 1; hit <= 3; ++hit) {  // Of any of the three ranks.
    out.push_back({"trainer.checkpoint.part.before", hit});
    out.push_back({"trainer.checkpoint.part.after", hit});
    out.push_back({"trainer.checkpoint.part.piece", 3 * hit});
  }
  return out;
}

TEST_F(PartsTest, AnErrorOfAnyRankLeavesTheOldCheckpointNewestAndTheGroupWhole) {
  const Parted parted = RandomParts(7, 3, DType::kF32);
  Ranks ranks(parted, Folders(3));
  ASSERT_TRUE(Write(ranks, 1).ok());
  for (const auto& [name, hit] : Ends()) {
    SCOPED_TRACE(absl::StrCat(name, " ", hit));
    ASSERT_TRUE(ArmFailpoint(name, "error", hit).ok());
    EXPECT_FALSE(Write(ranks, 2).ok());
    EXPECT_EQ(Newest(), 1);
  }
  ASSERT_TRUE(Store().Prepare().ok());
  EXPECT_THAT(*ListDir(dir_), testing::ElementsAre("step-1"));
  ASSERT_TRUE(Write(ranks, 2).ok());
  EXPECT_EQ(Newest(), 2);
}

TEST_F(PartsTest, AKillAtAnyPlaceLeavesTheOldCheckpointNewest) {
  const Parted parted = RandomParts(8, 3, DType::kF32);
  for (const auto& [name, hit] : Ends()) {
    SCOPED_TRACE(absl::StrCat(name, " ", hit));
    const pid_t child = ::fork();
    if (child == 0) {
      Ranks ranks(parted, Folders(3));
      (void)Write(ranks, 1);
      (void)ArmFailpoint(name, "kill", hit);
      (void)Write(ranks, 2);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_EQ(Newest(), 1);
    ASSERT_TRUE(Store().Prepare().ok());
    EXPECT_THAT(*ListDir(dir_), testing::ElementsAre("step-1"));
  }
}
#endif

}  // namespace
}  // namespace sluice::trainer
