#include "common/chat/limits.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice::chat {

namespace {

constexpr int64_t kWorkBetweenClockReads = 4096;  // Takes about 0.1 ms.

class ThreadCpu : public Clock {
 public:
  absl::Time Now() override { return Clock::Real()->Now(); }
  absl::Duration Monotonic() override {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return absl::DurationFromTimespec(used);
  }
  void Sleep(absl::Duration duration) override { Clock::Real()->Sleep(duration); }
};

}  // namespace

Clock* ThreadCpuClock() {
  static ThreadCpu* const clock = new ThreadCpu;
  return clock;
}

Meter::Meter(Clock* clock) : clock_(clock), work_left_(kWorkBetweenClockReads) {}

void Meter::CheckTime() {
  work_left_ = kWorkBetweenClockReads;
  const absl::Duration now = clock_->Monotonic();
  if (begin_ == absl::InfiniteDuration()) begin_ = now;
  if (now - begin_ <= kMaxTime) return;
  Exceeded(absl::StrCat("the template ran for ", absl::FormatDuration(now - begin_),
                        " of CPU time, longer than ", absl::FormatDuration(kMaxTime)));
}

void Meter::Invalid(absl::string_view what) const {
  throw Failure{absl::StatusCode::kInvalidArgument, at, std::string(what)};
}
void Meter::Unsupported(absl::string_view what) const {
  throw Failure{absl::StatusCode::kUnimplemented, at, absl::StrCat(what, " is not supported")};
}
void Meter::Exceeded(absl::string_view what) const {
  throw Failure{absl::StatusCode::kResourceExhausted, at, std::string(what)};
}
void Meter::TooDeep() const { Exceeded(absl::StrCat("a value is nested deeper than ", kMaxDepth)); }
void Meter::OutOfSteps() const {
  Exceeded(absl::StrCat("the template took more than ", kMaxSteps, " steps"));
}
void Meter::OutOfText() const {
  Exceeded(absl::StrCat("the template made more than ", kMaxTextBytes, " bytes of text"));
}

}  // namespace sluice::chat
