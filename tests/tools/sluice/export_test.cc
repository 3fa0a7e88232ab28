#include "tools/sluice/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/file.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() : dir_(::testing::TempDir() + "/export-" + std::to_string(getpid())) {
    for (const char* step : {"step-9", "step-10", "step-10.partial"}) EXPECT_TRUE(MakeDirs(dir_ + "/" + step).ok());
    for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors", "cursor.bin", "lineage.jsonl", "state.json"}) {
      EXPECT_TRUE(WriteFileAtomic(dir_ + "/step-10/" + file, file).ok());
    }
  }
  ~ExportTest() override { (void)RemoveTree(dir_); }
  const std::string dir_;
};

TEST_F(ExportTest, TheNewestCheckpointIsTheGreatestStep) {
  EXPECT_EQ(*NewestCheckpoint(dir_, "0123456789"), dir_ + "/step-10");
  EXPECT_EQ(NewestCheckpoint(dir_ + "/step-9", "").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ExportTest, AJobIsFoundAmongOthersByItsId) {
  ASSERT_TRUE(MakeDirs(dir_ + "/digits-01234567/step-3").ok());
  EXPECT_EQ(*NewestCheckpoint(dir_, "0123456789abcdef"), dir_ + "/digits-01234567/step-3");
}

TEST_F(ExportTest, OnlyTheModelsOwnFilesAreCopied) {
  ASSERT_TRUE(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out").ok());
  EXPECT_THAT(*ListDir(dir_ + "/out"), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(*ReadFile(dir_ + "/out/config.json"), "config.json");
  EXPECT_EQ(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out").code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace sluice::cli
