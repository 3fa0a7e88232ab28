#include "common/collective/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice {

absl::Status LocalRendezvous::Set(const std::string& key, const std::string& value) {
  MutexLock lock(&mu_);
  const auto former = values_.find(key);
  const size_t others =
      bytes_ - (former == values_.end() ? 0 : former->first.size() + former->second.size());
  const size_t bytes = key.size() + value.size();
  if (bytes > max_bytes_ - others) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks have left ", others, " bytes here, and the limit is ", max_bytes_));
  }
  bytes_ = others + bytes;
  values_[key] = value;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocalRendezvous::Get(const std::string& key, absl::Duration timeout) {
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  while (true) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    if (closed_) return absl::CancelledError("the ranks do not meet any more");
    const absl::Duration left = end - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no rank has set ", key, " within ", absl::FormatDuration(timeout)));
    }
    changed_.WaitFor(&mu_, left);
  }
}

void LocalRendezvous::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace sluice
