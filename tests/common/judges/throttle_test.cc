#include "common/judges/throttle.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sluice {
namespace {

using Outcome = Throttle::Outcome;

// Begins calls until none may begin.
uint32_t Fill(Throttle& throttle, absl::Duration now) {
  uint32_t begun = 0;
  absl::Duration wait;
  while (throttle.TryBegin(now, &wait)) ++begun;
  return begun;
}

TEST(ThrottleTest, AnsweredCallsWidenTheWindowByOneEachTimeItIsFilled) {
  Throttle throttle({.most = 12});
  absl::Duration now;
  for (uint32_t expected : {8u, 8u, 9u, 10u, 11u, 12u, 12u}) {
    const uint32_t begun = Fill(throttle, now);
    EXPECT_NEAR(begun, expected, 1);
    for (uint32_t i = 0; i < begun; ++i) throttle.End(now, Outcome::kAnswered, 0);
  }
}

TEST(ThrottleTest, TheRefusalsOfOneWindowHalveItOnce) {
  Throttle throttle({.most = 64});
  ASSERT_EQ(Fill(throttle, absl::ZeroDuration()), 8u);
  for (int i = 0; i < 8; ++i) throttle.End(absl::ZeroDuration(), Outcome::kRefused, 0);
  EXPECT_EQ(throttle.window(), 4);
  // The next window is refused too.
  ASSERT_EQ(Fill(throttle, absl::Seconds(2)), 4u);
  for (int i = 0; i < 4; ++i) throttle.End(absl::Seconds(2), Outcome::kRefused, 0);
  EXPECT_EQ(throttle.window(), 2);
}

TEST(ThrottleTest, CallsThatTheirCallersEndSayNothingAboutTheJudge) {
  Throttle throttle({.most = 64});
  absl::Duration wait;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(throttle.TryBegin(absl::ZeroDuration(), &wait));
    throttle.End(absl::ZeroDuration(), Outcome::kCancelled, 0);
  }
  EXPECT_FALSE(throttle.down());
  EXPECT_EQ(throttle.window(), 8);
  EXPECT_EQ(throttle.running(), 0u);
}

TEST(ThrottleTest, OneCallIsAlwaysLeftToFindOutWhenTheJudgeIsBack) {
  Throttle throttle({.most = 64});
  absl::Duration now;
  for (int round = 0; round < 100; ++round) {
    now += absl::Minutes(1);
    const uint32_t begun = Fill(throttle, now);
    ASSERT_GE(begun, 1u);
    for (uint32_t i = 0; i < begun; ++i) throttle.End(now, Outcome::kRefused, 0);
  }
  EXPECT_EQ(throttle.window(), 1);
}

TEST(ThrottleTest, NoCallBeginsBeforeTheTimeThatTheJudgeNames) {
  Throttle throttle({});
  absl::Duration wait;
  ASSERT_TRUE(throttle.TryBegin(absl::ZeroDuration(), &wait));
  throttle.End(absl::ZeroDuration(), Outcome::kRefused, 0, absl::Seconds(20));
  EXPECT_FALSE(throttle.TryBegin(absl::Seconds(5), &wait));
  EXPECT_EQ(wait, absl::Seconds(15));
  EXPECT_TRUE(throttle.TryBegin(absl::Seconds(20), &wait));
  // A judge cannot close itself for a day by one reply.
  throttle.End(absl::Seconds(20), Outcome::kRefused, 0, absl::Hours(24));
  EXPECT_TRUE(throttle.TryBegin(absl::Seconds(80), &wait));
}

TEST(ThrottleTest, CallsThatTakeTooLongNarrowTheWindowLikeRefusedOnes) {
  Throttle throttle({.most = 64});
  ASSERT_EQ(Fill(throttle, absl::ZeroDuration()), 8u);
  for (int i = 0; i < 7; ++i) throttle.End(absl::ZeroDuration(), Outcome::kTimedOut, 0);
  throttle.End(absl::ZeroDuration(), Outcome::kAnswered, 0);
  EXPECT_NEAR(throttle.window(), 4.25, 0.01);
}

