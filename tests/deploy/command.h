#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::deploy {

// Runs a command, whose first word is a program of the PATH or a path, and returns its stdout.
// INTERNAL: it ended with another exit code than 0; the message has its stderr.
// NOT_FOUND: there is no such program.
absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& env = {},
                                       absl::Duration timeout = absl::Minutes(2));

// A new folder, which is removed when this process ends.
absl::StatusOr<std::string> MakeTempDir();

}  // namespace sluice::deploy
