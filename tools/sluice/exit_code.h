#pragma once

#include "absl/status/status.h"

namespace sluice::cli {

// The exit codes of the program.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,     // Also if fsck found damage.
  kMisuse = 2,     // The command line or the job file is wrong.
  kJobFailed = 3,  // The job ended as FAILED or CANCELLED.
  kNotAllowed = 4,
  kNotFound = 5,
  kTimeout = 6,
  kUnreachable = 7,
  kConflict = 8,
  kInterrupted = 130,  // Ctrl-C.
};

ExitCode ExitCodeOf(const absl::Status& status);

// Prints `error CODE: message` and the hint on stderr, and returns the exit code.
ExitCode Complain(const absl::Status& status);

}  // namespace sluice::cli
