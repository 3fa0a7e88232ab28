// The folder of weights: what a reader finds there, whatever moment the writer dies at and whatever
// the disk does to its files.
#include "common/weights/weight_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/convert.h"
#include "common/testing/data.h"
#include "common/weights/weight_mirror.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr char kFolderJob[] = "00112233445566778899aabbccddeeff";

TensorSet FolderWeights(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {3000}}});
  SplitMix64 random(seed);
  for (float& x : set.as<float>(0)) x = static_cast<float>(random.Uniform());
  return set;
}

class WeightFolderTest : public testing::Test {
 protected:
  // A publisher that keeps two versions, each of several chunks.
  static WeightPublisher MakePublisher() {
    return WeightPublisher({.job = kFolderJob, .retain_versions = 2, .chunk_target_bytes = 4096},
                           Clock::Real());
  }
  WeightFolderWriter MakeWriter(int64_t incarnation) const {
    return WeightFolderWriter(folder_, kFolderJob, incarnation);
  }

  // The version that is the newest. Checks that all that is listed is there, and right.
  std::optional<PolicyVersion> ReadAll() const {
    const auto contents = ReadWeightFolder(folder_, kFolderJob);
    if (absl::IsNotFound(contents.status())) return std::nullopt;
    EXPECT_EQ(contents.status(), absl::OkStatus());
    if (!contents.ok()) return std::nullopt;
    bool has_latest = false;
    for (const weights::v1::VersionNode& node : contents->nodes()) {
      has_latest |= node.manifest() == contents->latest().manifest();
      const std::string bytes = ReadObject(node.version().incarnation(), node.manifest());
      weights::v1::Manifest manifest;
      EXPECT_TRUE(manifest.ParseFromString(bytes));
      for (const weights::v1::Chunk& chunk : manifest.chunks())
        ReadObject(node.version().incarnation(), chunk.sha256());
    }
    EXPECT_TRUE(has_latest);
    return rpc::FromProto(contents->latest().version());
  }
  std::string ReadObject(int64_t incarnation, const std::string& id) const {
    const auto bytes = ReadFile(WeightObjectPath(folder_, incarnation, id));
    EXPECT_EQ(bytes.status(), absl::OkStatus());
    if (!bytes.ok()) return "";
    EXPECT_EQ(Sha256(*bytes), id);
    return *bytes;
  }
  size_t CountObjects(int64_t incarnation) const {
    return ListDir(absl::StrCat(folder_, "/", incarnation, "/objects"))->size();
  }

  const std::string folder_ =
      testing_data::TempPath("folder-" + ToHex(RandomId16())) + "/digits-00112233";
};

TEST_F(WeightFolderTest, ItHasWhatThePublisherKeepsAndNothingElse) {
  WeightPublisher publisher = MakePublisher();
  WeightFolderWriter writer = MakeWriter(1);
  EXPECT_EQ(ReadAll(), std::nullopt);
  for (int64_t v = 0; v < 6; ++v) {
    ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
    const auto kept = publisher.TakeSnapshot();
    ASSERT_EQ(writer.Write(*kept), absl::OkStatus());
    EXPECT_EQ(ReadAll(), (PolicyVersion{1, v}));
    EXPECT_EQ(CountObjects(1), kept->objects.size());
    EXPECT_EQ(ReadWeightFolder(folder_, kFolderJob)->nodes_size(),
              static_cast<int>(kept->edges.size()));
  }
}

// Each hit of each failpoint is one moment at which the writer may die: it does nothing after that.
TEST_F(WeightFolderTest, W05WhateverMomentTheWriterDiesAtTheOldVersionOrTheNewOneIsWholeThere) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";
  int deaths = 0;
  for (const char* point : {"weights.dir.object", "weights.dir.latest", "weights.dir.free"}) {
    for (int nth = 1; nth < 100; ++nth) {
      SCOPED_TRACE(absl::StrCat(point, " ", nth));
      (void)RemoveTree(folder_);
      WeightPublisher publisher = MakePublisher();
      WeightFolderWriter writer = MakeWriter(1);
      ASSERT_EQ(ArmFailpoint(point, "error", nth), absl::OkStatus());
      std::optional<PolicyVersion> written;
      absl::Status status;
      for (int64_t v = 0; v < 4 && status.ok(); ++v) {
        ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
        status = writer.Write(*publisher.TakeSnapshot());
        if (status.ok()) written = PolicyVersion{1, v};
      }
      (void)ArmFailpoint(point, "", 1);
      const std::optional<PolicyVersion> found = ReadAll();
      if (status.ok()) break;  // It has fewer hits.
      ++deaths;
      const PolicyVersion next = {1, written.has_value() ? written->number + 1 : 0};
      EXPECT_TRUE(found == written || found == next);

      // The trainer comes back, as another incarnation, and removes what the first one left.
      WeightPublisher second = MakePublisher();
      ASSERT_TRUE(second.Publish(FolderWeights(9), {2, 0}, "").ok());
      ASSERT_EQ(MakeWriter(2).Write(*second.TakeSnapshot()), absl::OkStatus());
      EXPECT_EQ(ReadAll(), (PolicyVersion{2, 0}));
      EXPECT_EQ(ListDir(folder_)->size(), 1u);
    }
  }
  EXPECT_GT(deaths, 20);
}

