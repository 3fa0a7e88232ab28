#include "common/rpc/cancel.h"

#include <utility>

#include "absl/time/clock.h"

namespace sluice::rpc {

void Cancel::Trigger() {
  MutexLock lock(&mu_);
  if (triggered_) return;
  triggered_ = true;
  for (const auto& [id, end] : ends_) end();
  ends_.clear();
  changed_.NotifyAll();
}

bool Cancel::triggered() const {
  MutexLock lock(&mu_);
  return triggered_;
}

bool Cancel::WaitFor(absl::Duration duration) {
  const absl::Time until = absl::Now() + duration;
  MutexLock lock(&mu_);
  while (!triggered_) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    // A long wait is cut into minutes, because an infinite one overflows the standard library's
    // time.
    changed_.WaitFor(&mu_, std::min(left, absl::Seconds(60)));
  }
  return true;
}

int64_t Cancel::Add(std::function<void()> end) {
  MutexLock lock(&mu_);
  const int64_t id = next_++;
  if (triggered_) {
    end();
  } else {
    ends_.emplace(id, std::move(end));
  }
  return id;
}

void Cancel::Remove(int64_t id) {
  MutexLock lock(&mu_);
  ends_.erase(id);
}

}  // namespace sluice::rpc
