#include "common/rpc/cancel.h"

#include <utility>

#include "absl/time/clock.h"

namespace sluice::rpc {

void Cancel::Trigger() {
  MutexLock lock(&mu_);
  if (triggered_) return;
  triggered_ = true;
  for (const auto& [id, callback] : callbacks_) callback();
  callbacks_.clear();
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
    changed_.WaitFor(&mu_, left);
  }
  return true;
}

int64_t Cancel::AddCallback(std::function<void()> callback) {
  MutexLock lock(&mu_);
  const int64_t id = next_id_++;
  if (triggered_) {
    callback();
  } else {
    callbacks_.emplace(id, std::move(callback));
  }
  return id;
}

void Cancel::RemoveCallback(int64_t id) {
  MutexLock lock(&mu_);
  callbacks_.erase(id);
}

}  // namespace sluice::rpc
