#include "common/collective/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice {

absl::Status LocalRendezvous::Set(const std::string& key, const std::string& value) {
  MutexLock lock(&mu_);
  values_[key] = value;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocalRendezvous::Get(const std::string& key, absl::Duration timeout) {
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  while (true) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    const absl::Duration left = end - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no rank has set ", key, " within ", absl::FormatDuration(timeout)));
    }
    changed_.WaitFor(&mu_, left);
  }
}

}  // namespace sluice
