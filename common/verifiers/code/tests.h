#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sandbox/code.h"
#include "nlohmann/json.hpp"

namespace sluice::code {

// What a test expects of a program.
struct Expectation {
  enum class Kind {
    kOutput,  // `text` is printed.
    kEqual,   // The result equals `value`.
    kAnyOf,   // The result equals one of the elements of `value`.
    kTrue,    // The result is true for Python, or false.
    kFalse,
    kClose,    // The result is a number within the tolerances of `value`.
    kNoError,  // The statements of the test run to their end.
  };
  Kind kind = Kind::kEqual;
  std::string text;
  nlohmann::json value;  // In the form of literal.h.
  double relative = 0, absolute = 0;
};

struct Test {
  CodeTask::Kind kind = CodeTask::Kind::kStdio;
  std::string input;  // As CodeTask::inputs.
  Expectation expected;
};

struct Tests {
  std::string function;     // Of kCall.
  std::vector<Test> tests;  // At least one.
  // Whether a test runs in the process of the program, which could make it pass: an assertion that
  // could not be taken apart.
  bool forgeable = false;
  // Python code that judges what programs print; empty: it is compared with what is expected. Only
  // with tests of standard input and output.
  std::string checker;
};

// Reads the tests of a row, from its field `answer`:
//   {"inputs": [..], "outputs": [..]}              of standard input and output (APPS, TACO)
//   {"fn_name": "f", "inputs": [[..], ..], "outputs": [..]}   of calls, with lists of arguments
//   [{"input": .., "output": ..}, ..]              the same, one by one; with the row's field
//                                                  fn_name (or func_name) of calls
//   ["assert f(2) == 3", ..]                       assertions (MBPP)
//   a text                                         one of these as JSON, or Python code with
//                                                  assertions (HumanEval: `check`, with the row's
//                                                  field entry_point)
// The row's field `checker`, a text, judges outputs of which several are right (checker.h). Its
// field `setup` (or test_setup_code), a text, runs before assertions. Tests beyond `most`
// are left out.
// INVALID_ARGUMENT: there are none, or they have another form; the message says where.
absl::StatusOr<Tests> ReadTests(const nlohmann::json& row, size_t most);

// Takes an assertion apart, such as `assert f(1, [2]) == (3, 4), "message"`: into an expression
// that only calls the program with literals, and what its result must be. Without an expectation of
// its own, so that the program cannot see it. Nothing: it has another form.
std::optional<Test> TakeApart(absl::string_view assertion);

}  // namespace sluice::code
