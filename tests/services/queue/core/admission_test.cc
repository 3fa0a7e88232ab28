// How the width of the admission window follows drift: by hand, against a slow model, and in a
// closed loop with a trainer whose KL grows with the age of what it trains.

#include "services/queue/core/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <vector>

#include "common/base/splitmix.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Drift = AdmissionWindow::Drift;
using DriftBounds = AdmissionWindow::DriftBounds;

constexpr int kParts = AdmissionWindow::kParts;

// A step of one second.
struct StepSeen {
  double idle = 0;  // Seconds that the trainer waited.
  double old = 0;   // Share of the tokens.
  Drift drift;
};

class Driver {
 public:
  Driver(uint32_t eta, const DriftBounds& bounds) : window(eta, std::nullopt, bounds) {
    window.CountStep(now_);  // The first batch only begins the first window.
  }

  void Step(const StepSeen& step) {
    window.CountGenerated(1000);
    window.CountTooOld(static_cast<uint64_t>(1000 * step.old));
    window.SetWaiting(true, now_);
    now_ += absl::Seconds(step.idle);
    window.SetWaiting(false, now_);
    now_ += absl::Seconds(1 - step.idle);
    window.CountStep(now_, step.drift);
  }
  void RunWindow(const StepSeen& step) {
    for (int i = 0; i < AdmissionWindow::kWindow; ++i) Step(step);
  }

  AdmissionWindow window;

 private:
  Instant now_;
};

// The rule as the header says it, computed anew from all steps. Returns the width in parts.
int SlowWidth(int eta, const DriftBounds& bounds, const std::vector<StepSeen>& steps) {
  int width = eta * kParts, hold = 0, back_off = 1, settle = 0;
  bool narrowed = false;
  for (size_t first = 0; first + 8 <= steps.size(); first += 8) {
    double idle = 0, old = 0, ess = 0, kl = 0;
    int with_ess = 0, with_kl = 0;
    for (size_t i = first; i < first + 8; ++i) {
      idle += steps[i].idle / 8;
      old += std::floor(1000 * steps[i].old) / 8000;
      if (const auto value = steps[i].drift.ess; value && !std::isnan(*value))
        ess += *value, ++with_ess;
      if (const auto value = steps[i].drift.kl; value && !std::isnan(*value))
        kl += *value, ++with_kl;
    }
    if (hold > 0) --hold;
    const bool settles = settle-- > 0;
    settle = std::max(settle, 0);
    const bool low = bounds.min_ess && with_ess > 0 && ess / with_ess < *bounds.min_ess;
    const bool high = bounds.max_kl && with_kl > 0 && kl / with_kl > *bounds.max_kl;
    if (low || high) {
      if (settles) continue;
      settle = (width / kParts + 7) / 8;
      width /= 2;
      narrowed = false;
    } else if (idle > 0.05 && width < eta * kParts) {
      if (narrowed) hold = back_off = std::min(2 * back_off, 64);
      width = std::min(eta * kParts, width + (bounds.min_ess || bounds.max_kl ? 1 : kParts));
      narrowed = false;
    } else if (idle < 0.02 && old > 0.02 && hold == 0 && width > 0) {
      width = std::max(0, width - std::max(1, static_cast<int>(std::ceil(10 * old))));
      narrowed = true;
    }
  }
  return width;
}

TEST(AdmissionDriftTest, TheWindowIsThatOfASlowModelForAnySteps) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const auto pick = [&](std::initializer_list<double> of) {
      return of.begin()[random.Below(of.size())];
    };
    const int eta = static_cast<int>(pick({1, 2, 4, 20}));
    DriftBounds bounds;
    if (random.Below(2) == 0) bounds.min_ess = 0.5;
    if (random.Below(2) == 0) bounds.max_kl = 0.1;
    Driver driver(static_cast<uint32_t>(eta), bounds);
    std::vector<StepSeen> steps;
    StepSeen usual;
    for (int i = 0; i < 400; ++i) {
      if (i % 40 == 0)  // The pace and the drift last for some windows.
        usual = {.idle = pick({0, 0.01, 0.03, 0.3}),
                 .old = pick({0, 0.01, 0.05, 0.25, 1}),
                 .drift = {.ess = pick({0.2, 0.7, nan}), .kl = pick({0.01, 0.3, nan})}};
      StepSeen step = usual;
      if (random.Below(4) == 0) step.drift = {};
      if (random.Below(8) == 0) step.drift.kl = pick({0, 1});
      steps.push_back(step);
      driver.Step(step);
      ASSERT_LE(driver.window.versions(), eta);
      ASSERT_GE(driver.window.versions(), 0);
      ASSERT_EQ(driver.window.versions() * kParts, SlowWidth(eta, bounds, steps)) << "step " << i;
    }
  }
}

