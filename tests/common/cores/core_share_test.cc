#include "common/cores/core_share.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>

#include "common/base/file.h"

namespace sluice {
namespace {

constexpr bool kBusy = true, kWaits = false, kFixed = true, kShares = false;

TEST(ThreadsNow, WhoWaitsLendsItsCoresToWhoIsBusy) {
  EXPECT_EQ(ThreadsNow(2, {{1, kShares, kBusy}, {1, kShares, kBusy}}, 0), 1);
  EXPECT_EQ(ThreadsNow(2, {{1, kShares, kBusy}, {1, kShares, kWaits}}, 0), 2);
  EXPECT_EQ(ThreadsNow(2, {{1, kShares, kWaits}, {1, kShares, kBusy}}, 1), 2);
}

TEST(ThreadsNow, SeveralBorrowersDivideWhatIsFree) {
  const std::vector<CoreUser> users = {
      {4, kShares, kBusy}, {4, kShares, kBusy}, {9, kShares, kWaits}};
  EXPECT_EQ(ThreadsNow(17, users, 0), 4 + 5);
  EXPECT_EQ(ThreadsNow(17, users, 1), 4 + 4);
}

TEST(ThreadsNow, FixedThreadsLendAndDoNotBorrow) {
  const std::vector<CoreUser> users = {
      {2, kFixed, kBusy}, {1, kShares, kBusy}, {3, kFixed, kWaits}};
  EXPECT_EQ(ThreadsNow(8, users, 0), 2);
  EXPECT_EQ(ThreadsNow(8, users, 1), 1 + 5);
}

TEST(ThreadsNow, EachHasItsOwnThreadsOnTooFewCores) {
  EXPECT_EQ(ThreadsNow(2, {{1, kShares, kBusy}, {1, kShares, kBusy}, {1, kShares, kBusy}}, 2), 1);
  EXPECT_EQ(ThreadsNow(2, {{8, kFixed, kBusy}, {1, kShares, kBusy}}, 1), 1);
}

class CoreShareTest : public ::testing::Test {
 protected:
  CoreShareTest() : path_(::testing::TempDir() + "/cores-" + std::to_string(getpid())) {
    EXPECT_TRUE(WriteCorePlan(path_, {4, {{"rollout-0", 2}, {"trainer-0", 2}}}).ok());
  }
  ~CoreShareTest() override { unlink(path_.c_str()); }

  const std::string path_;
};

TEST_F(CoreShareTest, CoresMoveToWhoComputes) {
  const auto rollout = *CoreShare::Open(path_, "rollout-0"),
             trainer = *CoreShare::Open(path_, "trainer-0");
  const CoreShare::Busy sampling(rollout.get());
  EXPECT_EQ(rollout->threads(), 4);

  {
    const CoreShare::Busy training(trainer.get());
    EXPECT_EQ(rollout->threads(), 2);
    EXPECT_EQ(trainer->threads(), 2);
  }

  EXPECT_EQ(rollout->threads(), 4);
}

TEST_F(CoreShareTest, PartsOfOneDaemonDivideItsCores) {
  const auto rollout = *CoreShare::Open(path_, "rollout-0");
  const CoreShare::Busy one(rollout.get()), two(rollout.get());
  EXPECT_EQ(rollout->threads(), 2);
}

TEST_F(CoreShareTest, ADaemonThatDiedBusyIsNotBusyWhenItStartsAgain) {
  const auto trainer = *CoreShare::Open(path_, "trainer-0");
  auto died = *CoreShare::Open(path_, "rollout-0");
  // Stays alive until the end of the test, as if its process had been killed while it was busy.
  auto* const busy = new CoreShare::Busy(died.get());
  const CoreShare::Busy training(trainer.get());
  ASSERT_EQ(trainer->threads(), 2);

  const auto again = *CoreShare::Open(path_, "rollout-0");
  EXPECT_EQ(trainer->threads(), 4);

  delete busy;
}

TEST_F(CoreShareTest, WhatIsNoPlanIsRefused) {
  EXPECT_EQ(CoreShare::Open(path_, "reward-0").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CoreShare::Open(path_ + "-none", "rollout-0").status().code(),
            absl::StatusCode::kNotFound);

  const std::string plan = *ReadFile(path_);
  for (const std::string& bytes :
       {std::string("rollout 2"), std::string(plan.size(), 'x'), std::string(plan.size(), '\0')}) {
    ASSERT_TRUE(WriteFileAtomic(path_, bytes).ok());
    EXPECT_EQ(CoreShare::Open(path_, "rollout-0").status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(CoreShareTest, ANumberOfMembersThatIsOverwrittenLaterIsNotUsed) {
  const auto rollout = *CoreShare::Open(path_, "rollout-0"),
             trainer = *CoreShare::Open(path_, "trainer-0");
  const CoreShare::Busy sampling(rollout.get()), training(trainer.get());
  const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);

  // The number of members follows the magic number (8 bytes) and the number of cores (4 bytes).
  for (const int32_t members : {1, 100'000, -1}) {
    ASSERT_EQ(pwrite(fd, &members, sizeof members, 12), static_cast<ssize_t>(sizeof members));
    EXPECT_EQ(rollout->threads(), 2);
    EXPECT_EQ(trainer->threads(), 2);
  }
  close(fd);
}

TEST(CoreShareAlone, KeepsItsThreadsWhateverOthersDo) {
  CoreShare share(3);
  EXPECT_EQ(share.threads(), 3);
  const CoreShare::Busy busy(&share);
  EXPECT_EQ(share.threads(), 3);
}

}  // namespace
}  // namespace sluice
