#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// A fuzz target is a source file that defines these two functions. Built with clang (preset fuzz)
// it is a libFuzzer program. Built with any compiler it is a test that replays its seeds, the
// earlier findings in corpus/<target>/, and some mutations of both.
namespace sluice::fuzz {

// Runs one input. Aborts (SLUICE_CHECK or a sanitizer) if a promise is broken.
void Run(absl::string_view input);

// Returns valid inputs to start from, which the code under test makes.
std::vector<std::string> Seeds();

}  // namespace sluice::fuzz
