#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/spec_problems.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice {
struct ModelConfig;

// Bytes that the queue reserves for one token of a job: its id, its log-probability, and its share
// of runs, messages and task fields; the ids of its experts in a mixture-of-experts model; and a
// row of the field answer_ends in a job that rewards single tokens. A model that is not known
// (null) counts as one without experts.
uint32_t QueueTokenBytes(const job::v1::JobSpec& spec, const ModelConfig* model);

// What CheckJobSpec() looks at besides the spec itself.
struct SpecCheckOptions {
  bool check_files = true;  // Check the files and directories that the job reads.
  // A missing file is an error. False: this host may be unable to see the files; a missing one is
  // then left to the daemons that read it.
  bool files_must_exist = true;
};

struct SpecCheck {
  // Reasons why the job cannot run as written. Empty: it may start.
  std::vector<SpecProblem> errors;
  // Values that work but are probably a mistake. Only filled in if there are no errors.
  std::vector<SpecProblem> warnings;
};

// The full check of a job's spec. `sluice config validate` runs it after reading the file, and the
// controller runs it on every submitted job. Nothing else decides whether a job may start.
SpecCheck CheckJobSpec(const job::v1::JobSpec& spec, const SpecCheckOptions& options = {});

// Runs only the first part of CheckJobSpec(), which checks each value by itself and not how values
// fit together.
SpecCheck CheckSingleValues(const job::v1::JobSpec& spec);

// Calls `visit` with each path that the spec sets: its key, the path, and whether the job writes
// below it.
void VisitPaths(const job::v1::JobSpec& spec,
                const std::function<void(const std::string& key, const std::string& path,
                                         bool written)>& visit);

// Checks what each daemon that works for a job must decide itself, because it may be of another
// build than the controller that accepted the job, and has roots of its own. Unset blocks are not
// checked.
// UNIMPLEMENTED: this build lacks features that the spec asks for; the message names them.
// PERMISSION_DENIED OUTSIDE_ROOTS: a path that the job reads, or with `writes` also one that it
// writes, is outside of the roots of this process.
absl::Status CheckOnDaemon(const job::v1::JobSpec& spec, bool writes = false);

}  // namespace sluice
