#pragma once

#include <string>

namespace sluice::cuda_emulator {

// Where the code before the return address `pc` was written, as file:line; "?" where the program
// does not know.
std::string SourceLine(const void* pc);

// Prints `what` and `details` (whole lines), then place, kernel, block, thread and seed, and ends
// the program with kFaultExitCode.
[[noreturn]] void Fail(const void* pc, const std::string& what, const std::string& details = "");

}  // namespace sluice::cuda_emulator
