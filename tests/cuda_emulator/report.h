#pragma once

#include <string>

namespace sluice::cuda_emulator {

// Returns the source line of the code before the return address `pc`, as file:line, or "?" if the
// program does not know it.
std::string SourceLine(const void* pc);

// Prints `what` and `details` (whole lines), then the place, kernel, block, thread and seed, and
// ends the program with kFaultExitCode.
[[noreturn]] void Fail(const void* pc, const std::string& what, const std::string& details = "");

}  // namespace sluice::cuda_emulator
