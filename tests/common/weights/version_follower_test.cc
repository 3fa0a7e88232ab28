#include "common/weights/version_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/weights/relay.h"
#include "common/weights/weight_delta.h"

namespace sluice {
namespace {

Fingerprint StateOf(uint64_t number) {
  Fingerprint state;
  state.f[0] = number;
  return state;
}

PublishedVersion Announced(PolicyVersion version, uint64_t state) {
  return {.version = version,
          .manifest = absl::StrCat("manifest of ", version.str()),
          .state = StateOf(state)};
}

// Downloads what is next and activates it. Returns its version.
PolicyVersion TakeNext(VersionFollower* follower) {
  const VersionFollower::Download next = follower->Begin();
  StagedWeights staged{.version = next.version.version, .state = next.version.state};
  follower->OnStaged(next, "", /*relayed=*/false, &staged);
  follower->OnActivated(staged.version, staged.state);
  return staged.version;
}

// A message that was under way for long: this rollout has heard of later versions from another one,
// and has them.
TEST(VersionFollowerTest, W12AVersionBelowTheOneHeldIsNotTakenAlthoughTheTrainerAnnouncesIt) {
  VersionFollower follower(StateOf(0), nullptr);
  ASSERT_TRUE(follower.HearTrainer(Announced({1, 5}, 5), false, {}).ok());
  EXPECT_EQ(TakeNext(&follower), (PolicyVersion{1, 5}));
  follower.HearOther("a", Announced({1, 9}, 9), {});
  EXPECT_EQ(TakeNext(&follower), (PolicyVersion{1, 9}));

  ASSERT_TRUE(follower.HearTrainer(Announced({1, 6}, 6), false, {}).ok());
  EXPECT_EQ(follower.next_download(), std::nullopt);
  ASSERT_TRUE(follower.HearTrainer(Announced({1, 10}, 10), false, {}).ok());
  EXPECT_EQ(TakeNext(&follower), (PolicyVersion{1, 10}));
}

TEST(VersionFollowerTest, AfterDamageTheVersionThatWasHeldIsTakenAgainFromNothing) {
  VersionFollower follower(StateOf(0), nullptr);
  ASSERT_TRUE(follower.HearTrainer(Announced({1, 5}, 5), false, {}).ok());
  TakeNext(&follower);
  follower.OnDamaged();
  ASSERT_TRUE(follower.next_download().has_value());
  const VersionFollower::Download next = follower.Begin();
  EXPECT_EQ(next.version.version, (PolicyVersion{1, 5}));
  EXPECT_EQ(next.from, std::nullopt);
}

TEST(VersionFollowerTest, AListerOfARefusedDeltaIsNamedAndTheNextWayBeginsAtTheSameWeights) {
  VersionFollower follower(StateOf(0), nullptr);
  follower.HearOther("a", Announced({1, 2}, 2), {});
  const VersionFollower::Download next = follower.Begin();
  EXPECT_EQ(next.speaker, "a");
  StagedWeights staged{.version = {1, 2}, .state = StateOf(2)};
  staged.delta = std::make_shared<const WeightDelta>();
  follower.OnStaged(next, "rollout-7", /*relayed=*/false, &staged);
  EXPECT_EQ(follower.next_download(), std::nullopt) << "the engine has not answered";

  follower.OnRefused({1, 2}, absl::Seconds(1));
  ASSERT_TRUE(follower.next_download().has_value());
  EXPECT_GT(*follower.next_download(), absl::Seconds(1)) << "there is a back-off";
  const VersionFollower::Download again = follower.Begin();
  EXPECT_THAT(again.liars, testing::ElementsAre("rollout-7"));
  EXPECT_EQ(again.from, StateOf(0));
}

// Nobody has what the first one says, and the second one has spoken meanwhile.
TEST(VersionFollowerTest, WhatOneSaysIsLeftWhenItFailsForWhatAnotherHasSaidBefore) {
  for (const bool during : {false, true}) {
    SCOPED_TRACE(during);
    VersionFollower follower(StateOf(0), nullptr);
    follower.HearOther("liar", Announced({7, 9}, 9), {});
    const VersionFollower::Download lie = follower.Begin();
    EXPECT_EQ(lie.version.version, (PolicyVersion{7, 9}));
    follower.HearOther("honest", Announced({1, 2}, 2), absl::Seconds(1));
    // Its next lies, during the download or after it, are newer and do not come first either.
    const auto lie_again = [&] {
      for (int64_t version = 10; version < 20; ++version)
        follower.HearOther("liar", Announced({7, version}, 10), absl::Seconds(6));
    };
    if (during) lie_again();
    follower.OnFailed(lie, absl::UnavailableError("nobody has it"), false,
                      /*at_least=*/absl::Hours(1), absl::Seconds(6));
    if (!during) lie_again();
    EXPECT_LT(follower.next_download(), absl::Seconds(7)) << "another holder asked for the hour";
    EXPECT_EQ(TakeNext(&follower), (PolicyVersion{1, 2}));
  }
}

TEST(VersionFollowerTest, OneWhoRenewsALieDuringEachDownloadIsTriedWithABackOff) {
  VersionFollower follower(StateOf(0), nullptr);
  follower.HearOther("liar", Announced({7, 1}, 1), {});
  absl::Duration now;
  for (int64_t version = 2; version < 20; ++version) {
    now = std::max(now, follower.next_download().value());
    const VersionFollower::Download lie = follower.Begin();
    follower.HearOther("liar", Announced({7, version}, 1), now);
    follower.OnFailed(lie, absl::UnavailableError("gone"), false, {}, now);
  }
  EXPECT_GT(now, absl::Seconds(10));
}

// A new trainer replays, and is silent after an announcement that is not to be followed yet.
TEST(VersionFollowerTest, AnAnnouncementOfAReplayDoesNotHideWhatAnotherSays) {
  VersionFollower follower(StateOf(0), nullptr);
  ASSERT_TRUE(follower.HearTrainer(Announced({1, 10}, 10), false, {}).ok());
  TakeNext(&follower);
  PublishedVersion replayed = Announced({2, 5}, 5);
  replayed.hold_until = 10;
  ASSERT_TRUE(follower.HearTrainer(replayed, false, {}).ok());
  EXPECT_EQ(follower.next_download(), std::nullopt);
  follower.HearOther("a", Announced({2, 11}, 11), {});
  follower.OnFailed(follower.Begin(), absl::UnavailableError("gone"), false, {}, {});
  EXPECT_EQ(TakeNext(&follower), (PolicyVersion{2, 11}));
}

TEST(VersionFollowerTest, DamageOfItsOwnWeightsSaysNothingAgainstWhatAnotherSays) {
  for (const bool during_download : {false, true}) {
    SCOPED_TRACE(during_download);
    VersionFollower follower(StateOf(0), nullptr);
    ASSERT_TRUE(follower.HearTrainer(Announced({1, 5}, 5), false, {}).ok());
    TakeNext(&follower);
    follower.HearOther("a", Announced({1, 6}, 6), {});
    const VersionFollower::Download next = follower.Begin();
    if (during_download) follower.OnDamaged();
    StagedWeights staged{.version = {1, 6}, .state = StateOf(6)};
    staged.delta = std::make_shared<const WeightDelta>();
    follower.OnStaged(next, "", /*relayed=*/false, &staged);
    if (!during_download) follower.OnDamaged();
    follower.OnRefused({1, 6}, {});
    EXPECT_EQ(follower.Begin().version.version, (PolicyVersion{1, 6}));
  }
}

TEST(VersionFollowerTest, ABeatOfTheTrainerEndsWhatOthersSay) {
  VersionFollower follower(StateOf(0), nullptr);
  ASSERT_TRUE(follower.HearTrainer(Announced({1, 5}, 5), false, {}).ok());
  TakeNext(&follower);
  follower.HearOther("a", Announced({1, 6}, 6), {});
  EXPECT_TRUE(follower.next_download().has_value());
  follower.ForgetOthers();
  EXPECT_EQ(follower.next_download(), std::nullopt);
}

TEST(VersionFollowerTest, WhatOthersSayIsTriedInTurnsAndWithABackOff) {
  VersionFollower follower(StateOf(0), nullptr);
  follower.HearOther("a", Announced({1, 3}, 3), {});
  follower.HearOther("b", Announced({1, 2}, 2), {});
  std::map<PolicyVersion, int> tries;
  absl::Duration now;
  for (int i = 0; i < 20; ++i) {
    now = std::max(now, follower.next_download().value());
    const VersionFollower::Download download = follower.Begin();
    ++tries[download.version.version];
    follower.OnFailed(download, absl::UnavailableError("gone"), false, {}, now);
  }
  EXPECT_THAT(tries, testing::ElementsAre(testing::Pair(PolicyVersion{1, 2}, 10),
                                          testing::Pair(PolicyVersion{1, 3}, 10)));
  EXPECT_GT(now, absl::Seconds(10));
}

// The slow model: all that was ever announced, with who said it.
TEST(VersionFollowerTest, W07W12WhatIsFollowedAndHeldOnlyRisesAndAFencedTrainerChangesNothing) {
  int fenced = 0, hearsay = 0, activated = 0, damaged = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    WeightRelay relay;
    VersionFollower follower(StateOf(0), &relay);
    std::map<PolicyVersion, bool> announced;  // By the trainer, or by another alone.
    PolicyVersion top, held;                  // The trainer's highest; of the engine.
    std::optional<VersionFollower::Download> download;
    std::optional<StagedWeights> offered;
    absl::Duration now;
    for (int step = 0; step < 100; ++step) {
      now += absl::Milliseconds(random.Below(500));
      const int64_t incarnation = std::max<int64_t>(1, top.incarnation);
      switch (random.Below(7)) {
        case 0: {  // The trainer, its successor, or one that was replaced.
          PolicyVersion version{incarnation + !random.Below(6) - !random.Below(4),
                                static_cast<int64_t>(random.Below(20))};
          if (random.Below(2) == 0) version = {incarnation, top.number + 1};
          const std::optional<PublishedVersion> before = follower.latest();
          const absl::Status heard =
              follower.HearTrainer(Announced(version, random.Below(20)), random.Below(5) == 0, now);
          EXPECT_EQ(heard.ok(), version >= top) << version.str() << " after " << top.str();
          if (!heard.ok()) {
            EXPECT_EQ(follower.latest(), before);
            ++fenced;
          } else {
            top = version;
            announced[version] = true;
          }
          EXPECT_EQ(follower.newest(), top);
          break;
        }
        case 1: {
          const PolicyVersion version{incarnation, static_cast<int64_t>(random.Below(30))};
          announced.try_emplace(version, false);
          follower.HearOther(absl::StrCat(random.Below(3)), Announced(version, random.Below(20)),
                             now);
          break;
        }
        case 2:
          if (offered.has_value() || download.has_value() || !follower.next_download()) break;
          EXPECT_EQ(follower.next_download().has_value(), true);
          download = follower.Begin();
          // It is above what is held, and the trainer's word or newer than that.
          EXPECT_GT(download->version.version, held);
          EXPECT_EQ(download->speaker ? download->version.version > top
                                      : announced.at(download->version.version),
                    true);
          hearsay += download->speaker.has_value();
          break;
        case 3:
          if (!download.has_value()) break;
          if (random.Below(3) == 0) {
            follower.OnFailed(*download, absl::UnavailableError("gone"), random.Below(3) == 0, {},
                              now);
          } else {
            offered = StagedWeights{.version = download->version.version,
                                    .state = download->version.state};
            follower.OnStaged(*download, random.Below(2) == 0 ? "" : "rollout-1",
                              random.Below(2) == 0, &*offered);
          }
          download.reset();
          break;
        case 4:
          if (!offered.has_value()) break;
          follower.OnActivated(offered->version, offered->state);
          EXPECT_GT(offered->version, held);
          held = offered->version;
          offered.reset();
          ++activated;
          break;
        case 5:
          if (!offered.has_value()) break;
          follower.OnRefused(offered->version, now);
          offered.reset();
          break;
        default:
          if (random.Below(4) != 0) break;
          follower.OnDamaged();
          held = {};
          ++damaged;
      }
    }
  }
  EXPECT_GT(fenced, 300);
  EXPECT_GT(hearsay, 100);
  EXPECT_GT(activated, 400);
  EXPECT_GT(damaged, 300);
}

}  // namespace
}  // namespace sluice
