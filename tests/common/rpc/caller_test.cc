#include "common/rpc/caller.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::rpc {
namespace {

constexpr Role kTrainers[] = {Role::kTrainer};
constexpr Role kRollouts[] = {Role::kRollout};

class CallerTableTest : public testing::Test {
 protected:
  CallerTableTest() {
    table_.SetJob("job", {{"trainer-0", Role::kTrainer, 4},
                          {"trainer-1", Role::kTrainer, 4},
                          {"rollout-0", Role::kRollout, 2}});
  }
  std::string Reason(absl::string_view job, absl::string_view worker, int64_t incarnation,
                     absl::Span<const Role> roles) {
    return ReasonOf(table_.Check(job, worker, incarnation, roles));
  }

  CallerTable table_;
};

TEST_F(CallerTableTest, AListedWorkerMayCallUnderItsIncarnation) {
  EXPECT_TRUE(table_.Check("job", "trainer-0", 4, kTrainers).ok());
  EXPECT_TRUE(table_.Check("job", "rollout-0", 2, kRollouts).ok());
}

TEST_F(CallerTableTest, WhatWasNotHeardOfYetIsAskedToComeAgain) {
  EXPECT_EQ(Reason("other", "trainer-0", 4, kTrainers), "NOT_LISTED");
  EXPECT_EQ(Reason("job", "trainer-9", 4, kTrainers), "NOT_LISTED");
  EXPECT_EQ(Reason("job", "rollout-0", 3, kRollouts), "NOT_LISTED");
  const absl::Status status = table_.Check("job", "rollout-0", 3, kRollouts);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(DetailOf(status).retry_after, absl::ZeroDuration());
}

TEST_F(CallerTableTest, PeopleAndTheControllerAreBelievedWhereTheyMayCall) {
  constexpr Role kPeople[] = {Role::kRollout, Role::kOperator};
  EXPECT_TRUE(table_.Check("job", "eval-17", 0, kPeople).ok());
  EXPECT_EQ(Reason("job", "eval-17", 0, kRollouts), "NOT_LISTED");
  EXPECT_EQ(Reason("job", "rollout-0", 0, kPeople), "FENCED")
      << "a listed worker is held to its incarnation";
}

TEST_F(CallerTableTest, ALowerIncarnationIsFenced) {
  const absl::Status status = table_.Check("job", "rollout-0", 1, kRollouts);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(status), "FENCED");
  EXPECT_EQ(DetailOf(status).current, "2");
}

TEST_F(CallerTableTest, OneNewRankFencesTheWholeOldTrainerGroup) {
  table_.SetJob("job", {{"trainer-0", Role::kTrainer, 4}, {"trainer-2", Role::kTrainer, 5}});
  EXPECT_EQ(Reason("job", "trainer-0", 4, kTrainers), "FENCED");
  EXPECT_EQ(Reason("job", "trainer-1", 4, kTrainers), "FENCED");
}

TEST_F(CallerTableTest, AnIncarnationNeverFallsEvenIfAListIsOlder) {
  table_.SetJob("job", {{"rollout-0", Role::kRollout, 1}});
  EXPECT_EQ(Reason("job", "rollout-0", 1, kRollouts), "FENCED");
  EXPECT_TRUE(table_.Check("job", "rollout-0", 2, kRollouts).ok());
}

TEST_F(CallerTableTest, AWorkerOffTheListMayNotCall) {
  table_.SetJob("job", {{"trainer-0", Role::kTrainer, 4}});
  EXPECT_EQ(Reason("job", "rollout-0", 2, kRollouts), "NOT_LISTED");
  EXPECT_EQ(Reason("job", "rollout-0", 1, kRollouts), "FENCED");
}

TEST_F(CallerTableTest, AWrongRoleIsRefusedAfterTheFenceIsChecked) {
  EXPECT_EQ(table_.Check("job", "rollout-0", 2, kTrainers).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Reason("job", "rollout-0", 1, kTrainers), "FENCED");
}

TEST_F(CallerTableTest, TheControllerCallsWithoutBeingListed) {
  constexpr Role kBoth[] = {Role::kRollout, Role::kController};
  EXPECT_TRUE(table_.Check("job", "controller-0", 0, kBoth).ok());
  EXPECT_EQ(Reason("job", "controller-0", 0, kRollouts), "NOT_LISTED");
}

TEST_F(CallerTableTest, ARemovedJobIsUnknown) {
  table_.RemoveJob("job");
  EXPECT_EQ(Reason("job", "trainer-0", 4, kTrainers), "NOT_LISTED");
}

}  // namespace
}  // namespace sluice::rpc
