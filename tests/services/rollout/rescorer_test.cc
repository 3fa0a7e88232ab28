#include "services/rollout/rescorer.h"

#include <cmath>
#include <memory>

#include "common/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/rollout/streamer.h"

namespace sluice::rollout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr PolicyVersion kOld{1, 4}, kNow{1, 5};

class RescorerTest : public testing::Test {
 protected:
  std::unique_ptr<Rescorer> Make(uint32_t one_in) {
    return std::make_unique<Rescorer>(
        Rescorer::Options{.job_name = "digits", .one_in = one_in},
        [this](Request request) { asked_.push_back(std::move(request)); },
        Metrics(&registry_, "digits"));
  }

  // A prompt of 1, 2 and an answer of 3, 4, 5 with log-probs -1, -2, -3.
  static Member Sampled(uint64_t ordinal, uint32_t member,
                        std::vector<PolicyVersion> versions = {kNow, kNow, kNow}) {
    // A group id is big-endian: the queue's incarnation in bytes 0 to 3, the ordinal in 8 to 15.
    std::string group(16, '\0');
    group[3] = 1;
    for (int i = 0; i < 8; ++i) group[15 - i] = static_cast<char>(ordinal >> 8 * i);
    Member sampled{.prompt = std::make_shared<const RenderedPrompt>(
                       RenderedPrompt{.tokens = {1, 2}, .messages = ""}),
                   .granted_under = versions.front(),
                   .temperature = 0.5f,
                   .trajectory = Trajectory(2, {3, 4, 5}, {-1, -2, -3}, versions)};
    sampled.ref.set_group(group);
    sampled.ref.set_member(member);
    sampled.ref.set_attempt(1);
    return sampled;
  }

  // The engine's event for the last request that was asked. -9 is the log-prob of the prompt's
  // second token; `answer` has those of the answer's three tokens.
  StepEvents Scored(std::vector<float> answer, PolicyVersion version = kNow) {
    auto details = std::make_shared<TokenDetails>();
    details->prompt_logprobs = {-9, answer[0], answer[1]};
    StepEvents step;
    step.tokens.push_back({.request = asked_.back().id,
                           .token = 5,
                           .logprob = answer[2],
                           .version = version,
                           .finish = FinishReason::kLength,
                           .details = details});
    return step;
  }

  metrics::Registry registry_;
  std::vector<Request> asked_;
};

TEST_F(RescorerTest, WhatIsAskedIsTheWholeTrajectoryBehindAllOtherWork) {
  const auto rescorer = Make(1);
  rescorer->OnSealed(Sampled(7, 2), kNow);
  ASSERT_EQ(asked_.size(), 1u);

  EXPECT_THAT(*asked_[0].prompt, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(asked_[0].given, 5);
  EXPECT_EQ(asked_[0].order, RequestClass::kIdle);
  EXPECT_EQ(asked_[0].sampling.temperature, 0.5f);
  EXPECT_EQ(OwnerOf(asked_[0].id), RequestOwner::kRescorer);
}

TEST_F(RescorerTest, WhatWasNotAllOfTheLoadedVersionIsPassedOver) {
  const auto rescorer = Make(1);
  rescorer->OnSealed(Sampled(7, 0, {kOld, kNow, kNow}), kNow);
  rescorer->OnSealed(Sampled(7, 1, {kOld, kOld, kOld}), kNow);
  Member prefilled_before = Sampled(7, 2);
  prefilled_before.granted_under = kOld;
  rescorer->OnSealed(prefilled_before, kNow);
  EXPECT_THAT(asked_, IsEmpty());

  rescorer->OnSealed(Sampled(7, 3), kNow);
  StepEvents later = Scored({-9, -9, -9}, {1, 6});
  testing::internal::CaptureStderr();
  rescorer->TakeEvents(&later);

  EXPECT_EQ(testing::internal::GetCapturedStderr(), "")
      << "another version was loaded before it was scored";
  EXPECT_THAT(registry_.Text(),
              HasSubstr("sluice_rollout_rescore_gap_nats_count{job_id=\"digits\"} 0"));
}

TEST_F(RescorerTest, TheChoiceIsOfGroupAndMemberAlone) {
  std::vector<uint64_t> hashes;

  for (int run = 0; run < 2; ++run) {
    const auto rescorer = Make(1000);
    asked_.clear();
    uint64_t hash = 0;
    for (uint64_t ordinal = 0; ordinal < 4000; ++ordinal) {
      for (uint32_t member = 0; member < 8; ++member) {
        const size_t before = asked_.size();
        rescorer->OnSealed(Sampled(ordinal, member), kNow);

        // `hash` becomes a hash of all that were chosen.
        hash = asked_.size() > before ? hash * 31 + ordinal * 8 + member : hash;
        // At most kMostPending requests may wait for their scores, so deliver them at once.
        if (asked_.size() > before) {
          StepEvents step = Scored({-1, -2, -3});
          rescorer->TakeEvents(&step);
        }
      }
    }

    EXPECT_GT(asked_.size(), 16u) << "one in 1000 of 32000 is 32";
    EXPECT_LT(asked_.size(), 64u);
    hashes.push_back(hash);
  }

  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_F(RescorerTest, EqualBitsAreAGapOfZeroAndOthersAreWarnedOfByName) {
  const auto rescorer = Make(1);
  testing::internal::CaptureStderr();
  rescorer->OnSealed(Sampled(0x2f, 3), kNow);
  StepEvents equal = Scored({-1, -2, -3});
  equal.tokens.push_back({.request = 12});
  rescorer->TakeEvents(&equal);

  EXPECT_EQ(equal.tokens.size(), 1u) << "what is not its own stays";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(registry_.Text(), HasSubstr("rescore_gap_nats_bucket{job_id=\"digits\",le=\"0\"} 1"));

  testing::internal::CaptureStderr();
  rescorer->OnSealed(Sampled(0x2f, 3), kNow);
  StepEvents apart = Scored({-1, -2.5f, -3.1f});
  rescorer->TakeEvents(&apart);

  const std::string warned = testing::internal::GetCapturedStderr();
  for (const char* part : {"\"rescore_gap\"", "\"group\":\"1:2f\"", "\"member\":3", "\"attempt\":1",
                           "\"position\":3", "\"max_nats\":0.5", "\"version\":\"1:5\""})
    EXPECT_THAT(warned, HasSubstr(part));
  EXPECT_THAT(registry_.Text(), HasSubstr("rescore_gap_nats_bucket{job_id=\"digits\",le=\"0\"} 1"));
  EXPECT_THAT(registry_.Text(), HasSubstr("rescore_gap_nats_count{job_id=\"digits\"} 2"));

  testing::internal::CaptureStderr();
  rescorer->OnSealed(Sampled(0x2f, 3), kNow);
  StepEvents none = Scored({-1, std::nanf(""), -3});
  rescorer->TakeEvents(&none);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("\"position\":3"))
      << "a gap that is no number is warned of too";
}

}  // namespace
}  // namespace sluice::rollout
