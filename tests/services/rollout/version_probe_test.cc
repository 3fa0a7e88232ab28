#include "services/rollout/version_probe.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/rollout/streamer.h"

namespace sluice::rollout {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr PolicyVersion kBefore{1, 4}, kTried{1, 5};

class VersionProbeTest : public testing::Test {
 protected:
  // A prompt of 1, 2 and an answer of 3, 4, 5 with log-probs -1, -2, -3.
  static Member Sealed(std::vector<int32_t> prompt = {1, 2}) {
    const uint32_t length = static_cast<uint32_t>(prompt.size());
    return {.prompt = std::make_shared<const RenderedPrompt>(
                RenderedPrompt{.tokens = std::move(prompt), .messages = ""}),
            .granted_under = kBefore,
            .temperature = 0.5f,
            .trajectory = Trajectory(length, {3, 4, 5}, {-1, -2, -3}, {kBefore, kBefore, kBefore})};
  }
  // The engine's event: -9 is the log-prob of the prompt's second token.
  static StepEvents Scored(const Request& request, std::vector<float> answer,
                           PolicyVersion version = kTried) {
    auto details = std::make_shared<TokenDetails>();
    details->prompt_logprobs = {-9, answer[0], answer[1]};
    StepEvents step;
    step.tokens.push_back({.request = request.id,
                           .token = 5,
                           .logprob = answer[2],
                           .version = version,
                           .finish = FinishReason::kLength,
                           .details = details});
    return step;
  }
  static StepEvents Failed(const Request& request, const char* reason) {
    StepEvents step;
    step.failures.push_back({request.id, Error(absl::StatusCode::kDataLoss, reason, "bad")});
    return step;
  }

  std::vector<Request> asked_;
  VersionProbe probe_{[this](Request request) { asked_.push_back(std::move(request)); }};
};

TEST_F(VersionProbeTest, TheKeptAnswersAreComputedAgainWhenAVersionIsOnTrial) {
  probe_.OnSealed(Sealed());
  probe_.StartVersion(kBefore, /*on_trial=*/false);
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_TRUE(probe_.health().probed);

  probe_.StartVersion(kTried, /*on_trial=*/true);
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_THAT(*asked_[0].prompt, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(asked_[0].given, 5);
  EXPECT_EQ(asked_[0].sampling.temperature, 0.5f);
  EXPECT_EQ(OwnerOf(asked_[0].id), RequestOwner::kProbe);
  EXPECT_FALSE(probe_.health().probed);
}

// They may be of a version that was withdrawn.
TEST_F(VersionProbeTest, AnswersOfEarlierIncarnationsAreForgotten) {
  probe_.OnSealed(Sealed());
  probe_.StartVersion({kTried.incarnation + 1, kTried.number}, /*on_trial=*/true);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(VersionProbeTest, TheGapIsTheMeanDifferenceOverAllTokens) {
  probe_.OnSealed(Sealed());
  probe_.OnSealed(Sealed());
  probe_.StartVersion(kTried, true);
  ASSERT_EQ(asked_.size(), 2u);

  StepEvents first = Scored(asked_[0], {-1, -2, -3});
  first.tokens.push_back({.request = 12});
  probe_.TakeEvents(&first);
  EXPECT_EQ(first.tokens.size(), 1u) << "what is not its own stays";
  StepEvents second = Scored(asked_[1], {-1.5f, -2, -5.5f});
  probe_.TakeEvents(&second);

  const VersionHealth expected{
      .rows = 6, .bad_rows = 0, .gap_tokens = 6, .gap = 0.5, .probed = true};
  EXPECT_EQ(probe_.health(), expected);
}

TEST_F(VersionProbeTest, ScoresThatAreNotFiniteAreBadRowsAndEnterNoMean) {
  for (int i = 0; i < 3; ++i) probe_.OnSealed(Sealed());
  probe_.StartVersion(kTried, true);
  ASSERT_EQ(asked_.size(), 3u);

  StepEvents step = Scored(asked_[0], {-1, std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF});
  probe_.TakeEvents(&step);
  step = Failed(asked_[1], "NONFINITE");
  probe_.TakeEvents(&step);
  EXPECT_THAT(step.failures, IsEmpty());
  step = Failed(asked_[2], "STOPPED");  // Says nothing of the version.
  probe_.TakeEvents(&step);

  const VersionHealth expected{.rows = 4, .bad_rows = 3, .gap_tokens = 1, .gap = 0, .probed = true};
  EXPECT_EQ(probe_.health(), expected);
}

TEST_F(VersionProbeTest, WhatComesUnderAnotherVersionIsNotCounted) {
  probe_.OnSealed(Sealed());
  probe_.StartVersion(kTried, true);
  probe_.StartVersion({1, 6}, true);
  ASSERT_EQ(asked_.size(), 2u);

  StepEvents step = Scored(asked_[0], {-9, -9, -9}, kTried);
  probe_.TakeEvents(&step);
  EXPECT_EQ(probe_.health().rows, 0u);
  EXPECT_FALSE(probe_.health().probed) << "the second request is open";
  step = Scored(asked_[1], {-1, -2, -3}, {1, 6});
  probe_.TakeEvents(&step);
  EXPECT_EQ(probe_.health().rows, 3u);
  EXPECT_TRUE(probe_.health().probed);
}

TEST_F(VersionProbeTest, TheNewestAnswersAreKeptWithinBothLimits) {
  for (size_t i = 0; i < VersionProbe::kMostAnswers + 10; ++i)
    probe_.OnSealed(Sealed({static_cast<int32_t>(i), 2}));
  probe_.StartVersion(kTried, true);
  EXPECT_EQ(asked_.size(), VersionProbe::kMostAnswers);
  EXPECT_EQ(asked_[0].prompt->front(), 10);

  asked_.clear();
  const std::vector<int32_t> half(VersionProbe::kMostTokens / 2 - 3, 7);
  probe_.OnSealed(Sealed(half));
  probe_.OnSealed(Sealed(half));
  probe_.OnSealed(Sealed(std::vector<int32_t>(VersionProbe::kMostTokens, 7)));  // Too long.
  probe_.StartVersion({1, 6}, true);
  EXPECT_EQ(asked_.size(), 2u);
}

}  // namespace
}  // namespace sluice::rollout
