#include "common/base/watchdog.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {

Watchdog::Loop::Loop(Watchdog* watchdog, std::string name)
    : watchdog_(watchdog), name_(std::move(name)) {
  MutexLock lock(&watchdog_->mu_);
  watchdog_->loops_.insert(this);
}

Watchdog::Loop::~Loop() {
  MutexLock lock(&watchdog_->mu_);
  watchdog_->loops_.erase(this);
}

void Watchdog::Loop::Tick() { Expect(nullptr, watchdog_->limit_); }

void Watchdog::Loop::Begin(const char* what, absl::Duration at_most) { Expect(what, at_most); }

void Watchdog::Loop::Rest() { Expect(nullptr, absl::InfiniteDuration()); }

void Watchdog::Loop::Expect(const char* what, absl::Duration at_most) {
  const absl::Duration now = watchdog_->clock_->Monotonic();
  MutexLock lock(&mu_);
  what_ = what;
  since_ = now;
  at_most_ = at_most;
}

std::string Watchdog::Loop::FindStall(absl::Duration now) const {
  MutexLock lock(&mu_);
  const absl::Duration silence = now - since_;
  if (silence <= at_most_) return "";
  const std::string doing = what_ == nullptr ? "" : absl::StrCat(" (it ", what_, ")");
  return absl::StrCat("the loop '", name_, "' has not moved for ",
                      absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))), doing,
                      "; its limit is ", absl::FormatDuration(at_most_));
}

absl::Status Watchdog::Check() const {
  const absl::Duration now = clock_->Monotonic();
  std::vector<std::string> stalls;
  MutexLock lock(&mu_);
  for (const Loop* loop : loops_) {
    if (std::string stall = loop->FindStall(now); !stall.empty())
      stalls.push_back(std::move(stall));
  }
  if (stalls.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrJoin(stalls, "; "));
}

Watchdog* ProcessWatchdog() {
  static Watchdog* const watchdog = new Watchdog(Clock::Real());
  return watchdog;
}

}  // namespace sluice
