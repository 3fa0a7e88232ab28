#include "services/trainer/core/forks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/testing/data.h"

namespace sluice::trainer {
namespace {

class ForksTest : public testing::Test {
 protected:
  ForksTest() { EXPECT_EQ(MakeDirs(dir_), absl::OkStatus()); }
  ~ForksTest() override { (void)RemoveTree(dir_); }

  const std::string dir_ = testing_data::TempPath("forks");
};

TEST_F(ForksTest, WithoutAFileAllVersionsLieOnTheBranch) {
  const absl::StatusOr<Forks> forks = Forks::Read(dir_);
  ASSERT_EQ(forks.status(), absl::OkStatus());
  EXPECT_TRUE(forks->Holds({1, 1000}));
}

TEST_F(ForksTest, LaterVersionsOfEarlierIncarnationsLieOnNoBranchAlsoAfterARestart) {
  Forks forks = *Forks::Read(dir_);
  const Fork first{
      .incarnation = 1, .version = 10, .withdrawn = {1, 12}, .cause = "\"not\" finite"};
  const Fork second{.incarnation = 3, .version = 14, .withdrawn = {3, 15}, .cause = "by hand"};
  ASSERT_EQ(forks.Add(first), absl::OkStatus());
  ASSERT_EQ(forks.Add(second), absl::OkStatus());

  const Forks again = *Forks::Read(dir_);
  EXPECT_THAT(again.all(), testing::ElementsAre(first, second));
  EXPECT_TRUE(again.Holds({1, 10}));
  EXPECT_FALSE(again.Holds({1, 11}));
  EXPECT_TRUE(again.Holds({2, 14}));
  EXPECT_FALSE(again.Holds({2, 15}));
  EXPECT_FALSE(again.Holds({3, 15}));
  EXPECT_TRUE(again.Holds({4, 15}));
}

TEST_F(ForksTest, AFileThatCannotBeReadIsNotTakenForNone) {
  for (const char* text : {"", "{", "[{\"incarnation\": 1}]", "[1]"}) {
    ASSERT_EQ(WriteFileAtomic(dir_ + "/forks.json", text), absl::OkStatus());
    const absl::Status status = Forks::Read(dir_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << text << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("forks.json"));
  }
}

}  // namespace
}  // namespace sluice::trainer
