#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

// What one RunCode takes at most beside the time of its tests: the wait for its turn among the
// programs of all jobs, and the compiler.
inline constexpr absl::Duration kLongestTurn = absl::Minutes(2);
inline constexpr absl::Duration kLongestCompile = absl::Seconds(30);

// A program of the policy, and what it is to be run with. What the tests expect is not part of it:
// expected outputs never enter a sandbox.
struct CodeTask {
  enum class Language { kPython, kCpp };
  // What is done with the input of a test. C++ programs have kStdio alone.
  enum class Kind {
    kStdio,   // The program reads it from its standard input and prints its answer.
    kCall,    // A JSON list: the arguments of a call of `function`.
    kExpr,    // A Python expression, which is evaluated after the program.
    kAssert,  // Python statements, which run after the program and raise what fails.
  };
  Language language = Language::kPython;
  struct Input {
    Kind kind = Kind::kStdio;
    std::string text;
  };
  std::string source;
  std::string function;       // kCall. A method of a class Solution may also have this name.
  std::vector<Input> inputs;  // One for each test.
  double cpu_seconds = 6;     // Most CPU time of a test.
  absl::Duration compile_time = kLongestCompile;
};
// The kind as the driver of a sandbox calls it.
inline const char* NameOfKind(CodeTask::Kind kind) {
  switch (kind) {
    case CodeTask::Kind::kStdio: return "stdio";
    case CodeTask::Kind::kCall: return "call";
    case CodeTask::Kind::kExpr: return "expr";
    case CodeTask::Kind::kAssert: return "assert";
  }
  return "";
}

// What a program did in one test.
struct TestReport {
  enum class End {
    kExited,       // With exit_code.
    kKilled,       // By a signal, such as that of a crash or of too much memory.
    kTimeLimit,    // It used more than its CPU time, or ran longer than it may.
    kOutputLimit,  // It printed more than it may.
  };
  End end = End::kExited;
  int exit_code = 0;
  double cpu_seconds = 0;  // Of all its processes.
  std::string out;         // What it printed.
  std::string err;         // The end of its standard error, at most 8 KiB.
  // kCall, kExpr: its result (see driver.py), kAssert: empty. Only valid if `reported`.
  std::string result;
  // It came to the end of the test and said so once, with the word that only this test knows.
  bool reported = false;
};

struct CodeOutcome {
  bool compiled = true;       // Python programs are not compiled ahead.
  std::string compiler_says;  // If not compiled: the end of its messages, at most 8 KiB.
};

// Runs the tests in order, each in a fresh process, and passes each report to `take`, which says
// whether to go on. What the program does, including crashes, limits and attacks on its sandbox, is
// in the reports.
// INVALID_ARGUMENT: the program or an input is too large for the sandboxes.
// UNAVAILABLE: the sandbox failed. RESOURCE_EXHAUSTED: all sandboxes are in use.
// CANCELLED: the work ends. None of them says anything about the program.
using RunCode = std::function<absl::StatusOr<CodeOutcome>(
    const CodeTask& task, const std::function<bool(size_t test, const TestReport&)>& take)>;

}  // namespace sluice
