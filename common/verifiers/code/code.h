#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// Runs the program of the answer, the last fenced block of the language, on the tests of the row
// (tests.h says how a row gives them). What the tests expect never enters the sandbox.
//
//   language     python | cpp (python)  cpp: standard input and output alone
//   extract      fenced | whole (fenced)   whole: all that follows the thinking is the program
//   score        all | fraction (all)   1 if all tests pass, else 0; or the share that passes
//   float_tol    0..1 (0)               decimals and floats may differ by as much
//   cpu_seconds  0.1..600 (6)           most CPU time of a test
//   max_tests    1..100 (100)           tests of a row beyond it are left out
//
// The reason of a verdict is right, no_code, unfinished, compile_error, or that of the first test
// that failed: wrong, runtime_error (a non-zero exit code, or a crash), time_limit, output_limit,
// killed, no_report (it ended before the test did), checker_failed (the row's checker did, on what
// the program printed). It is right_forgeable if all passed, but the program could have cheated
// (Tests::forgeable).
//
// Score() runs programs for seconds. Its errors beside INVALID_ARGUMENT (the row has no tests that
// can be read) are those of RunCode, and FAILED_PRECONDITION: this process has no sandboxes.
absl::StatusOr<std::unique_ptr<Verifier>> MakeCode(const nlohmann::json& args,
                                                   const VerifierContext& context);

}  // namespace sluice
