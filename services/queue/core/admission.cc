#include "services/queue/core/admission.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::queue {
namespace {
constexpr double kIdleHigh = 0.05, kIdleLow = 0.02;
constexpr double kOldHigh = 0.02;
// max_staleness is too small if the trainer idles, a rollout takes more than max_staleness + 1
// steps, and more than this share of the tokens is too old.
constexpr double kUnsafe = 0.05;
constexpr uint32_t kLongestBackOff = 64;  // In windows.

std::string DriftValues(const AdmissionWindow::Report& report) {
  std::string text;
  if (report.ess) absl::StrAppendFormat(&text, "the effective sample share is %.3f", *report.ess);
  if (report.kl) {
    absl::StrAppendFormat(&text, "%sthe KL from the sampling policy is %.4f",
                          text.empty() ? "" : "; ", *report.kl);
  }
  return text;
}
}  // namespace

void AdmissionWindow::Mean::Add(std::optional<double> value) {
  if (!value.has_value() || std::isnan(*value)) return;
  sum += *value;
  ++count;
}

std::optional<double> AdmissionWindow::Mean::Get() const {
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

AdmissionWindow::AdmissionWindow(uint32_t eta, std::optional<uint32_t> fixed,
                                 const DriftBounds& bounds)
    : eta_(eta), adapts_(!fixed && eta > 0), bounds_(bounds) {
  state_.parts = fixed.value_or(eta) * kParts;
}

void AdmissionWindow::CountSealed(absl::Duration took, int64_t versions) {
  ++state_.sealed;
  state_.durations += took;
  ++state_.spans[versions];
}

void AdmissionWindow::SetWaiting(bool waits, Instant now) {
  if (waits == state_.waiting.has_value()) return;
  if (waits) {
    state_.waiting = now;
    return;
  }
  state_.idle += now - *state_.waiting;
  state_.waiting.reset();
}

bool AdmissionWindow::CountStep(Instant now, const Drift& drift) {
  SetWaiting(false, now);
  // The first batch waits for the start of the job, which says nothing about the pace.
  if (!state_.began) {
    state_ = {.parts = state_.parts, .began = now};
    return false;
  }
  state_.ess.Add(drift.ess);
  state_.kl.Add(drift.kl);
  if (++state_.steps < kWindow) return false;

  const absl::Duration elapsed = std::max(now - *state_.began, absl::Nanoseconds(1));
  const absl::Duration busy = std::max(elapsed - state_.idle, absl::Nanoseconds(1)) / state_.steps;
  Report report;
  report.idle = absl::FDivDuration(state_.idle, elapsed);
  report.old =
      state_.generated == 0
          ? 0
          : std::min(1.0, static_cast<double>(state_.old) / static_cast<double>(state_.generated));
  report.duration = state_.sealed == 0 ? 0
                                       : absl::FDivDuration(state_.durations, busy) /
                                             static_cast<double>(state_.sealed);

  report.ess = state_.ess.Get();
  report.kl = state_.kl.Get();

  // The smallest span within which 95 % of the rollouts were sealed.
  int64_t below = 0;
  for (const auto& [span, count] : state_.spans) {
    report.span = span;
    below += count;
    if (static_cast<double>(below) >= 0.95 * static_cast<double>(state_.sealed)) break;
  }

  // The counts begin again at zero; only the width and its history go on.
  const bool was = state_.infeasible;
  State next{.parts = state_.parts,
             .narrowed = state_.narrowed,
             .hold = state_.hold,
             .back_off = state_.back_off,
             .settle = state_.settle,
             .report = report,
             .began = now};
  next.infeasible = report.idle > kIdleHigh && report.duration > eta_ + 1.0 && report.old > kUnsafe;
  state_ = std::move(next);
  if (adapts_) AdaptWidth();
  return state_.infeasible && !was;
}

bool AdmissionWindow::drifts() const {
  const Report& report = state_.report;
  if (!adapts_) return false;
  return (bounds_.min_ess && report.ess && *report.ess < *bounds_.min_ess) ||
         (bounds_.max_kl && report.kl && *report.kl > *bounds_.max_kl);
}

void AdmissionWindow::AdaptWidth() {
  const Report& report = state_.report;
  if (state_.hold > 0) --state_.hold;
  const bool settles = state_.settle > 0;
  if (settles) --state_.settle;
  if (drifts()) {
    if (settles) return;
    state_.settle = static_cast<uint32_t>((whole() + kWindow - 1) / kWindow);
    state_.parts /= 2;
    state_.narrowed = false;  // Should the trainer now wait, that is no mistake.
    return;
  }

  if (report.idle > kIdleHigh && state_.parts < eta_ * kParts) {
    if (state_.narrowed) {
      state_.back_off = std::min(2 * state_.back_off, kLongestBackOff);
      state_.hold = state_.back_off;
    }
    const uint32_t step = bounds_.min_ess || bounds_.max_kl ? 1 : kParts;
    state_.parts = std::min(state_.parts + step, eta_ * kParts);
    state_.narrowed = false;
  } else if (report.idle < kIdleLow && report.old > kOldHigh && state_.hold == 0 &&
             state_.parts > 0) {
    const auto tenths = static_cast<uint32_t>(std::ceil(10 * report.old));
    state_.parts -= std::clamp(tenths, 1u, state_.parts);
    state_.narrowed = true;
  }
}

int64_t AdmissionWindow::NeededStaleness() const {
  return std::max(static_cast<int64_t>(std::ceil(state_.report.duration)) - 1, state_.report.span);
}

std::string AdmissionWindow::DescribeDrift() const {
  return absl::StrFormat(
      "%s, beyond queue.admission.min_ess or max_kl, so groups are admitted for %.2f versions",
      DriftValues(state_.report), versions());
}

std::string AdmissionWindow::MakeAdvice() const {
  const Report& report = state_.report;
  std::string text = absl::StrFormat(
      "over the last %d steps the trainer waited %.0f %% of the time, %.0f %% of the tokens were "
      "too old to be trained; a rollout takes %.1f steps, "
      "95 %% end within %d versions",
      kWindow, 100 * report.idle, 100 * report.old, report.duration, report.span);
  const std::string drift = drifts() ? DescribeDrift() : DriftValues(report);
  if (!drift.empty()) absl::StrAppend(&text, "; ", drift);
  if (!state_.infeasible) return text;
  return absl::StrFormat(
      "max_staleness %d can keep neither the trainer busy (needs %.0f) nor the tokens young: %s. "
      "Set queue.max_staleness to %d or more, or add rollouts",
      eta_, std::ceil(report.duration) - 1, text, NeededStaleness());
}

}  // namespace sluice::queue
