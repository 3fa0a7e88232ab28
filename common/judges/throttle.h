#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace sluice {

// Decides when a call to a judge may begin.
//
// The number of calls under way follows what the judge bears, by additive increase and
// multiplicative decrease, as TCP's window does: it grows by one with each window of answers, and
// is halved when calls are refused as too many, but only once for the calls of one window, because
// they were all begun before the first refusal was known. Beside that there are the operator's
// limits of calls and tokens.
//
// A judge that fails call after call, because it is down or has lost its key, is left alone for a
// while that doubles, and is then asked once. So it uses up no more tries than find that out.
//
// `now` is the time of a monotonic clock. Not thread-safe.
class Throttle {
 public:
  struct Options {
    uint32_t most = 64;  // Calls under way.
    std::optional<double> calls_per_minute;
    std::optional<uint64_t> tokens;  // From the start on.
  };
  enum class Outcome {
    kAnswered,
    kRefused,  // Too many calls (HTTP 429), or a judge that says it is overloaded (503).
    // It took too long: a judge that queues its calls instead of refusing them is overloaded too.
    kTimedOut,
    kCancelled,  // Its caller ended it, which says nothing about the judge.
    kFailed,     // Anything else: it says nothing about the load.
  };

  explicit Throttle(const Options& options);

  // Whether a call may begin. If so, it is under way until End(). If not, *wait is the time after
  // which to ask again; infinite: when a call has ended.
  bool TryBegin(absl::Duration now, absl::Duration* wait);
  // `retry_after` is for how long the judge wants no calls; 0: it does not say.
  void End(absl::Duration now, Outcome outcome, uint64_t tokens,
           absl::Duration retry_after = absl::ZeroDuration());

  // Whether no call may begin before a time, and how long that is.
  bool Closed(absl::Duration now, absl::Duration* wait) const {
    *wait = closed_until_ - now;
    return now < closed_until_;
  }
  // Whether so many calls failed in a row that the judge counts as down.
  bool down() const { return failures_ >= kDown; }
  // Whether all tokens are used up. Calls under way at that moment may exceed the limit.
  bool spent() const { return options_.tokens && used_tokens_ >= *options_.tokens; }
  uint64_t used_tokens() const { return used_tokens_; }
  double window() const { return window_; }
  uint32_t running() const { return running_; }

 private:
  const Options options_;
  double window_;
  uint32_t running_ = 0;
  uint64_t used_tokens_ = 0;
  static constexpr uint32_t kDown = 8;

  void Shrink(uint32_t others);

  uint32_t failures_ = 0;  // In a row.
  // Refused calls that still count for the last halving.
  uint32_t forgiven_ = 0;
  absl::Duration closed_until_ = absl::ZeroDuration();
  // A bucket of calls that fills with calls_per_minute. It holds one second's calls, at least one.
  double calls_ = 0;
  absl::Duration filled_at_ = absl::ZeroDuration();
};

}  // namespace sluice
