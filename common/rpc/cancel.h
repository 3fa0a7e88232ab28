#pragma once

#include <cstdint>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::rpc {

// Ends calls, streams and back-off waits from another thread, all at once and for good. A daemon
// that drains uses it to cancel its parked calls.
//
// Thread-safe. Must outlive the calls that it was given to.
class Cancel {
 public:
  // Ends everything that uses this token, now or later, with CANCELLED. Idempotent.
  void Trigger() ABSL_LOCKS_EXCLUDED(mu_);
  bool triggered() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for `duration`, or until Trigger() is called. Returns true if triggered.
  bool WaitFor(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_);

  // Registers `callback`, which runs when Trigger() is called, on the triggering thread. If the
  // token is triggered already, it runs at once. It runs under the token's lock, so it must only
  // signal.
  //
  // Once RemoveCallback() has returned, `callback` is not running and will not run.
  int64_t AddCallback(std::function<void()> callback) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveCallback(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool triggered_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rpc
