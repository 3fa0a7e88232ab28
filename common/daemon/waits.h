#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice::common::v1 {
class WaitEdge;
}  // namespace sluice::common::v1

namespace sluice::daemon {

// A wait, or long work that others may wait for.
struct Wait {
  // What it is on. `kind`: STEP, BATCH, CALL, STORE, .. as in the contracts; `at`: the daemon, or
  // role, that knows it.
  std::string kind, id, at;
  std::string cause;  // A sentence about the daemon: "trainer-0 trains batch 75".
  std::string next;   // What comes by itself. Empty: nothing does.
  int64_t step = -1;  // Of a trainer: the step that waits.
};

// What a daemon waits for at this moment, for Explain: each wait is noted where it begins and gone
// when its scope ends.
//
// Thread-safe.
class Waits {
 public:
  // `daemon`: its id. `clock` outlives the waits.
  explicit Waits(std::string daemon, Clock* clock = Clock::Real())
      : daemon_(std::move(daemon)), clock_(clock) {}
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  // Ends its wait when it goes. The waits outlive their scopes.
  class [[nodiscard]] Scope {
   public:
    ~Scope();
    Scope(Scope&& other) noexcept : waits_(std::exchange(other.waits_, nullptr)), id_(other.id_) {}
    Scope& operator=(Scope&&) = delete;

   private:
    friend class Waits;
    Scope(Waits* waits, uint64_t id) : waits_(waits), id_(id) {}
    Waits* waits_;  // Null: moved from.
    uint64_t id_;
  };

  Scope Begin(Wait wait) ABSL_LOCKS_EXCLUDED(mu_);
  // One edge for each, oldest first.
  std::vector<common::v1::WaitEdge> Edges() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Wait wait;
    absl::Duration since;  // Monotonic.
  };
  void End(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string daemon_;
  Clock* const clock_;
  mutable Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);  // In the order they began.
};

// An edge for what a daemon is at without a beginning of its own: `since` is unset.
common::v1::WaitEdge OwnEdge(const std::string& daemon, const Wait& wait);

}  // namespace sluice::daemon
