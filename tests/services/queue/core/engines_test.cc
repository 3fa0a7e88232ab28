#include "services/queue/core/engines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"

namespace sluice::queue {
namespace {

constexpr absl::Duration kLeaseTime = absl::Seconds(10);

// What the slow model knows of an engine.
struct Known {
  int64_t incarnation = 0;
  Loaded loaded;
  Instant renewed = -absl::InfiniteDuration();
};

// Random engines load versions of a job whose trainer restarts and gives up versions. The slow
// model says who may be admitted by comparing each engine with each other one.
TEST(EnginesTest, W14AdmittedEnginesSpanAtMostTheVersionsThatTheyMay) {
  int admitted = 0, beyond = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const auto span = static_cast<uint32_t>(random.Below(4));
    Engines engines(kLeaseTime, span);
    std::map<std::string, Known> all;
    std::map<int64_t, int64_t> forks;  // Of the incarnations that were given up.
    Instant now = absl::Seconds(100);
    int64_t incarnation = 1, newest = 0;
    engines.SetReached(1, 0);

    for (int step = 0; step < 200; ++step) {
      const std::string worker = absl::StrCat("rollout-", random.Below(5));
      switch (random.Below(6)) {
        case 0: now += absl::Seconds(random.Below(4)); break;
        case 1: engines.SetReached(incarnation, ++newest); break;
        case 2:
          if (!random.Below(6)) {
            // The next trainer goes back, and what lies beyond is off the branch.
            forks[incarnation] = newest =
                newest - static_cast<int64_t>(
                             random.Below(static_cast<uint64_t>(std::min<int64_t>(newest, 3)) + 1));
            engines.AddFork(incarnation + 1, newest);
            engines.SetReached(++incarnation, newest);
          }
          break;
        case 3:
        case 4: {
          Known& known = all[worker];
          known.incarnation += random.Below(10) == 0;
          const int64_t back = static_cast<int64_t>(random.Below(6));
          known.loaded = {.version = {std::max<int64_t>(1, incarnation - !random.Below(5)),
                                      std::max<int64_t>(0, newest - back)},
                          .verified = random.Below(8) != 0};
          engines.SetLoaded(worker, known.incarnation, known.loaded);
          known.renewed = now;
          engines.Renew(worker, now);
          break;
        }
        default:
          if (!all.contains(worker)) break;
          all[worker].renewed = now;
          engines.Renew(worker, now);
      }

      const auto is_live = [&](const Known& known) {
        const PolicyVersion& version = known.loaded.version;
        for (const auto& [given_up, fork] : forks) {
          if (version.incarnation <= given_up && version.number > fork) return false;
        }
        return known.loaded.verified && now < known.renewed + kLeaseTime;
      };
      for (const auto& [name, known] : all) {
        bool expected = is_live(known), behind = false;
        for (const auto& [unused, other] : all) {
          behind |=
              is_live(other) && other.loaded.version.number - known.loaded.version.number > span;
        }
        beyond += expected && behind;
        expected &= !behind;
        admitted += expected;
        const Caller caller{.worker = name, .incarnation = known.incarnation};
        EXPECT_EQ(engines.FindServing(caller, now) != nullptr, expected) << name << " at " << step;
      }
      // And so, whoever is admitted, none is further from another than the span.
      for (const auto& [one, engine] : engines.all()) {
        for (const auto& [other, second] : engines.all()) {
          if (!engines.Counts(engine, now) || !engines.Counts(second, now)) continue;
          EXPECT_LE(engine.loaded.version.number - second.loaded.version.number, span);
        }
      }
    }
  }
  EXPECT_GT(admitted, 1000);
  EXPECT_GT(beyond, 1000);
}

}  // namespace
}  // namespace sluice::queue
