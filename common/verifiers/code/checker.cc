#include "common/verifiers/code/checker.h"

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/code/literal.h"
#include "nlohmann/json.hpp"

namespace sluice::code {
namespace {

std::string CheckArguments(const std::string& input, const std::string& output,
                           const std::string& expected) {
  return nlohmann::json{input, output, expected}.dump(-1, ' ', false,
                                                      nlohmann::json::error_handler_t::replace);
}

// What the checker said, if it ended well: a number in [0, 1].
std::optional<double> VerdictIn(const TestReport& report) {
  if (report.end != TestReport::End::kExited || report.exit_code != 0 || !report.reported ||
      JsonDepth(report.result) > 2)
    return std::nullopt;
  const nlohmann::json result = nlohmann::json::parse(report.result, nullptr, false);
  if (result.is_boolean()) return result.get<bool>() ? 1 : 0;
  const std::optional<double> number = NumberOf(result);
  if (!number.has_value() || !(*number >= 0 && *number <= 1)) return std::nullopt;
  return number;
}

}  // namespace

absl::StatusOr<std::vector<std::optional<double>>> RunChecker(const std::string& checker,
                                                              const std::vector<Printed>& printed,
                                                              double cpu_seconds,
                                                              const RunCode& run) {
  CodeTask task{.source = checker, .function = "check", .inputs = {}, .cpu_seconds = cpu_seconds};
  // The first one is the checker's own test.
  const Printed& first = printed.front();
  task.inputs.push_back(
      {CodeTask::Kind::kCall, CheckArguments(first.input, first.expected, first.expected)});
  for (const Printed& one : printed) {
    task.inputs.push_back(
        {CodeTask::Kind::kCall, CheckArguments(one.input, one.output, one.expected)});
  }

  std::vector<std::optional<double>> verdicts;
  std::string trouble, stopped;
  const auto take = [&](size_t i, const TestReport& report) {
    const std::optional<double> verdict = VerdictIn(report);
    if (i > 0) {
      verdicts.push_back(verdict);
    } else if (report.end != TestReport::End::kExited) {
      stopped = report.end == TestReport::End::kTimeLimit     ? "it took too long"
                : report.end == TestReport::End::kOutputLimit ? "it printed too much"
                                                              : "it was killed";
    } else if (verdict != 1.0) {
      trouble = absl::StrCat(
          "field `checker` does not accept the output that the first test expects: check() ",
          verdict.has_value()      ? absl::StrCat("returned ", *verdict)
          : !report.err.empty()    ? absl::StrCat("failed: ", Utf8Prefix(report.err, 300))
          : !report.result.empty() ? absl::StrCat("returned ", Utf8Prefix(report.result, 100))
                                   : "gave no result",
          "; wanted: True or 1");
    }
    return trouble.empty() && stopped.empty();
  };
  SLUICE_RETURN_IF_ERROR(run(task, take).status());
  // A busy machine does this too, so it does not say that the row is bad.
  if (!stopped.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "field `checker` came to no end on the output that the first test expects: ", stopped));
  }
  if (!trouble.empty()) return absl::InvalidArgumentError(trouble);
  return verdicts;
}

}  // namespace sluice::code
