#include "common/judges/throttle.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr double kFirstWindow = 8;
// A judge that refuses without saying for how long.
constexpr absl::Duration kPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Seconds(60);

double MostCalls(double per_minute) { return std::max(1.0, per_minute / 60); }

}  // namespace

Throttle::Throttle(const Options& options)
    : options_(options), window_(std::min<double>(kFirstWindow, options.most)) {
  if (options_.calls_per_minute) calls_ = MostCalls(*options_.calls_per_minute);
}

bool Throttle::TryBegin(absl::Duration now, absl::Duration* wait) {
  *wait = absl::InfiniteDuration();
  // One call finds out whether a judge that was down is back.
  const uint32_t most = down() ? 1 : static_cast<uint32_t>(window_);
  if (spent() || running_ >= most) return false;
  if (now < closed_until_) {
    *wait = closed_until_ - now;
    return false;
  }
  if (options_.calls_per_minute) {
    const double per_second = *options_.calls_per_minute / 60;
    calls_ = std::min(MostCalls(*options_.calls_per_minute),
                      calls_ + absl::ToDoubleSeconds(now - filled_at_) * per_second);
    filled_at_ = now;
    // A wait is rounded to nanoseconds, so the bucket may lack the last billionth of a call.
    if (calls_ < 1 - 1e-6) {
      *wait = absl::Seconds((1 - calls_) / per_second);
      return false;
    }
    calls_ -= 1;
  }
  ++running_;
  return true;
}

void Throttle::End(absl::Duration now, Outcome outcome, uint64_t tokens,
                   absl::Duration retry_after) {
  --running_;
  used_tokens_ += tokens;
  const auto close_for = [&](absl::Duration pause) {
    closed_until_ = std::max(closed_until_, now + std::min(pause, kLongestPause));
  };
  switch (outcome) {
    case Outcome::kAnswered:
      failures_ = 0;
      window_ = std::min<double>(options_.most, window_ + 1 / window_);
      break;
    case Outcome::kRefused:
      failures_ = 0;
      close_for(retry_after > absl::ZeroDuration() ? retry_after : kPause);
      return Shrink(running_);
    case Outcome::kCancelled: break;
    case Outcome::kTimedOut:
    case Outcome::kFailed:
      ++failures_;
      if (down()) close_for(kPause * (1 << std::min(failures_ - kDown, 6u)));
      if (outcome == Outcome::kTimedOut) return Shrink(running_);
      break;
  }
  // Of the calls that were under way at the halving, those that were answered are no refusals.
  if (forgiven_ > 0) --forgiven_;
}

void Throttle::Shrink(uint32_t others) {
  if (forgiven_ > 0) return void(--forgiven_);
  window_ = std::max(1.0, window_ / 2);
  forgiven_ = others;
}

}  // namespace sluice
