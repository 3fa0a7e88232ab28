#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/config/spec_problems.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice {

// The full check of a job's spec: what `sluice config validate` does once it has read the file, and
// what the controller does with what any client submits. Nothing else decides whether a job may
// start.
struct SpecCheckOptions {
  bool check_files = true;       // Look at the files and directories that the job reads.
  bool files_must_exist = true;  // False: this host need not see them; one that is not here is left
                                 // to those who read it.
};

struct SpecCheck {
  std::vector<SpecProblem> errors;  // The job cannot do what it says. Empty: it may start.
  std::vector<SpecProblem>
      warnings;  // It can, and the value is hardly meant. Looked for only where there is no error.
};

SpecCheck CheckJobSpec(const job::v1::JobSpec& spec, const SpecCheckOptions& options = {});

// Its first part alone: each value by itself, not how they go together.
SpecCheck CheckSingleValues(const job::v1::JobSpec& spec);

// UNIMPLEMENTED: the spec asks for what this build does not have, all of it by name. For daemons,
// which may be of another build than the controller that took the job. Blocks that are not there
// are not looked at.
absl::Status CheckBuilt(const job::v1::JobSpec& spec);

}  // namespace sluice