TEST_F(WeightFolderTest, AWriterThatFailedGoesOnWithTheNextVersionAndLeavesNothingBehind) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";
  WeightPublisher publisher = MakePublisher();
  WeightFolderWriter writer = MakeWriter(1);
  for (int64_t v = 0; v < 12; ++v) {
    ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
    const char* const action = v % 3 == 2 ? "" : "error";
    ASSERT_EQ(ArmFailpoint("weights.dir.object", action, static_cast<int>(1 + v % 3)),
              absl::OkStatus());
    EXPECT_EQ(writer.Write(*publisher.TakeSnapshot()).ok(), v % 3 == 2) << v;
  }
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 11}));
  EXPECT_EQ(CountObjects(1), publisher.TakeSnapshot()->objects.size());
}

TEST_F(WeightFolderTest, W07ATrainerThatWasReplacedNeitherLowersTheNewestNorRemovesWhatItNeeds) {
  WeightPublisher old_one = MakePublisher(), new_one = MakePublisher();
  WeightFolderWriter old_writer = MakeWriter(1), new_writer = MakeWriter(2);
  ASSERT_TRUE(old_one.Publish(FolderWeights(1), {1, 50}, "").ok());
  ASSERT_EQ(old_writer.Write(*old_one.TakeSnapshot()), absl::OkStatus());
  ASSERT_TRUE(new_one.Publish(FolderWeights(2), {2, 40}, "").ok());
  ASSERT_EQ(new_writer.Write(*new_one.TakeSnapshot()), absl::OkStatus());

  ASSERT_TRUE(old_one.Publish(FolderWeights(3), {1, 51}, "").ok());
  EXPECT_EQ(ReasonOf(old_writer.Write(*old_one.TakeSnapshot())), "FENCED");
  EXPECT_EQ(ReadAll(), (PolicyVersion{2, 40}));
}

TEST_F(WeightFolderTest, W12ALowerVersionOfTheSameTrainerIsRefused) {
  WeightPublisher publisher = MakePublisher();
  WeightFolderWriter writer = MakeWriter(1);
  ASSERT_TRUE(publisher.Publish(FolderWeights(1), {1, 5}, "").ok());
  const auto before = publisher.TakeSnapshot();
  ASSERT_TRUE(publisher.Publish(FolderWeights(2), {1, 6}, "").ok());
  ASSERT_EQ(writer.Write(*publisher.TakeSnapshot()), absl::OkStatus());
  EXPECT_EQ(ReasonOf(writer.Write(*before)), "LOST_RACE");
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 6}));
}

// A new trainer that has not published yet does not hide what the one before it left.
TEST_F(WeightFolderTest, WhatTheLastTrainerWroteCountsUntilTheNextOneHasPublished) {
  WeightPublisher publisher = MakePublisher();
  ASSERT_TRUE(publisher.Publish(FolderWeights(1), {1, 5}, "").ok());
  ASSERT_EQ(MakeWriter(1).Write(*publisher.TakeSnapshot()), absl::OkStatus());
  ASSERT_EQ(MakeDirs(folder_ + "/2/objects"), absl::OkStatus());
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 5}));
}

TEST_F(WeightFolderTest, ALatestThatIsCutShortOrFlippedOrOfAnotherJobIsNotBelieved) {
  WeightPublisher publisher = MakePublisher();
  ASSERT_TRUE(publisher.Publish(FolderWeights(1), {1, 5}, "").ok());
  ASSERT_EQ(MakeWriter(1).Write(*publisher.TakeSnapshot()), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(ReadWeightFolder(folder_, std::string(32, 'f')).status()));

  const std::string path = folder_ + "/1/latest", right = *ReadFile(path);
  for (size_t at = 0; at < right.size(); at += 7) {
    std::string flipped = right;
    flipped[at] ^= 1;
    for (const std::string& wrong : {flipped, right.substr(0, at)}) {
      ASSERT_EQ(WriteFileAtomic(path, wrong), absl::OkStatus());
      EXPECT_TRUE(absl::IsDataLoss(ReadWeightFolder(folder_, kFolderJob).status())) << at;
    }
  }
}

