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

// A wait of this daemon, or long work of its own that others may wait for.
struct Wait {
  // What it waits for. `kind`: STEP, BATCH, CALL, STORE, .., a NodeKind of the proto files without
  // its prefix. `at`: the daemon or role that knows more about it.
  std::string kind, id, at;
  std::string cause;  // A sentence about the daemon, such as "trainer-0 trains batch 75".
  std::string next;   // What happens next without a person. Empty: nothing.
  int64_t step = -1;  // In a trainer: the step that waits. -1: the daemon waits.
};

// What a daemon waits for now, for the admin call Explain. Each wait is added where it begins, and
// removed when its scope ends.
//
// Thread-safe.
class Waits {
 public:
  // `daemon` is the daemon's id. `clock` outlives this object.
  explicit Waits(std::string daemon, Clock* clock = Clock::Real())
      : daemon_(std::move(daemon)), clock_(clock) {}
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

  // Ends its wait when it is destroyed. The Waits object must outlive it.
  class [[nodiscard]] Scope {
   public:
    ~Scope();
    Scope(Scope&& other) noexcept : waits_(std::exchange(other.waits_, nullptr)), id_(other.id_) {}
    Scope& operator=(Scope&&) = delete;

   private:
    friend class Waits;
    Scope(Waits* waits, uint64_t id) : waits_(waits), id_(id) {}
    Waits* waits_;  // Null after a move.
    uint64_t id_;
  };

  // Adds a wait. Aborts later, in Edges(), if `wait.kind` is not a NodeKind.
  Scope Begin(Wait wait) ABSL_LOCKS_EXCLUDED(mu_);
  // One edge for each wait, oldest first.
  std::vector<common::v1::WaitEdge> Edges() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Wait wait;
    absl::Duration since;  // Monotonic time of its beginning.
  };
  void End(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string daemon_;
  Clock* const clock_;
  mutable Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;                  // The newest id.
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);  // By id, which rises: oldest first.
};

// The edge for a wait whose beginning is not known: `since` is unset.
common::v1::WaitEdge MakeWaitEdge(const std::string& daemon, const Wait& wait);

}  // namespace sluice::daemon