TEST(ThrottleTest, AJudgeThatIsDownIsAskedOnceAfterWaitsThatDouble) {
  Throttle throttle({.most = 64});
  ASSERT_EQ(Fill(throttle, absl::ZeroDuration()), 8u);
  for (int i = 0; i < 7; ++i) throttle.End(absl::ZeroDuration(), Outcome::kFailed, 0);
  EXPECT_FALSE(throttle.down());
  EXPECT_EQ(throttle.window(), 8);  // Failures say nothing about the load.
  throttle.End(absl::ZeroDuration(), Outcome::kFailed, 0);
  EXPECT_TRUE(throttle.down());

  absl::Duration now;
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    absl::Duration wait;
    EXPECT_FALSE(throttle.TryBegin(now, &wait));
    EXPECT_EQ(wait, absl::Seconds(seconds));
    now += wait;
    ASSERT_EQ(Fill(throttle, now), 1u);
    throttle.End(now, Outcome::kFailed, 0);
  }
  now += absl::Seconds(60);
  ASSERT_EQ(Fill(throttle, now), 1u);
  throttle.End(now, Outcome::kAnswered, 0);
  EXPECT_FALSE(throttle.down());
  EXPECT_GE(Fill(throttle, now), 8u);
}

TEST(ThrottleTest, SpentTokensEndAllCalls) {
  Throttle throttle({.tokens = 100});
  absl::Duration wait;
  ASSERT_TRUE(throttle.TryBegin(absl::ZeroDuration(), &wait));
  throttle.End(absl::ZeroDuration(), Outcome::kAnswered, 99);
  EXPECT_FALSE(throttle.spent());
  ASSERT_TRUE(throttle.TryBegin(absl::ZeroDuration(), &wait));
  throttle.End(absl::ZeroDuration(), Outcome::kAnswered, 1);
  EXPECT_TRUE(throttle.spent());
  EXPECT_FALSE(throttle.TryBegin(absl::Hours(1), &wait));
}

// A random run: calls of random length are begun whenever that is allowed, and are asked for again
// after the wait that was told.
TEST(ThrottleTest, NeitherTheMostCallsNorTheirRateIsExceeded) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const Throttle::Options options{.most = static_cast<uint32_t>(draw(1, 40)),
                                    .calls_per_minute = draw(6, 600)};
    Throttle throttle(options);
    absl::Duration now;
    std::multimap<absl::Duration, int> running;  // By end.
    int begun = 0;
    while (now < absl::Minutes(10)) {
      absl::Duration wait;
      while (throttle.TryBegin(now, &wait)) {
        running.emplace(now + absl::Milliseconds(draw(1, 20'000)), 0);
        ++begun;
        ASSERT_LE(running.size(), options.most);
        const double most = 1 + std::max(1.0, *options.calls_per_minute / 60) +
                            *options.calls_per_minute * absl::ToDoubleMinutes(now);
        ASSERT_LE(begun, most) << "seed " << seed;
      }
      ASSERT_EQ(throttle.running(), running.size());
      absl::Duration next = now + wait;
      if (!running.empty()) next = std::min(next, running.begin()->first);
      ASSERT_GT(next, now) << "a wait of 0 would be a busy loop; seed " << seed;
      ASSERT_LT(next, absl::InfiniteDuration()) << "nothing would ever begin; seed " << seed;
      now = next;
      while (!running.empty() && running.begin()->first <= now) {
        running.erase(running.begin());
        throttle.End(now, static_cast<Outcome>(draw(0, 3)), 1, absl::Seconds(draw(0, 5)));
      }
    }
    EXPECT_GT(begun, 0);
  }
}

}  // namespace
}  // namespace sluice
