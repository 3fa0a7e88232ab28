#include "common/verifiers/code/code.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"
#include "common/verifiers/code/checker.h"
#include "common/verifiers/code/fence.h"
#include "common/verifiers/code/literal.h"
#include "common/verifiers/code/output.h"
#include "common/verifiers/code/tests.h"

namespace sluice {
namespace {

using code::Expectation;
using End = TestReport::End;

// A result that is nested more deeply equals no gold.
constexpr size_t kMaxResultDepth = 1000;

class Code : public Verifier {
 public:
  struct Options {
    CodeTask::Language language = CodeTask::Language::kPython;
    bool fraction = false;
    bool whole = false;  // The answer is the program, and has no fences.
    double float_tol = 0;
    double cpu_seconds = 6;
    size_t max_tests = 100;
  };
  Code(const Options& options, RunCode run) : options_(options), run_(std::move(run)) {}

  absl::Status CheckRow(const nlohmann::json& row) const override { return Read(row).status(); }

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const code::Tests tests, Read(row));
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    const std::optional<std::string> source =
        options_.whole ? std::string(text) : code::LastBlock(text, options_.language);
    if (!source.has_value()) return Verdict{.reason = "no_code"};
    if (run_ == nullptr) {
      return absl::FailedPreconditionError(
          "this process has no sandboxes, so it cannot run programs");
    }

    CodeTask task{.language = options_.language,
                  .source = *source,
                  .function = tests.function,
                  .cpu_seconds = options_.cpu_seconds};
    for (const code::Test& test : tests.tests) task.inputs.push_back({test.kind, test.input});
    if (!tests.checker.empty()) return ScoreByChecker(tests, task);
    size_t passed = 0;
    std::string reason = tests.forgeable ? "right_forgeable" : "right";
    bool failed = false;
    SLUICE_ASSIGN_OR_RETURN(const CodeOutcome outcome,
                            run_(task, [&](size_t i, const TestReport& report) {
                              const std::string result = Judge(tests.tests[i], report);
                              if (result == "right") {
                                ++passed;
                              } else if (!std::exchange(failed, true)) {
                                reason = result;
                              }
                              return !failed || options_.fraction;
                            }));
    if (!outcome.compiled) return Verdict{.reason = "compile_error"};
    return VerdictFor(static_cast<double>(passed), tests, std::move(reason));
  }

 private:
  absl::StatusOr<code::Tests> Read(const nlohmann::json& row) const {
    SLUICE_ASSIGN_OR_RETURN(code::Tests tests, code::ReadTests(row, options_.max_tests));
    const bool stdio =
        std::all_of(tests.tests.begin(), tests.tests.end(),
                    [](const code::Test& test) { return test.kind == CodeTask::Kind::kStdio; });
    if (options_.language == CodeTask::Language::kCpp && !stdio) {
      return absl::InvalidArgumentError(
          "the tests call functions of Python; programs of cpp need tests of standard input and "
          "output");
    }
    return tests;
  }

  // `passed`: how many tests; a checker may also let a part of a test pass.
  Verdict VerdictFor(double passed, const code::Tests& tests, std::string reason) const {
    const double all = static_cast<double>(tests.tests.size());
    const double score = options_.fraction ? passed / all : passed == all ? 1 : 0;
    return {.score = score, .reason = std::move(reason)};
  }

