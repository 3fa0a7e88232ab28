#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "common/base/file.h"
#include "tests/integration/queue_scene.h"

// `sluice queue fsck` on the data directory of a queue that was killed, whole and damaged.
namespace sluice::integration {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class QueueFsckTest : public QueueScene {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(QueueScene::SetUp());
    spec_.mutable_queue()->mutable_keep()->set_durability("full");
    SetUpJob();
    const queue::v1::AdmitResponse admitted = Admit();
    ASSERT_EQ(admitted.grants_size(), 2);
    WriteAndSeal(admitted.grants(0));
  }

  std::string DataDir() const { return cluster_.dir() + "/queue-0"; }
  // The files of the job's log whose names begin with `prefix`.
  std::vector<std::string> Files(const std::string& prefix) {
    const std::string dir = DataDir() + "/jobs/" + job_;
    std::vector<std::string> paths;
    const auto names = ListDir(dir);
    EXPECT_TRUE(names.ok()) << names.status();
    for (const std::string& name : names.value_or(std::vector<std::string>())) {
      if (absl::StartsWith(name, prefix)) paths.push_back(dir + "/" + name);
    }
    return paths;
  }

  Finished Fsck(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"queue", "fsck", DataDir()};
    args.insert(args.end(), more.begin(), more.end());
    const auto said = cluster_.Sluice(args);
    EXPECT_EQ(said.status(), absl::OkStatus());
    return said.value_or(Finished());
  }

  json FsckJson() {
    return json::parse(Fsck({"-o", "json"}).out, nullptr, /*allow_exceptions=*/false);
  }
};

TEST_F(QueueFsckTest, ARunningQueueKeepsItsDirectoryAKilledOneLeavesItWhole) {
  const Finished running = Fsck();
  EXPECT_EQ(running.exit, 8) << running.err;
  EXPECT_THAT(running.err, HasSubstr(DataDir()));

  ASSERT_EQ(cluster_.Kill("queue-0"), absl::OkStatus());
  const Finished whole = Fsck();
  EXPECT_EQ(whole.exit, 0) << whole.out << whole.err;
  EXPECT_THAT(whole.out, HasSubstr(job_));
  EXPECT_THAT(whole.out, HasSubstr("balanced"));

  const json report = FsckJson();
  EXPECT_TRUE(report["ok"].get<bool>()) << report.dump(2);
  EXPECT_EQ(report["jobs"][0]["groups"], 2);
  EXPECT_EQ(report["jobs"][0]["ledger"]["accepted"], 4);
}

TEST_F(QueueFsckTest, AFlippedBitIsNamedByFileAndOffsetAndTheBytesStayAsTheyAre) {
  ASSERT_EQ(cluster_.Kill("queue-0"), absl::OkStatus());
  const json before = FsckJson();
  const std::string path = before["jobs"][0]["end_file"];
  const uint64_t end = before["jobs"][0]["end_offset"];
  const std::string whole = *ReadFile(path);
  for (const uint64_t at : {uint64_t{9}, end / 4, end / 2}) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    ASSERT_EQ(WriteFileAtomic(path, bytes), absl::OkStatus());

    const Finished said = Fsck();
    EXPECT_EQ(said.exit, 1) << said.out << said.err;
    EXPECT_THAT(said.out, HasSubstr("DAMAGED")) << at;
    EXPECT_THAT(said.out, HasSubstr("damage: " + path + " at offset ")) << at;
    EXPECT_THAT(said.out, HasSubstr("you could: ")) << at;

    const json report = FsckJson();
    EXPECT_EQ(report["jobs"][0]["error"]["reason"], "BAD_CRC") << report.dump(2);
    EXPECT_LE(report["jobs"][0]["end_offset"].get<uint64_t>(), at);
    EXPECT_EQ(*ReadFile(path), bytes);
  }

  ASSERT_EQ(WriteFileAtomic(path, whole), absl::OkStatus());
  EXPECT_EQ(Fsck().exit, 0);
}

TEST_F(QueueFsckTest, AMissingFileIsNamed) {
  ASSERT_TRUE(cluster_.Terminate("queue-0", absl::Seconds(30)).ok());  // Leaves a snapshot.
  for (const std::string& path : Files("log-")) ASSERT_EQ(RemoveTree(path), absl::OkStatus());

  const Finished said = Fsck();
  EXPECT_EQ(said.exit, 1) << said.out << said.err;
  EXPECT_THAT(said.out,
              HasSubstr("damage: " + DataDir() + "/jobs/" + job_ + " has a snapshot at position "));
  EXPECT_THAT(said.out, HasSubstr("no segment"));
}

TEST_F(QueueFsckTest, AnotherFolderIsNoDataDirectory) {
  const auto said = cluster_.Sluice({"queue", "fsck", cluster_.dir()});
  ASSERT_EQ(said.status(), absl::OkStatus());
  EXPECT_EQ(said->exit, 5) << said->err;
  EXPECT_THAT(said->err, HasSubstr("--data-dir"));
}

}  // namespace
}  // namespace sluice::integration
