#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// A fuzz target is one source file that defines these two. Built with clang (preset fuzz) it is a
// libFuzzer program; built with any compiler it is a test that replays its seeds, what
// corpus/<target>/ keeps of earlier findings, and some mutations of both.
namespace sluice::fuzz {

// Feeds one input; aborts (SLUICE_CHECK, a sanitizer) where a promise is broken.
void Run(absl::string_view input);

// Valid inputs to start from, made by the code under test.
std::vector<std::string> Seeds();

}  // namespace sluice::fuzz
