#include "services/trainer/core/evaluations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;

class EvaluationsTest : public ::testing::Test {
 protected:
  EvaluationsTest() {
    EXPECT_TRUE(MakeDirs(dir_).ok());
    for (const int64_t number : {50, 100, 150})
      EXPECT_TRUE(MakeDirs(absl::StrCat(dir_, "/step-", number)).ok());
  }

  static Evaluation Of(int64_t number, double score, const std::string& state = "aa") {
    return {
        .version = {1, number}, .state = state, .score = score, .values = {{"eval/score", score}}};
  }

  const std::string dir_ = FreshDir();
  EvaluationLog log_{dir_};
};

TEST_F(EvaluationsTest, TheBestIsTheHighestScoreAndTheEarliestOfEquals) {
  ASSERT_TRUE(log_.Load(0).ok());
  ASSERT_TRUE(log_.Add(Of(0, 0.9)).ok());
  EXPECT_EQ(log_.totals().best_checkpoint, "") << "the initial model has no checkpoint";
  EXPECT_FALSE(LinkedVersion(dir_, kBestLink).has_value());

  ASSERT_TRUE(log_.Add(Of(50, 0.4)).ok());
  ASSERT_TRUE(log_.Add(Of(100, 0.6)).ok());
  ASSERT_TRUE(log_.Add(Of(150, 0.6)).ok());

  EXPECT_EQ(log_.totals().versions, 4);
  EXPECT_EQ(log_.totals().first, 0.9);
  EXPECT_EQ(log_.totals().last, 0.6);
  EXPECT_EQ(log_.totals().best, 0.6);
  EXPECT_EQ(log_.totals().best_checkpoint, dir_ + "/step-100");
  EXPECT_EQ(LinkedVersion(dir_, kBestLink), 100);
}

TEST_F(EvaluationsTest, OfLossesTheBestIsTheLowest) {
  EvaluationLog log(dir_, Better::kLower);
  ASSERT_TRUE(log.Load(0).ok());
  for (const auto& [number, loss] : {std::pair(50, 1.4), {100, 0.9}, {150, 0.9}})
    ASSERT_TRUE(log.Add(Of(number, loss)).ok());
  EXPECT_EQ(log.totals().best, 0.9);
  EXPECT_EQ(log.totals().best_checkpoint, dir_ + "/step-100") << "the earliest of equals";
  EXPECT_EQ(LinkedVersion(dir_, kBestLink), 100);
}

TEST_F(EvaluationsTest, AnotherProcessFindsThem) {
  ASSERT_TRUE(log_.Load(0).ok());
  ASSERT_TRUE(log_.Add(Of(50, 0.7)).ok());
  ASSERT_TRUE(log_.Add(Of(100, 0.6)).ok());
  ASSERT_TRUE(log_.SetReported(50, 52).ok());

  EvaluationLog again(dir_);
  ASSERT_TRUE(again.Load(100).ok());

  Evaluation expected = Of(50, 0.7);
  expected.reported = 52;
  ASSERT_NE(again.Find(50), nullptr);
  EXPECT_EQ(*again.Find(50), expected);
  EXPECT_EQ(again.Last()->version.number, 100);
  EXPECT_EQ(again.totals().best_version, 50);
}

TEST_F(EvaluationsTest, WhatIsAheadOfTheRunCountsOnlyOnceItIsReachedAgain) {
  ASSERT_TRUE(log_.Load(0).ok());
  for (const auto& [number, score] : {std::pair(50, 0.4), {100, 0.8}, {150, 0.5}})
    ASSERT_TRUE(log_.Add(Of(number, score)).ok());

  EvaluationLog back(dir_);  // The trainer continues from version 60.
  ASSERT_TRUE(back.Load(60).ok());
  EXPECT_EQ(back.totals().versions, 1);
  EXPECT_EQ(LinkedVersion(dir_, kBestLink), 50);
  ASSERT_NE(back.Find(100), nullptr) << "it may come again with the same weights";

  // Version 100 is skipped this time, so its evaluation belongs to a branch that was given up.
  ASSERT_TRUE(back.Add(Of(150, 0.3, "bb")).ok());
  EXPECT_EQ(back.Find(100), nullptr);
  EXPECT_EQ(back.totals().versions, 2);
  EXPECT_EQ(back.totals().last, 0.3);
  EXPECT_EQ(back.totals().best_version, 50);
}

TEST_F(EvaluationsTest, ADamagedFileIsNamedWithItsLine) {
  ASSERT_TRUE(log_.Load(0).ok());
  ASSERT_TRUE(log_.Add(Of(50, 0.4)).ok());
  const std::string path = dir_ + "/evaluations.jsonl";
  ASSERT_TRUE(WriteFileAtomic(path, *ReadFile(path) + "{\"version\": 100}\n").ok());
  EvaluationLog damaged(dir_);

  const absl::Status status = damaged.Load(100);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("evaluations.jsonl, line 2: "));
  EXPECT_EQ(damaged.totals().versions, 0);
}

}  // namespace
}  // namespace sluice::trainer
