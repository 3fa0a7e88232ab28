#include "common/sandbox/code_runner.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice::sandbox {
namespace {

constexpr absl::Duration kStart = absl::Seconds(20);  // For a sandbox to come up.
constexpr uint64_t kCompilerMemory = 2ull << 30;
constexpr uint64_t kMostProgramBytes = 16ull << 20;
// For the driver beside the time of the test: it ends what the test left, and sends its output.
constexpr absl::Duration kGrace = absl::Seconds(10);
// After so many tests that used up their time, or broke their sandbox, a program has failed.
constexpr int kMostTimeLimits = 2, kMostBroken = 2;
// A test that used this share of its CPU time or more is run once more, because CPU time varies.
constexpr double kNearLimit = 0.8;

absl::Status Full() {
  return ErrorWith(
      absl::StatusCode::kUnavailable,
      {.reason = "SANDBOXES_FULL",
       .hint = "give the folder of the sandboxes more room, or let each have a file system of its "
               "own (deploy/README.md, \"Sandboxes\")"},
      "programs of other answers have filled the file system that all sandboxes here share");
}

absl::Status Stopped() { return absl::CancelledError("the sandboxes are stopped"); }

}  // namespace

// Leaves the driver to the thread at the end, which ends it.
class CodeRunner::Borrowed {
 public:
  static absl::StatusOr<std::unique_ptr<Borrowed>> Take(CodeRunner* runner,
                                                        std::unique_ptr<Driver> driver) {
    MutexLock lock(&runner->mu_);
    if (runner->stopped_) return Stopped();
    runner->in_use_.insert(driver.get());
    return absl::WrapUnique(new Borrowed(runner, std::move(driver)));
  }
  ~Borrowed() {
    {
      MutexLock lock(&runner_->mu_);
      runner_->in_use_.erase(driver_.get());
      if (!runner_->stopped_) runner_->used_.push_back(std::move(driver_));
    }
    runner_->changed_.NotifyAll();
  }
  Driver* operator->() const { return driver_.get(); }

 private:
  Borrowed(CodeRunner* runner, std::unique_ptr<Driver> driver)
      : runner_(runner), driver_(std::move(driver)) {}
  CodeRunner* const runner_;
  std::unique_ptr<Driver> driver_;
};

CodeRunner::CodeRunner(CodeSandboxes* sandboxes, const Options& options)
    : sandboxes_(sandboxes), options_(options), filler_([this] { FillPool(); }) {}

CodeRunner::~CodeRunner() { Stop(); }

void CodeRunner::Stop() {
  std::vector<std::unique_ptr<Driver>> ready, used;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    ready.swap(ready_);
    used.swap(used_);
    // Their owners wait for the lock before they let go of them.
    for (Driver* const driver : in_use_) driver->Kill();
  }
  changed_.NotifyAll();
  if (filler_.joinable()) filler_.join();
}

Limits CodeRunner::RunLimits() const {
  return {.memory_bytes = options_.memory_bytes, .pids = options_.pids, .cores = options_.cores};
}

absl::StatusOr<std::unique_ptr<Driver>> CodeRunner::StartDriver(const Limits& limits) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver,
                          Driver::Start(sandboxes_->launcher(), limits));
  SLUICE_RETURN_IF_ERROR(driver->AwaitReady(kStart));
  return driver;
}

void CodeRunner::FillPool() {
  pthread_setname_np(pthread_self(), "sandbox_pool");
  while (true) {
    std::vector<std::unique_ptr<Driver>> used;
    bool full = false;
    {
      MutexLock lock(&mu_);
      while (!stopped_ && used_.empty() && ready_.size() >= options_.ready) changed_.Wait(&mu_);
      if (stopped_) return;
      used.swap(used_);
      full = ready_.size() >= options_.ready;
    }
    used.clear();
    if (full) continue;

    absl::StatusOr<std::unique_ptr<Driver>> driver = StartDriver(RunLimits());
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (driver.ok()) ready_.push_back(*std::move(driver));
    // A run that needs a sandbox starts one itself then, and returns the error.
    else changed_.WaitFor(&mu_, absl::Seconds(1));
  }
}