  // First the program runs on all tests, then the checker on all that it printed.
  absl::StatusOr<Verdict> ScoreByChecker(const code::Tests& tests, const CodeTask& task) const {
    std::vector<code::Printed> printed;
    std::string reason = "right";
    SLUICE_ASSIGN_OR_RETURN(const CodeOutcome outcome,
                            run_(task, [&](size_t i, const TestReport& report) {
                              const code::Test& test = tests.tests[i];
                              const std::string why = WhyNoOutput(report);
                              if (why.empty())
                                printed.push_back({test.input, report.out, test.expected.text});
                              else if (reason == "right") reason = why;
                              return why.empty() || options_.fraction;
                            }));
    if (!outcome.compiled) return Verdict{.reason = "compile_error"};
    const bool all_failed = printed.empty() || (reason != "right" && !options_.fraction);
    if (all_failed) return Verdict{.reason = reason};

    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::optional<double>> verdicts,
                            code::RunChecker(tests.checker, printed, options_.cpu_seconds, run_));
    double passed = 0;
    for (const std::optional<double>& verdict : verdicts) {
      passed += verdict.value_or(0);
      if (verdict == 1.0 || reason != "right") continue;
      reason = verdict.has_value() ? "wrong" : "checker_failed";
    }
    return VerdictFor(passed, tests, std::move(reason));
  }

  // Why the program came to no output. Empty: it ended well.
  static std::string WhyNoOutput(const TestReport& report) {
    switch (report.end) {
      case End::kTimeLimit: return "time_limit";
      case End::kOutputLimit: return "output_limit";
      case End::kKilled: return "killed";
      case End::kExited: break;
    }
    return report.exit_code == 0 ? "" : "runtime_error";
  }

  // "right", or why the test failed.
  std::string Judge(const code::Test& test, const TestReport& report) const {
    if (std::string why = WhyNoOutput(report); !why.empty()) return why;
    const Expectation& expected = test.expected;
    if (expected.kind == Expectation::Kind::kOutput)
      return code::SameOutput(report.out, expected.text, options_.float_tol) ? "right" : "wrong";
    if (!report.reported) return "no_report";
    if (expected.kind == Expectation::Kind::kNoError)
      return report.result.empty() ? "right" : "no_report";
    if (JsonDepth(report.result) > kMaxResultDepth) return "wrong";
    const nlohmann::json result = nlohmann::json::parse(report.result, nullptr, false);
    // More than one report is none.
    if (result.is_discarded()) return "no_report";
    return Meets(result, expected) ? "right" : "wrong";
  }

  bool Meets(const nlohmann::json& result, const Expectation& expected) const {
    switch (expected.kind) {
      case Expectation::Kind::kTrue: return code::IsTruthy(result);
      case Expectation::Kind::kFalse: return !code::IsTruthy(result);
      case Expectation::Kind::kAnyOf:
        return std::any_of(expected.value.begin(), expected.value.end(),
                           [&](const nlohmann::json& gold) {
                             return code::Equal(result, gold, options_.float_tol);
                           });
      case Expectation::Kind::kClose: return IsClose(result, expected);
      default: return code::Equal(result, expected.value, options_.float_tol);
    }
  }

  // As math.isclose() of Python.
  static bool IsClose(const nlohmann::json& result, const Expectation& expected) {
    const std::optional<double> a = code::NumberOf(result), b = code::NumberOf(expected.value);
    if (!a.has_value() || !b.has_value()) return false;
    return std::abs(*a - *b) <=
           std::max(expected.relative * std::max(std::abs(*a), std::abs(*b)), expected.absolute);
  }

  const Options options_;
  const RunCode run_;
};

// The word of an argument as a truth value: whether it is `yes`.
absl::StatusOr<bool> IsWord(const std::string& owner, const std::string& word,
                            const std::string& yes, const std::string& no) {
  if (word == yes || word == no) return word == yes;
  return absl::InvalidArgumentError(
      absl::StrCat("code: args.", owner, " is \"", word, "\"; ", no, " or ", yes, " is needed"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeCode(const nlohmann::json& args,
                                                   const VerifierContext& context) {
  ArgReader reader("code", args);
  const std::string language = reader.String("language", "python");
  const std::string extract = reader.String("extract", "fenced");
  const std::string score = reader.String("score", "all");
  Code::Options options{.float_tol = reader.Number("float_tol", 0, 0, 1),
                        .cpu_seconds = reader.Number("cpu_seconds", 6, 0.1, 600),
                        .max_tests = static_cast<size_t>(reader.Integer("max_tests", 100, 1, 100))};
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  SLUICE_ASSIGN_OR_RETURN(const bool cpp, IsWord("language", language, "cpp", "python"));
  if (cpp) options.language = CodeTask::Language::kCpp;
  SLUICE_ASSIGN_OR_RETURN(options.whole, IsWord("extract", extract, "whole", "fenced"));
  SLUICE_ASSIGN_OR_RETURN(options.fraction, IsWord("score", score, "fraction", "all"));
  return std::make_unique<Code>(options, context.run_code);
}

}  // namespace sluice
