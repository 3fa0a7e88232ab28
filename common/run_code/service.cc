#include "common/run_code/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/machine_memory.h"
#include "nlohmann/json.hpp"

namespace sluice::run_code {
namespace {

constexpr size_t kMostRunners = 4;
constexpr int kKilled = -9;

HttpAnswer Refuse(int status, absl::string_view why) {
  const nlohmann::json json = {{"detail", why}};
  return {.status = status,
          .body = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

absl::Duration CpuOf(const Request& request) {
  return std::min(request.cpu_timeout, request.run_timeout);
}

Ran RanOf(const TestReport& report) {
  Ran ran{.timed_out = report.end == TestReport::End::kTimeLimit,
          .code = report.exit_code,
          .time = absl::Seconds(report.cpu_seconds),
          .out = report.out,
          .err = report.err};
  if (report.end == TestReport::End::kKilled || report.end == TestReport::End::kOutputLimit)
    ran.code = kKilled;
  return ran;
}

}  // namespace

HttpAnswer Service::Answer(const HttpRequest& request) {
  if (request.path != kPath) return Refuse(404, absl::StrCat("there is only POST ", kPath));
  if (request.method != "POST") return Refuse(405, "use POST");
  const absl::StatusOr<Request> wanted = ParseRequest(request.body);
  if (!wanted.ok()) return Refuse(422, wanted.status().message());
  if (wanted->memory_bytes.value_or(0) > MachineMemory())
    return Refuse(422, "memory_limit_MB is more than this machine has");
  const std::shared_ptr<sandbox::CodeRunner> runner = FindRunner(*wanted);
  if (runner == nullptr) return Refuse(503, "the server stops");

  Reply reply;
  const CodeTask task{
      .language = wanted->cpp ? CodeTask::Language::kCpp : CodeTask::Language::kPython,
      .source = wanted->code,
      .function = "",
      .inputs = {{.kind = CodeTask::Kind::kStdio, .text = wanted->input}},
      .cpu_seconds = absl::ToDoubleSeconds(CpuOf(*wanted)),
      .compile_time = wanted->compile_timeout};
  const auto outcome = runner->Run(task, [&](size_t, const TestReport& report) {
    reply.ran = RanOf(report);
    return true;
  });
  if (absl::IsResourceExhausted(outcome.status())) {
    HttpAnswer busy = Refuse(429, outcome.status().message());
    busy.retry_after = absl::Seconds(1);
    return busy;
  }
  if (absl::IsCancelled(outcome.status())) return Refuse(503, "the server stops");
  if (!outcome.ok()) return {.body = FailureJson(outcome.status().message())};
  if (wanted->cpp)
    reply.compiled = Ran{.code = outcome->compiled ? 0 : 1, .err = outcome->compiler_says};
  return {.body = ToJson(reply)};
}

std::shared_ptr<sandbox::CodeRunner> Service::FindRunner(const Request& request) {
  sandbox::CodeRunner::Options options{.wall = request.run_timeout,
                                       .output_bytes = kMostOutput,
                                       .ready = sandboxes_->runs(),
                                       // A client waits better where others are free.
                                       .turn = absl::Seconds(1)};
  options.memory_bytes = request.memory_bytes.value_or(options.memory_bytes);

  std::shared_ptr<sandbox::CodeRunner> dropped;  // Ended without the lock, because that waits.
  MutexLock lock(&mu_);
  if (stopped_) return nullptr;
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->memory_bytes != options.memory_bytes || kept->wall != options.wall) continue;
    kept_.splice(kept_.begin(), kept_, kept);
    return kept->runner;
  }
  kept_.push_front({options.memory_bytes, options.wall,
                    std::make_shared<sandbox::CodeRunner>(sandboxes_, options)});
  if (kept_.size() > kMostRunners) {
    dropped = std::move(kept_.back().runner);  // Programs that it runs end first.
    kept_.pop_back();
  }
  return kept_.front().runner;
}

void Service::Stop() {
  std::list<Kept> ended;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    ended.swap(kept_);
  }
  for (const Kept& kept : ended) kept.runner->Stop();
}

}  // namespace sluice::run_code