// A file stands where the folder should be, so that nothing can be written.
TEST_F(WeightFolderTest, ADiskThatTakesNothingStopsNoPublicationAndIsReportedOnce) {
  const std::string parent = std::filesystem::path(folder_).parent_path();
  ASSERT_EQ(WriteFileAtomic(parent, "a file"), absl::OkStatus());
  std::vector<absl::Status> reports;
  auto mirror = std::make_unique<WeightMirror>(
      WeightMirror::Options{
          .retry = absl::Hours(1),
          .on_change = [&](const absl::Status& status) { reports.push_back(status); }},
      MakeWriter(1));
  WeightPublisher* source = nullptr;
  WeightPublisher publisher({.job = kFolderJob, .on_stored = [&] { mirror->Write(*source); }},
                            Clock::Real());
  source = &publisher;
  for (int64_t v = 0; v < 3; ++v)
    ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
  EXPECT_EQ(publisher.latest()->version.number, 2);
  ASSERT_EQ(RemoveTree(parent), absl::OkStatus());
  mirror.reset();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_FALSE(reports[0].ok());
  EXPECT_EQ(reports[1], absl::OkStatus()) << "the newest version is tried again at the end";
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 2}));
}

TEST_F(WeightFolderTest, AVersionThatTheDiskRefusedIsWrittenAsSoonAsTheDiskTakesIt) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";
  absl::Notification caught_up;
  WeightMirror mirror({.retry = absl::Milliseconds(1),
                       .on_change =
                           [&](const absl::Status& status) {
                             if (status.ok()) caught_up.Notify();
                           }},
                      MakeWriter(1));
  WeightPublisher publisher = MakePublisher();
  ASSERT_EQ(ArmFailpoint("weights.dir.latest", "error", 1), absl::OkStatus());
  ASSERT_TRUE(publisher.Publish(FolderWeights(0), {1, 0}, "").ok());
  mirror.Write(publisher);
  caught_up.WaitForNotification();
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 0}));
}

// The version is in the folder when it is announced.
TEST_F(WeightFolderTest, AVersionIsAnnouncedWhenItIsInTheFolder) {
  WeightMirror mirror({}, MakeWriter(1));
  WeightPublisher* source = nullptr;
  WeightPublisher publisher({.job = kFolderJob, .on_stored = [&] { mirror.Write(*source); }},
                            Clock::Real());
  source = &publisher;
  std::vector<std::optional<PolicyVersion>> found;
  publisher.AddListener("rollout-0", [&](const Announcement&) { found.push_back(ReadAll()); });
  for (int64_t v = 0; v < 3; ++v)
    ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
  EXPECT_THAT(found,
              testing::ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 1}, PolicyVersion{1, 2}));
}

TEST_F(WeightFolderTest, AVersionOnTrialIsInTheFolderOnceItIsPromoted) {
  WeightMirror mirror({}, MakeWriter(1));
  WeightPublisher* source = nullptr;
  WeightPublisher publisher({.job = kFolderJob, .on_stored = [&] { mirror.Write(*source); }},
                            Clock::Real());
  source = &publisher;
  ASSERT_TRUE(publisher.Publish(FolderWeights(0), {1, 0}, "").ok());
  const auto staged = publisher.Stage(FolderWeights(1), {1, 1});
  ASSERT_TRUE(staged.ok()) << staged.status();
  publisher.Try(*staged, "rollout-0");
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 0}));
  publisher.Promote(*staged);
  EXPECT_EQ(ReadAll(), (PolicyVersion{1, 1}));
}

TEST_F(WeightFolderTest, ADiskThatHangsHoldsUpOneVersionForItsPatienceAndTheNextNotAtAll) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";
  std::vector<absl::Status> reports;
  WeightMirror mirror({.patience = absl::Milliseconds(50),
                       .on_change = [&](const absl::Status& status) { reports.push_back(status); }},
                      MakeWriter(1));
  WeightPublisher publisher = MakePublisher();
  ASSERT_EQ(ArmFailpoint("weights.dir.latest", "hang", 1), absl::OkStatus());
  for (int64_t v = 0; v < 100; ++v) {  // Would take 5 s if each waited.
    ASSERT_TRUE(publisher.Publish(FolderWeights(static_cast<uint64_t>(v)), {1, v}, "").ok());
    mirror.Write(publisher);
  }
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(reports[0])) << reports[0];
}

}  // namespace
}  // namespace sluice