absl::StatusOr<std::unique_ptr<Driver>> CodeRunner::TakeReady() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return Stopped();
    if (!ready_.empty()) {
      std::unique_ptr<Driver> driver = std::move(ready_.back());
      ready_.pop_back();
      changed_.NotifyAll();
      return driver;
    }
  }
  return StartDriver(RunLimits());
}

absl::StatusOr<std::shared_ptr<const CompiledPrograms::Program>> CodeRunner::Compile(
    const std::string& source, absl::Duration time) {
  if (auto known = sandboxes_->compiled()->Find(source)) return known;
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Driver> started,
                          StartDriver({.memory_bytes = kCompilerMemory,
                                       .cores = options_.cores,
                                       .file_bytes = 4 * kMostProgramBytes}));
  SLUICE_ASSIGN_OR_RETURN(const auto driver, Borrowed::Take(this, std::move(started)));
  const nlohmann::json task = {
      {"language", "compile"},
      {"argv", {"/usr/bin/g++", "-O2", "-std=c++20", "-pipe", "-o", "program", "-x", "c++", "-"}},
      {"output", 1 << 20},
      {"program_bytes", kMostProgramBytes},
      {"cpu_seconds", absl::ToDoubleSeconds(time)},
      {"wall_seconds", absl::ToDoubleSeconds(time)}};
  SLUICE_RETURN_IF_ERROR((*driver)->Send({{"task", task}}, ""));
  SLUICE_RETURN_IF_ERROR((*driver)->Send({{"kind", "stdio"}}, source));
  const auto reply = (*driver)->AwaitReply(time + kGrace, kMostProgramBytes + 1);

  auto program = std::make_shared<CompiledPrograms::Program>();
  if (!reply.ok()) {
    MutexLock lock(&mu_);
    if (stopped_) return Stopped();
    return reply.status();
  }
  if (reply->why == "full") return Full();
  if (reply->code == 0 && reply->report.size() <= kMostProgramBytes) {
    program->binary = reply->report;
  } else if (reply->code == 127) {
    return absl::UnavailableError("there is no compiler /usr/bin/g++ on this machine");
  }
  program->compiler_says = reply->err;
  // Another request may give the compiler more time.
  if (reply->why == "time")
    absl::StrAppend(&program->compiler_says, "\nthe compiler took too long");
  else sandboxes_->compiled()->Add(source, program);
  return program;
}

// The tests of one program.
class CodeRunner::Solution {
 public:
  Solution(CodeRunner* runner, const CodeTask& task, std::string program)
      : runner_(runner), task_(task), program_(std::move(program)) {}

  // The report of a test, which may be a second run.
  absl::StatusOr<TestReport> Test(const CodeTask::Input& input) {
    if (time_limits_ >= kMostTimeLimits) return TestReport{.end = TestReport::End::kTimeLimit};
    SLUICE_ASSIGN_OR_RETURN(TestReport report, RunOnce(input));
    if (broken_ <= kMostBroken && IsDoubtful(report)) {
      SLUICE_ASSIGN_OR_RETURN(report, RunOnce(input));
    }
    if (report.end == TestReport::End::kTimeLimit) ++time_limits_;
    return report;
  }

 private:
  // Whether another run may end differently, because of what the program did not cause.
  bool IsDoubtful(const TestReport& report) const {
    return last_broke_ || report.end == TestReport::End::kTimeLimit ||
           report.cpu_seconds >= kNearLimit * task_.cpu_seconds;
  }