TEST(AdmissionDriftTest, DriftHalvesTheWidthDownToZeroAlthoughTheTrainerWaits) {
  Driver low_ess(2, {.min_ess = 0.5}), high_kl(2, {.max_kl = 0.05});
  for (Driver* driver : {&low_ess, &high_kl}) {
    std::vector<double> widths;
    for (int i = 0; i < 8; ++i) {
      driver->RunWindow({.idle = 0.4, .drift = {.ess = 0.3, .kl = 0.06}});
      widths.push_back(driver->window.versions());
    }
    // While the width is one version or more, every other window shows what was admitted before.
    EXPECT_THAT(widths, testing::ElementsAre(1, 1, 0.5, 0.5, 0.25, 0, 0, 0));
    EXPECT_THAT(driver->window.MakeAdvice(),
                HasSubstr("the effective sample share is 0.300; the KL from the sampling policy is "
                          "0.0600, beyond queue.admission.min_ess or max_kl"));
  }
}

TEST(AdmissionDriftTest, WithoutDriftAWaitingTrainerGetsAQuarterMore) {
  Driver driver(2, {.min_ess = 0.5});
  driver.RunWindow({.drift = {.ess = 0.4}});
  EXPECT_EQ(driver.window.versions(), 1);
  driver.RunWindow({.idle = 0.4, .drift = {.ess = 0.6}});
  EXPECT_EQ(driver.window.versions(), 1.25);
  driver.RunWindow({.drift = {.ess = 0.6}});
  EXPECT_EQ(driver.window.versions(), 1.25) << "nobody waits";
  EXPECT_THAT(driver.window.MakeAdvice(), Not(HasSubstr("beyond")));
}

TEST(AdmissionDriftTest, DriftWithoutABoundOrWithAFixedWidthChangesNothing) {
  Driver unbound(2, {});
  unbound.RunWindow({.drift = {.ess = 0.01, .kl = 10}});
  EXPECT_EQ(unbound.window.versions(), 2);

  AdmissionWindow fixed(2, 1, {.min_ess = 0.5});
  Instant now;
  for (int i = 0; i < 20; ++i) fixed.CountStep(now += absl::Seconds(1), {.ess = 0.1});
  EXPECT_EQ(fixed.versions(), 1);
}

TEST(AdmissionDriftTest, TheMoreTokensAreTooOldTheLargerTheStep) {
  for (const auto& [old, width] : {std::pair(0.03, 3.75), {0.1, 3.75}, {0.11, 3.5}, {1.0, 1.5}}) {
    Driver driver(4, {});
    driver.RunWindow({.old = old});
    EXPECT_EQ(driver.window.versions(), width) << old;
  }
  Driver narrow(1, {});
  narrow.RunWindow({.old = 1});
  EXPECT_EQ(narrow.window.versions(), 0) << "not below 0";
}

// The KL of a step grows with the width with which its batch was admitted, and the trainer waits
// unless the width is 6 versions: the two cannot both be had. The loop must hold the KL near its
// bound, use what the bound allows, and neither drift away nor fall to 0.
TEST(AdmissionDriftTest, AClosedLoopHoldsTheKlNearItsBound) {
  for (const double allowed : {1.0, 2.5, 5.0}) {
    SCOPED_TRACE(allowed);
    constexpr double kPerVersion = 0.02;
    Driver driver(16, {.max_kl = kPerVersion * allowed});
    std::deque<double> admitted;  // Widths of the batches to come.
    std::vector<double> widths, kls;
    for (int step = 0; step < 1600; ++step) {
      const double width = driver.window.versions();
      while (static_cast<double>(admitted.size()) < std::ceil(width) + 1) admitted.push_back(width);
      const double kl = kPerVersion * admitted.front();
      admitted.pop_front();
      driver.Step({.idle = width < 6 ? 0.3 : 0.0, .drift = {.kl = kl}});
      if (step < 400) continue;
      widths.push_back(width);
      kls.push_back(kl);
    }
    const auto mean = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(values.size());
    };
    EXPECT_LE(mean(kls), kPerVersion * allowed);
    EXPECT_GE(mean(widths), 0.5 * allowed);
    EXPECT_LE(*std::max_element(widths.begin(), widths.end()), allowed + 1.5);
    EXPECT_GT(*std::min_element(widths.begin(), widths.end()), 0);
  }
}

TEST(AdmissionDriftTest, TheQueueFollowsWhatTheTrainerReportsWithItsSteps) {
  Spec spec = SmallSpec();
  spec.max_staleness = 2;
  spec.min_ess = 0.5;
  Harness h(spec);
  h.Start();
  for (int step = 0; step < 9; ++step) {
    EXPECT_EQ(h.job().Stats().admission_staleness, 2) << step;
    h.ess = 0.4;
    h.RunStep();
  }
  EXPECT_EQ(h.job().Stats().admission_staleness, 1);
  EXPECT_THAT(h.job().Stats().advice, HasSubstr("the effective sample share is 0.400"));

  // A rollout that waits for work reads why there is less of it.
  const char* const why =
      "; the effective sample share is 0.400, beyond queue.admission.min_ess or max_kl, so groups "
      "are admitted for 1.00 versions";
  while (h.Admitted(8).ok()) {
  }
  int told = 0;
  for (const WaitEdge& edge : h.job().Explain(h.now)) {
    if (edge.waiter.kind != NodeKind::kCall) continue;
    EXPECT_THAT(edge.cause, HasSubstr(why)) << edge.waiter.id;
    ++told;
  }
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace sluice::queue
