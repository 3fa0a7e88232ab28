#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace sluice::sandbox {

// A Landlock ruleset under which a process may read /usr, what lies behind the O_PATH descriptors
// `readable`, and a few devices, and may change only what lies below `box`. Where the kernel can,
// it also forbids signals to processes outside of the sandbox.
// FAILED_PRECONDITION: the kernel has no Landlock.
// Other errors: a path cannot be opened.
absl::StatusOr<Fd> MakeLandlockRuleset(const std::vector<int>& readable, const std::string& box);

}  // namespace sluice::sandbox
