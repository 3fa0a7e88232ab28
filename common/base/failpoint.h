#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Named places where a test makes a process die, stop or fail. Compiled in only with
// -DSLUICE_FAILPOINTS=ON (presets dev, test, asan, tsan); else SLUICE_FAILPOINT costs nothing.
//
//   SLUICE_FAILPOINT("trainer.step.before_apply");      // kill | stop | abort
//   SLUICE_FAILPOINT_STATUS("queue.log.before_fsync");  // Also error: the function returns
//                                                       // UNAVAILABLE.
//
// Armed by the environment, SLUICE_FAILPOINTS="name=action@n;name2=action@n" (the n-th hit, 1
// unless given), or by the admin call Failpoint. Actions: kill (SIGKILL to itself), stop (SIGSTOP;
// it goes on at SIGCONT), error; an empty one disarms.
//
// Thread-safe.
absl::Status ArmFailpoint(absl::string_view name, absl::string_view action, int nth);
absl::Status HitFailpoint(absl::string_view name);

}  // namespace sluice

#ifdef SLUICE_FAILPOINTS
#define SLUICE_FAILPOINT(name) (void)::sluice::HitFailpoint(name)
#define SLUICE_FAILPOINT_STATUS(name)                                              \
  do {                                                                             \
    if (absl::Status hit_ = ::sluice::HitFailpoint(name); !hit_.ok()) return hit_; \
  } while (false)
#else
#define SLUICE_FAILPOINT(name) (void)0
#define SLUICE_FAILPOINT_STATUS(name) (void)0
#endif
