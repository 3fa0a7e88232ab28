// Measures what a call of a reward plug-in costs: a function in verl's convention scores one answer
// of 2 KB per call, in a process of its own.
//   bench_plugin [--calls 5000] [--json]
//
// The baseline is a program that echoes the line that it gets: it needs the pipes and the switches
// of processes, but no JSON and no function.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/plugins/plugin_host.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

constexpr size_t kAnswer = 2048;
constexpr int kRuns = 5;

constexpr char kFunction[] = R"py(
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.rsplit("#### ", 1)[-1].strip() == ground_truth else 0.0
)py";

// The microseconds of each of so many calls.
template <typename Call>
std::vector<double> MeasureCalls(int calls, const Call& call) {
  std::vector<double> taken;
  for (int i = 0; i < calls; ++i) {
    const absl::Duration start = Clock::Real()->Monotonic();
    call(i);
    taken.push_back(absl::ToDoubleMicroseconds(Clock::Real()->Monotonic() - start));
  }
  return taken;
}

std::vector<nlohmann::json> Items(int i) {
  const std::string answer = absl::StrCat(std::string(kAnswer, 'x'), " #### ", i % 10);
  return {{{"prompt", "6 * 7"},
           {"completion", answer},
           {"ground_truth", "7"},
           {"data_source", "bench"},
           {"extra_info", nlohmann::json::object()},
           {"truncated", false}}};
}

std::unique_ptr<PluginHost> StartHost(const std::string& file, int processes) {
  PluginHost::Options options;
  options.job = "bench";
  options.name = "bench";
  options.spec = *ParsePluginSpec({{"verl", file + ":compute_score"}, {"processes", processes}});
  auto host = PluginHost::Make(std::move(options));
  SLUICE_CHECK_MSG(host.ok(), std::string(host.status().message()));
  return *std::move(host);
}

void Score(PluginHost& host, int i) {
  const auto results = host.Score(Items(i), absl::Seconds(30));
  SLUICE_CHECK_MSG(results.ok(), std::string(results.status().message()));
  SLUICE_CHECK((*results)[0].score == (i % 10 == 7 ? 1 : 0));
}

// The microseconds of an exchange of such a line with `cat`.
std::vector<double> MeasureEcho(int calls) {
  const auto cat = StartChild({.argv = {"/bin/cat"}, .stderr_path = "", .pipes = true});
  SLUICE_CHECK_MSG(cat.ok(), std::string(cat.status().message()));
  const std::string line(kAnswer, 'x');
  std::string back(kAnswer, '\0');
  const auto taken = MeasureCalls(calls, [&](int) {
    SLUICE_CHECK(write(cat->stdin_fd, line.data(), kAnswer) == static_cast<ssize_t>(kAnswer));
    for (size_t at = 0; at < kAnswer;) {
      const ssize_t n = read(cat->stdout_fd, back.data() + at, kAnswer - at);
      SLUICE_CHECK(n > 0);
      at += static_cast<size_t>(n);
    }
  });
  kill(cat->pid, SIGKILL);
  return taken;
}

int Run(int calls, bool json) {
  signal(SIGPIPE, SIG_IGN);
  std::string folder = std::filesystem::temp_directory_path() / "bench-plugin-XXXXXX";
  SLUICE_CHECK(mkdtemp(folder.data()) != nullptr);
  const std::string file = folder + "/reward.py";
  SLUICE_CHECK(WriteFileAtomic(file, kFunction).ok());

  std::vector<double> p50, p99, echo, rate;
  const auto one = StartHost(file, 1), two = StartHost(file, 2);
  for (int i = 0; i < 100; ++i) Score(*one, i), Score(*two, i);
  for (int run = 0; run < kRuns; ++run) {
    echo.push_back(Quantile(MeasureEcho(calls), 0.5));
    const std::vector<double> taken = MeasureCalls(calls, [&](int i) { Score(*one, i); });
    p50.push_back(Quantile(taken, 0.5));
    p99.push_back(Quantile(taken, 0.99));

    const absl::Duration start = Clock::Real()->Monotonic();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < calls / 4; ++i) Score(*two, i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    rate.push_back(calls / absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start));
  }

  const Report report(json);
  report.Add({"call_p50", Median(p50), "us", Median(echo), kRuns});
  report.Add({"call_p99", Median(p99), "us", 0, kRuns});
  report.Add({"calls_two_processes", Median(rate), "calls/s", 0, kRuns});
  (void)RemoveTree(folder);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  CLI::App app{"Measures what a call of a reward plug-in costs.", "bench_plugin"};
  int calls = 5000;
  bool json = false;
  app.add_option("--calls", calls, "calls per run")->capture_default_str();
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  return sluice::bench::Run(calls, json);
}
