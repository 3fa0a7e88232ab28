#pragma once

#include "common/config/bind.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice::config {

// Required values that are missing (0009).
void CheckRequired(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems);
// What this build refuses by name (0013): known, but not built.
void CheckBuilt(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems);
// Rules across values (0010, 0011) and of single ones that no bound expresses.
void CheckRules(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems);
// Files and directories that the job reads (0012).
void CheckPaths(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems);

}  // namespace sluice::config
