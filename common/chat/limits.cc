#include "common/chat/limits.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice::chat {

namespace {
constexpr int64_t kWorkBetweenLooks = 4096;  // About 0.1 ms.
}

Meter::Meter(Clock* clock) : clock_(clock), end_(clock->Monotonic() + kMaxTime), work_(kWorkBetweenLooks) {}

void Meter::CheckTime() {
  work_ = kWorkBetweenLooks;
  if (clock_->Monotonic() > end_) Exceeded(absl::StrCat("the template ran longer than ", absl::FormatDuration(kMaxTime)));
}

void Meter::Invalid(absl::string_view what) const { throw Failure{absl::StatusCode::kInvalidArgument, at, std::string(what)}; }
void Meter::Unsupported(absl::string_view what) const {
  throw Failure{absl::StatusCode::kUnimplemented, at, absl::StrCat(what, " is not supported")};
}
void Meter::Exceeded(absl::string_view what) const { throw Failure{absl::StatusCode::kResourceExhausted, at, std::string(what)}; }
void Meter::TooDeep() const { Exceeded(absl::StrCat("a value is nested deeper than ", kMaxDepth)); }
void Meter::OutOfSteps() const { Exceeded(absl::StrCat("the template took more than ", kMaxSteps, " steps")); }
void Meter::OutOfText() const { Exceeded(absl::StrCat("the template made more than ", kMaxTextBytes, " bytes of text")); }

}  // namespace sluice::chat
