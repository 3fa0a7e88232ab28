#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"
#include "common/weights/staged.h"

namespace sluice {
class Clock;

// Follows the trainer's `latest` for one engine: watches, fetches what is missing, checks every
// object, and hands over versions ready for activation. What is being fetched is fetched to its
// end, then the newest: versions that come faster than they can be fetched would else never arrive.
// A broken connection is taken up again with back-off; a new address (trainer restarted elsewhere),
// by SetSource(), ends at once what goes on with the old one.
//
// An announcement below the highest version announced so far, as a trainer makes that was replaced
// and does not know it, is not followed. A version that could not be fetched, or that the engine
// refused, is tried again with back-off; a newer one at once.
//
// Owns two threads: one follows `latest`, the other fetches and calls `on_staged`. Thread-safe.
class WeightSubscriber {
 public:
  struct Options {
    std::string job;     // 32 hex digits.
    std::string worker;  // This daemon's id.
    int64_t incarnation = 0;
    std::string policy = "policy";
    Clock* clock = nullptr;  // Of the back-off. Null: the machine's. Outlives the subscriber.
  };
  // Called with each version that is ready. Must not block for long: hands it to the step thread.
  // The subscriber offers no further version until Activated() or Refused() answered this one.
  using OnStaged = std::function<void(StagedWeights staged)>;

  // `layout`: names, types and shapes that every version must have. `held`: what the engine starts
  // with (number 0 of the initial checkpoint, version unset until the trainer's `latest` names the
  // same state).
  WeightSubscriber(Options options, const TensorSet& layout, Fingerprint held, OnStaged on_staged);
  ~WeightSubscriber();  // Stops and joins.

  // HOST:PORT of the trainer; empty: none for now.
  void SetSource(const std::string& address);

  // The engine serves `version` from its next token; `pause` is how long no token was sampled.
  void Activated(PolicyVersion version, Fingerprint state, absl::Duration pause);
  // The engine found that it held other bits, and keeps what it had: the version is fetched again,
  // every object anew, after a back-off.
  void Refused(PolicyVersion version, const std::string& cause, const std::string& tensor);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
