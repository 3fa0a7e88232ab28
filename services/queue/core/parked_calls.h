#pragma once

#include <cstdint>
#include <list>
#include <utility>
#include <variant>

#include "services/queue/core/event.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The calls that wait in the core until there is something to answer: for work, for tasks, for a
// batch. They are served oldest first.
class ParkedCalls {
 public:
  using Input = std::variant<Admit, LeaseTasks, AcquireBatch>;
  struct Call {
    uint64_t call = 0;
    Caller caller;
    Instant since, deadline;
    Input input;
  };

  // Adds a call behind all others. It waits for `wait`, but 30 s at most.
  void Add(uint64_t call, const Caller& caller, absl::Duration wait, Input input, Instant now);

  // Calls bool serve(const Call&) for each call, oldest first, and removes those for which it
  // returns true. Returns whether there was one. `serve` does not change the parked calls.
  template <typename F>
  bool RemoveIf(F serve) {
    bool removed = false;
    for (auto it = calls_.begin(); it != calls_.end();) {
      const bool served = serve(std::as_const(*it));
      removed |= served;
      it = served ? calls_.erase(it) : std::next(it);
    }
    return removed;
  }
  void Clear() { calls_.clear(); }

  // Whether this is the same request as that of `call`, sent again.
  static bool IsSameRequest(const Call& call, const Caller& caller, const Input& input);

  const std::list<Call>& calls() const { return calls_; }
  bool WaitsForBatch(int64_t k) const;
  // The first deadline; infinite if no call waits.
  Instant NextDeadline() const;

 private:
  friend struct Access;  // dump.cc

  std::list<Call> calls_;  // Oldest first.
};

}  // namespace sluice::queue
