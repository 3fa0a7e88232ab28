#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/run_code/client.h"
#include "nlohmann/json.hpp"

namespace sluice::sandbox {
extern const absl::string_view solution_py;  // solution.py
}  // namespace sluice::sandbox

namespace sluice::run_code {
namespace {

// After so many tests that used up their time a program is not run any more.
constexpr int kMostTimeLimits = 2;
constexpr size_t kKeptErrors = 8192;
// Exit codes from here on are those that a shell gives to programs that a signal ends.
constexpr int64_t kBySignal = 128;

// What follows solution.py: it reads the task from its standard input, runs the test, and writes
// the result in a line of its own, after a word that only this test knows. It keeps a descriptor,
// in case that the program closes its own.
constexpr char kMain[] = R"(
def main():
    import os
    task = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    report = run_solution(task["source"], task["kind"], task["input"], task["function"])
    sys.stdout.flush()
    line = memoryview(b"\n" + task["nonce"].encode() + report + b"\n")
    while line:
        line = line[os.write(out, line):]


main()
)";

// The program to be sent for a test, and what it reads.
std::pair<std::string, std::string> ProgramOf(const CodeTask& task, const CodeTask::Input& input,
                                              const std::string& nonce) {
  if (input.kind == CodeTask::Kind::kStdio) return {task.source, input.text};
  const nlohmann::json json = {{"source", task.source},
                               {"kind", NameOfKind(input.kind)},
                               {"input", input.text},
                               {"function", task.function},
                               {"nonce", nonce}};
  return {absl::StrCat(sandbox::solution_py, kMain),
          json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

// Takes the line with the result out of what the program printed.
void TakeResult(const std::string& nonce, TestReport* report) {
  const std::string begin = absl::StrCat("\n", nonce);
  const size_t at = report->out.rfind(begin);
  if (at == std::string::npos) return;
  const size_t end = report->out.find('\n', at + begin.size());
  if (end == std::string::npos) return;
  report->reported = report->end == TestReport::End::kExited && report->exit_code == 0;
  report->result = report->out.substr(at + begin.size(), end - at - begin.size());
  report->out.erase(at, end + 1 - at);
}

TestReport ReportOf(const Ran& ran, uint64_t most_output) {
  TestReport report{.cpu_seconds = absl::ToDoubleSeconds(ran.time), .out = ran.out};
  report.err = ran.err.substr(ran.err.size() - std::min(ran.err.size(), kKeptErrors));
  if (ran.timed_out) report.end = TestReport::End::kTimeLimit;
  else if (ran.out.size() > most_output) report.end = TestReport::End::kOutputLimit;
  else if (ran.code < 0 || ran.code >= kBySignal) report.end = TestReport::End::kKilled;
  report.exit_code = static_cast<int>(std::clamp<int64_t>(ran.code, -kBySignal, 255));
  return report;
}

// Runs the tests of one program.
class Tests {
 public:
  Tests(Client* client, const JobLimits& limits, const CodeTask& task, const rpc::Cancel& stop)
      : client_(client), limits_(limits), task_(task), stop_(stop) {}

  // The report of a test, or empty if the program was not compiled.
  absl::StatusOr<std::optional<TestReport>> Run(const CodeTask::Input& input) {
    if (time_limits_ >= kMostTimeLimits) return TestReport{.end = TestReport::End::kTimeLimit};
    SLUICE_ASSIGN_OR_RETURN(std::optional<TestReport> report, RunOnce(input));
    // The time of a loaded server is not the program's fault.
    if (report.has_value() && report->end == TestReport::End::kTimeLimit) {
      SLUICE_ASSIGN_OR_RETURN(report, RunOnce(input));
    }
    if (report.has_value() && report->end == TestReport::End::kTimeLimit) ++time_limits_;
    return report;
  }
  const std::string& compiler_says() const { return compiler_says_; }

 private:
  absl::StatusOr<std::optional<TestReport>> RunOnce(const CodeTask::Input& input) {
    const std::string nonce = ToHex(RandomId16());
    auto [code, reads] = ProgramOf(task_, input, nonce);
    const Request request{.cpp = task_.language == CodeTask::Language::kCpp,
                          .code = std::move(code),
                          .input = std::move(reads),
                          .compile_timeout = kLongestCompile,
                          .run_timeout = limits_.wall,
                          .cpu_timeout = absl::Seconds(task_.cpu_seconds),
                          .memory_bytes = limits_.memory_bytes};
    const absl::StatusOr<Reply> replied = client_->Run(request, &turn_, stop_);
    if (absl::IsOutOfRange(replied.status()))
      return TestReport{.end = TestReport::End::kOutputLimit};
    SLUICE_RETURN_IF_ERROR(replied.status());
    const Reply& reply = *replied;
    if (!reply.ran.has_value()) {
      const std::string& says = reply.compiled->err;
      compiler_says_ = says.substr(says.size() - std::min(says.size(), kKeptErrors));
      return std::nullopt;
    }
    TestReport report = ReportOf(*reply.ran, limits_.output_bytes);
    if (input.kind != CodeTask::Kind::kStdio) TakeResult(nonce, &report);
    return report;
  }

  Client* const client_;
  const JobLimits& limits_;
  const CodeTask& task_;
  const rpc::Cancel& stop_;
  absl::Duration turn_ = kLongestTurn;  // What is left of it, for all tests together.
  int time_limits_ = 0;
  std::string compiler_says_;
};

}  // namespace

RunCode MakeRunCode(Client* client, const JobLimits& limits, std::shared_ptr<rpc::Cancel> stop) {
  return [client, limits, stop](const CodeTask& task,
                                const auto& take) -> absl::StatusOr<CodeOutcome> {
    Tests tests(client, limits, task, *stop);
    for (size_t i = 0; i < task.inputs.size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(const std::optional<TestReport> report, tests.Run(task.inputs[i]));
      if (!report.has_value())
        return CodeOutcome{.compiled = false, .compiler_says = tests.compiler_says()};
      if (!take(i, *report)) break;
    }
    return CodeOutcome{};
  };
}

}  // namespace sluice::run_code
