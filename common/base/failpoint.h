#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Failpoints: named places in the code where a test makes the process die, stop or fail. They act
// only in builds with -DSLUICE_FAILPOINTS=ON (presets dev, test, asan, tsan, fuzz). Elsewhere
// nothing can arm them, and the macros cost a call that returns at once. Only failpoint.cc is
// compiled differently, so the code that is tested is the code that is shipped.
//
//   SLUICE_FAILPOINT("trainer.step.before_apply");         // Actions: kill, stop, hang.
//   SLUICE_FAILPOINT_STATUS("wal.segment.rename.before");  // Also error: the function around it
//                                                          // returns UNAVAILABLE.
//
// A failpoint is armed by the environment, SLUICE_FAILPOINTS="name=action@n;name2=action@n", or by
// the admin call Failpoint. It acts at its n-th hit (1 unless given), once. A process ends with a
// message if the environment names an unknown action.
//
// Actions: kill (the process sends itself SIGKILL), stop (SIGSTOP; it continues after SIGCONT),
// hang (the thread goes no further), error.
//
// Thread-safe.

// Whether this build has failpoints.
extern const bool kHasFailpoints;

// Arms `name` with `action` for its `nth` hit; a value below 1 counts as 1. An empty action disarms
// it.
// INVALID_ARGUMENT: no such action.
// UNIMPLEMENTED: this build has no failpoints.
absl::Status ArmFailpoint(absl::string_view name, absl::string_view action, int nth);
// Counts a hit of `name`, and carries out the action if it is due. The macros call it. Other code
// calls it to inject a fault of its own kind, such as a flipped bit, when the action `error` is
// due. It returns OK if the build has no failpoints.
// UNAVAILABLE, reason FAILPOINT: the action `error` was due.
absl::Status HitFailpoint(absl::string_view name);

}  // namespace sluice

#define SLUICE_FAILPOINT(name) (void)::sluice::HitFailpoint(name)
#define SLUICE_FAILPOINT_STATUS(name)                                              \
  do {                                                                             \
    if (absl::Status hit_ = ::sluice::HitFailpoint(name); !hit_.ok()) return hit_; \
  } while (false)
