#include "services/rollout/core/trajectory/trajectory.h"

#include <cstring>

#include "common/base/digest.h"
#include "common/models/moe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;

TokenEvent Token(uint32_t position, int64_t version) {
  return {.position = position,
          .token = static_cast<int32_t>(100 + position),
          .logprob = -0.5f,
          .version = {1, version}};
}

TEST(TrajectoryTest, PiecesFollowEachOtherWithTheirVersionRuns) {
  Trajectory trajectory(3);
  for (uint32_t i = 0; i < 7; ++i) trajectory.Append(Token(3 + i, i < 2 ? 4 : 5));

  const Trajectory::Piece first = trajectory.TakePiece(4);
  EXPECT_EQ(first.at, 3u);
  EXPECT_THAT(first.tokens, ElementsAre(103, 104, 105, 106));
  EXPECT_THAT(first.runs, ElementsAre(VersionRun{{1, 4}, 2}, VersionRun{{1, 5}, 2}));

  const Trajectory::Piece second = trajectory.TakePiece(100);
  EXPECT_EQ(second.at, 7u);
  EXPECT_THAT(second.runs, ElementsAre(VersionRun{{1, 5}, 3}));
  EXPECT_EQ(trajectory.unsent(), 0u);

  trajectory.Acknowledge(7);
  EXPECT_EQ(trajectory.unacked(), 3u);
  trajectory.Acknowledge(10);
  EXPECT_TRUE(trajectory.all_acked());
}

TEST(TrajectoryTest, AnAnswerGoesOnBehindItsPrefix) {
  Trajectory trajectory(3, {7, 8}, {-1, -2}, {{1, 4}, {2, 5}});
  EXPECT_EQ(trajectory.position(), 5u);
  EXPECT_TRUE(trajectory.all_acked());
  trajectory.Append(Token(5, 9));
  EXPECT_EQ(trajectory.TakePiece(10).at, 5u);

  trajectory.Rewind(5);
  EXPECT_EQ(trajectory.unsent(), 1u);
}

// A queue that restarted without its payload has lost the prefix too. The worker was given it with
// the grant and sends it again.
TEST(TrajectoryTest, WhenTheQueueHasLostThePrefixItIsSentAgainWithItsStamps) {
  Trajectory trajectory(3, {7, 8}, {-1, -2}, {{1, 4}, {2, 5}});
  trajectory.Append(Token(5, 9));
  trajectory.TakePiece(10);
  trajectory.Rewind(3);
  EXPECT_EQ(trajectory.unacked(), 3u);

  const Trajectory::Piece again = trajectory.TakePiece(10);
  EXPECT_EQ(again.at, 3u);
  EXPECT_THAT(again.tokens, ElementsAre(7, 8, 105));
  EXPECT_THAT(again.runs,
              ElementsAre(VersionRun{{1, 4}, 1}, VersionRun{{2, 5}, 1}, VersionRun{{1, 9}, 1}));
}

TEST(TrajectoryTest, ExpertsComeWithTheirTokensAndThoseOfALostPrefixAreUnknown) {
  Trajectory trajectory(3, {7}, {-1}, {{1, 4}});
  trajectory.RecordRouting(2);  // One layer, two experts per token.
  for (const uint16_t expert : {1, 3, 5}) {
    TokenEvent event = Token(static_cast<uint32_t>(trajectory.position()), 9);
    auto details = std::make_shared<TokenDetails>();
    details->routing = {expert, 6};
    event.details = std::move(details);
    trajectory.Append(event);
  }

  EXPECT_THAT(trajectory.TakePiece(2).routing, ElementsAre(1, 6, 3, 6));
  EXPECT_THAT(trajectory.TakePiece(2).routing, ElementsAre(5, 6));

  trajectory.Rewind(3);
  EXPECT_THAT(trajectory.TakePiece(3).routing, ElementsAre(kAnyExpert, kAnyExpert, 1, 6, 3, 6));
  trajectory.Truncate(5);
  trajectory.Rewind(4);
  EXPECT_THAT(trajectory.TakePiece(9).routing, ElementsAre(1, 6));
}

TEST(TrajectoryTest, TheCrcIsOfTokensThenLogprobsOfTheWholeAnswer) {
  Trajectory trajectory(1, {7}, {-1}, {{1, 0}});
  trajectory.Append(Token(2, 0));
  const int32_t tokens[] = {7, 102};
  const float logprobs[] = {-1, -0.5f};
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), tokens, 8);
  std::memcpy(bytes.data() + 8, logprobs, 8);

  EXPECT_EQ(trajectory.Crc32c(), Crc32c(bytes));
}

TEST(TrajectoryTest, ATruncatedAnswerEndsByLength) {
  Trajectory trajectory(2);
  for (uint32_t i = 0; i < 6; ++i) trajectory.Append(Token(2 + i, 0));
  trajectory.TakePiece(6);
  trajectory.Acknowledge(4);
  trajectory.Truncate(4);

  EXPECT_EQ(trajectory.finish(), FinishReason::kLength);
  EXPECT_EQ(trajectory.position(), 4u);
  EXPECT_TRUE(trajectory.all_acked());
  EXPECT_EQ(trajectory.unsent(), 0u);
}

TEST(TrajectoryDeathTest, ATokenOutOfOrderIsABug) {
  Trajectory trajectory(2);
  EXPECT_DEATH(trajectory.Append(Token(3, 0)), "token at 3, expected 2");
}

}  // namespace
}  // namespace sluice
