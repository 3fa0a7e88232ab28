#pragma once

#include <cstdint>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::rpc {

// Ends calls, streams and back-off waits from another thread, all at once and for good: a daemon
// that drains cancels its parked calls. Thread-safe; outlives the calls it was given to.
class Cancel {
 public:
  // Ends what runs under this token, and whatever starts under it later, with CANCELLED.
  // Idempotent.
  void Trigger() ABSL_LOCKS_EXCLUDED(mu_);
  bool triggered() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits `duration`; true as soon as triggered.
  bool WaitFor(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_);

  // `end` runs once triggered: at once if it is by now, else on the triggering thread, under the
  // token's lock: it must only signal. Not after Remove() has returned.
  int64_t Add(std::function<void()> end) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool triggered_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::function<void()>> ends_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rpc
