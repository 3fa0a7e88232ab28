#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/testing/data.h"

namespace sluice {
namespace {

using testing::ElementsAre;

// Each test has a new empty folder.
class WriteDirAtomicTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing_data::TempPath(testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(MakeDirs(dir_).ok());
  }

  std::vector<std::string> Names() const { return *ListDir(dir_); }

  std::string dir_;
};

TEST_F(WriteDirAtomicTest, TheFolderIsSeenOnlyWhenItIsComplete) {
  std::vector<std::string> while_filling;

  const absl::Status status =
      WriteDirAtomic(dir_ + "/model", [&](const std::string& temporary) -> absl::Status {
        SLUICE_RETURN_IF_ERROR(WriteFileAtomic(temporary + "/a", "1"));
        while_filling = Names();
        return WriteFileAtomic(temporary + "/b", "2");
      });

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(while_filling, ElementsAre(testing::StartsWith("model.tmp-")));
  EXPECT_THAT(Names(), ElementsAre("model"));
  EXPECT_EQ(*ReadFile(dir_ + "/model/b"), "2");
}

TEST_F(WriteDirAtomicTest, AfterAnErrorNothingIsLeft) {
  const absl::Status status =
      WriteDirAtomic(dir_ + "/model", [&](const std::string& temporary) -> absl::Status {
        SLUICE_RETURN_IF_ERROR(WriteFileAtomic(temporary + "/a", "1"));
        return absl::DataLossError("the weights are damaged");
      });

  EXPECT_EQ(status.message(), "the weights are damaged");
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(WriteDirAtomicTest, AFolderThatExistsIsRefusedAndKept) {
  const std::string path = dir_ + "/model";
  ASSERT_TRUE(MakeDirs(path).ok());
  ASSERT_TRUE(WriteFileAtomic(path + "/a", "1").ok());
  bool filled = false;

  const absl::Status status = WriteDirAtomic(path, [&](const std::string&) {
    filled = true;
    return absl::OkStatus();
  });

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_FALSE(filled);
  EXPECT_EQ(*ReadFile(path + "/a"), "1");
}

TEST_F(WriteDirAtomicTest, SlashesAtTheEndOfThePathChangeNothing) {
  const absl::Status status = WriteDirAtomic(dir_ + "/model//", [&](const std::string& temporary) {
    return WriteFileAtomic(temporary + "/a", "1");
  });

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(), ElementsAre("model"));
}

}  // namespace
}  // namespace sluice
