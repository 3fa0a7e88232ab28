// What sandboxes cost. Each tier that works here is measured beside plain processes:
//   cold     a program in a sandbox that is set up for it, from its start until all is gone
//   warm     one test of a Python program in a sandbox that was set up ahead of time
//   tests    Python tests a second, of programs with 20 tests each
//   programs Python programs a second, with 3 tests each
//   bench_sandbox [--json] [--runs N]
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/sandbox/code_runner.h"
#include "common/sandbox/sandbox.h"
#include "tests/bench/report.h"

namespace sluice::sandbox {
namespace {

double Now() { return absl::ToDoubleSeconds(Clock::Real()->Monotonic()); }

void Check(const absl::Status& status) { SLUICE_CHECK_MSG(status.ok(), status.ToString()); }

// Milliseconds of a program that does nothing, the median of `runs`.
double Cold(Tier tier, int runs) {
  auto launcher = Launcher::Make({.slots = 1, .allow_unsafe = true, .strongest = tier});
  Check(launcher.status());
  std::vector<double> ms;
  for (int i = 0; i < runs; ++i) {
    const double begin = Now();
    const auto process = (*launcher)->Start({.argv = {"/usr/bin/true"}});
    Check(process.status());
    Check((*process)->Wait(absl::Seconds(10)).status());
    Check((*process)->Kill());
    ms.push_back((Now() - begin) * 1e3);
  }
  return bench::Median(ms);
}

struct Rates {
  double warm_ms = 0, tests = 0, programs = 0;
};

CodeTask TaskOf(int tests) {
  return {.source = "def f(x):\n  return x + 1\n",
          .function = "f",
          .inputs = std::vector<CodeTask::Input>(static_cast<size_t>(tests),
                                                 {CodeTask::Kind::kCall, "[2]"})};
}

void RunOnce(CodeRunner* runner, const CodeTask& task) {
  Check(runner
            ->Run(task,
                  [](size_t, const TestReport& report) {
                    SLUICE_CHECK_MSG(report.reported, report.err);
                    return true;
                  })
            .status());
}

// Tests a second of programs with `tests` each, on as many threads as may run.
double RateOf(CodeRunner* runner, uint32_t threads, int tests, int programs) {
  std::atomic<int> left = programs;
  const double begin = Now();
  std::vector<std::thread> workers;
  for (uint32_t i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      while (left.fetch_sub(1) > 0) RunOnce(runner, TaskOf(tests));
    });
  }
  for (std::thread& worker : workers) worker.join();
  return programs * tests / (Now() - begin);
}

Rates Measure(Tier tier, int runs) {
  auto sandboxes = CodeSandboxes::Make({.allow_unsafe = true, .strongest = tier});
  Check(sandboxes.status());
  CodeRunner runner(sandboxes->get(), {.ready = (*sandboxes)->runs()});
  Rates rates;
  std::vector<double> ms;
  for (int i = 0; i < runs; ++i) {
    // Programs of a job come with pauses, in which sandboxes are made ready.
    absl::SleepFor(absl::Milliseconds(150));
    const double begin = Now();
    RunOnce(&runner, TaskOf(1));
    ms.push_back((Now() - begin) * 1e3);
  }
  rates.warm_ms = bench::Median(ms);
  rates.tests = RateOf(&runner, (*sandboxes)->runs(), 20, runs);
  rates.programs = RateOf(&runner, (*sandboxes)->runs(), 3, runs) / 3;
  return rates;
}

int Main(int argc, char** argv) {
  bool json = false;
  int runs = 41;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--runs") == 0 && i + 1 < argc) runs = std::atoi(argv[++i]);
  }
  const bench::Report report(json);
  const double plain_cold = Cold(Tier::kUnsafe, runs);
  const Rates plain = Measure(Tier::kUnsafe, runs);
  for (const Tier tier : {Tier::kNamespaces, Tier::kLandlock}) {
    const auto works = Launcher::Make({.slots = 1, .strongest = tier});
    if (!works.ok() || (*works)->tier() != tier) {
      std::fprintf(stderr, "tier %s does not work here\n", std::string(NameOf(tier)).c_str());
      continue;
    }
    const Rates rates = Measure(tier, runs);
    const std::string name = absl::StrCat("sandbox_", NameOf(tier), "_");
    report.Add({name + "cold", Cold(tier, runs), "ms", plain_cold, runs});
    report.Add({name + "warm", rates.warm_ms, "ms", plain.warm_ms, runs});
    report.Add({name + "tests", rates.tests, "1/s", plain.tests, runs});
    report.Add({name + "programs", rates.programs, "1/s", plain.programs, runs});
  }
  return 0;
}

}  // namespace
}  // namespace sluice::sandbox

int main(int argc, char** argv) { return sluice::sandbox::Main(argc, argv); }