  absl::StatusOr<TestReport> RunOnce(const CodeTask::Input& input) {
    last_broke_ = false;
    if (broken_ > kMostBroken) return TestReport{.end = TestReport::End::kKilled};
    if (driver_ == nullptr) SLUICE_RETURN_IF_ERROR(Begin());

    const std::string nonce = ToHex(RandomId16());
    absl::StatusOr<Driver::TestReply> reply = absl::UnavailableError("");
    if ((*driver_)->Send({{"kind", NameOfKind(input.kind)}, {"nonce", nonce}}, input.text).ok()) {
      reply = (*driver_)->AwaitReply(runner_->options_.wall + kGrace,
                                     std::max<uint64_t>(runner_->options_.output_bytes, 8192));
    }
    if (reply.ok() && reply->why == "full") return Full();
    if (reply.ok()) return ReportOf(*reply, nonce);

    driver_.reset();
    {
      MutexLock lock(&runner_->mu_);
      if (runner_->stopped_) return Stopped();
    }
    // Once a test has begun, only what runs in the sandbox can end it. It is run again, in case
    // that somebody else did. A sandbox that could not be wiped ends before the next test.
    last_broke_ = true;
    ++broken_;
    return TestReport{.end = TestReport::End::kKilled};
  }

  absl::Status Begin() {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, runner_->TakeReady());
    SLUICE_ASSIGN_OR_RETURN(driver_, Borrowed::Take(runner_, std::move(driver)));
    const bool python = task_.language == CodeTask::Language::kPython;
    const nlohmann::json task = {{"language", python ? "python" : "binary"},
                                 {"function", task_.function},
                                 {"output", runner_->options_.output_bytes},
                                 {"cpu_seconds", task_.cpu_seconds},
                                 {"wall_seconds", absl::ToDoubleSeconds(runner_->options_.wall)}};
    const absl::Status sent = (*driver_)->Send({{"task", task}}, python ? task_.source : program_);
    if (!sent.ok()) driver_.reset();
    return sent;
  }

  TestReport ReportOf(const Driver::TestReply& reply, const std::string& nonce) const {
    TestReport report{.exit_code = reply.code,
                      .cpu_seconds = reply.cpu_seconds,
                      .out = reply.out,
                      .err = reply.err};
    if (reply.why == "output") report.end = TestReport::End::kOutputLimit;
    else if (reply.why == "time" || reply.cpu_seconds > task_.cpu_seconds)
      report.end = TestReport::End::kTimeLimit;
    else if (reply.code < 0) report.end = TestReport::End::kKilled;
    report.reported = report.end == TestReport::End::kExited && report.exit_code == 0 &&
                      absl::StartsWith(reply.report, nonce);
    if (report.reported) report.result = reply.report.substr(nonce.size());
    return report;
  }

  CodeRunner* const runner_;
  const CodeTask& task_;
  const std::string program_;
  std::unique_ptr<Borrowed> driver_;  // Null: the next test starts one.
  int time_limits_ = 0, broken_ = 0;
  bool last_broke_ = false;  // The last run ended its sandbox.
};

absl::StatusOr<CodeOutcome> CodeRunner::Run(
    const CodeTask& task, const std::function<bool(size_t test, const TestReport&)>& take) {
  const bool compiles = task.language == CodeTask::Language::kCpp;
  SLUICE_ASSIGN_OR_RETURN(const auto turn,
                          sandboxes_->AwaitTurn(std::max(options_.memory_bytes,
                                                         compiles ? kCompilerMemory : uint64_t{0}),
                                                options_.turn));
  std::string program;
  if (compiles) {
    SLUICE_ASSIGN_OR_RETURN(const auto compiled,
                            Compile(task.source, std::min(task.compile_time, kLongestCompile)));
    if (compiled->binary.empty())
      return CodeOutcome{.compiled = false, .compiler_says = compiled->compiler_says};
    program = compiled->binary;
  }

  Solution solution(this, task, std::move(program));
  for (size_t i = 0; i < task.inputs.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const TestReport report, solution.Test(task.inputs[i]));
    if (!take(i, report)) break;
  }
  return CodeOutcome{};
}

}  // namespace sluice::sandbox
