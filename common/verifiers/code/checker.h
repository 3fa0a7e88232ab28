#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sandbox/code.h"

namespace sluice::code {

// What a program printed in a test of standard input and output.
struct Printed {
  std::string input, output, expected;
};

// Has the row's checker judge what a program printed. `checker` is Python code that defines
// check(input, output, expected), with texts; it returns True or False, or a number in [0, 1]. It
// runs in a sandbox of its own, which the program never enters, so the program sees neither the
// checker nor what it expects. One element for each of `printed`; nothing: the checker has failed
// on it (an error, a limit, another result), which counts as wrong, as else a policy could make its
// answers unscorable.
//
// INVALID_ARGUMENT: the checker does not accept the output that the row's first test expects; so it
// is the row that is at fault. UNAVAILABLE: there it was stopped, by a limit or a signal. Other
// errors are those of RunCode. `printed` is not empty.
absl::StatusOr<std::vector<std::optional<double>>> RunChecker(const std::string& checker,
                                                              const std::vector<Printed>& printed,
                                                              double cpu_seconds,
                                                              const RunCode& run);

}  // namespace sluice::code
