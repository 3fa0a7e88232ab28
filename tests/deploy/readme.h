#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The commands that deploy/README.md tells people to type.
namespace sluice::deploy {

// The blocks of code below the heading "## `heading`" of deploy/README.md, in order.
// NOT_FOUND: there is no such heading, or no block below it.
absl::StatusOr<std::vector<std::string>> ReadBlocks(absl::string_view heading);

// The block of "First steps" that applies the Secrets and the overlay `dev`.
// NOT_FOUND: none does, or more than one.
absl::StatusOr<std::string> ReadFirstSteps();

// Runs a block in a shell, as a person does in the root of the repository. `deploy` is the folder
// deploy/ there, `home` the person's home, and `programs` a folder whose programs come before those
// of the PATH. The CLI is that of this build. Returns its stdout.
// INTERNAL: a command of it failed; the message has its stderr.
absl::StatusOr<std::string> RunBlock(const std::string& block, const std::string& deploy,
                                     const std::string& home, const std::string& programs = "");

}  // namespace sluice::deploy
