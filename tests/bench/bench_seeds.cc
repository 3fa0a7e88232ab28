// Runs the example with several seeds, and shows the reward curve of each and its time to a mean
// reward of 0.8.
//   bench_seeds [--json] [--file configs/examples/digits.yaml] [--seeds 5] [--first 1]
//     [--set KEY=VALUE ..]
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "tests/bench/private_run.h"
#include "tests/bench/report.h"

namespace {

using sluice::bench::RunOutcome;

constexpr double kGoal = 0.8;
constexpr int kWindow = 10;  // Steps over which the mean is taken.

double MeanReward(const RunOutcome& run, size_t end) {
  const size_t begin = end > kWindow ? end - kWindow : 0;
  double sum = 0, count = 0;
  for (size_t i = begin; i < end; ++i) {
    const auto& values = run.steps[i].values();
    const auto mean = values.find("reward_mean"), n = values.find("reward_count");
    if (mean == values.end() || n == values.end()) continue;
    sum += mean->second * n->second;
    count += n->second;
  }

  return count == 0 ? 0 : sum / count;
}

// Returns the seconds from the report of step 0 to that of `step`.
double SecondsToStep(const RunOutcome& run, size_t step) {
  return absl::ToDoubleSeconds(sluice::rpc::FromProto(run.steps[step].at()) -
                               sluice::rpc::FromProto(run.steps[0].at()));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs the example with several seeds, and prints the reward curves and the time to a mean "
      "reward of 0.8.");
  bool json = false;
  int seeds = 5, first = 1;
  std::string file = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";
  std::vector<std::string> sets;
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--seeds", seeds, "number of seeds")->check(CLI::Range(1, 100));
  app.add_option("--first", first, "the first seed")->check(CLI::Range(1, 1'000'000));
  app.add_option("--file", file, "job file");
  app.add_option("--set", sets, "KEY=VALUE that replaces the job file's");
  CLI11_PARSE(app, argc, argv);

  const sluice::bench::Report report(json);
  std::vector<double> times, last;
  int reached = 0;
  for (int seed = first; seed < first + seeds; ++seed) {
    std::vector<std::string> own = sets;
    own.push_back(absl::StrCat("run.seed=", seed));
    own.push_back(absl::StrCat("model.init.seed=", seed));
    const auto run = sluice::bench::RunPrivately(file, own);

    if (!run.ok()) {
      std::fprintf(stderr, "seed %d: %s\n", seed, run.status().ToString().c_str());
      return 1;
    }

    const std::string name = absl::StrCat("seed_", seed);
    for (size_t end = 25; end <= run->steps.size(); end += 25) {
      report.Add({.name = absl::StrCat(name, ".reward_at_step_", end),
                  .value = MeanReward(*run, end),
                  .unit = "reward"});
    }

    report.Add({.name = absl::StrCat(name, ".reward_first"),
                .value = run->status.result().reward_first(),
                .unit = "reward"});
    report.Add({.name = absl::StrCat(name, ".reward_last"),
                .value = run->status.result().reward_last(),
                .unit = "reward"});
    report.Add({.name = absl::StrCat(name, ".seconds"),
                .value = run->status.result().seconds(),
                .unit = "s"});
    report.Add({.name = absl::StrCat(name, ".steps"),
                .value = static_cast<double>(run->steps.size()),
                .unit = "steps"});
    last.push_back(run->status.result().reward_last());

    for (size_t end = kWindow; end <= run->steps.size(); ++end) {
      if (MeanReward(*run, end) < kGoal) continue;
      report.Add({.name = absl::StrCat(name, ".seconds_to_0.8"),
                  .value = SecondsToStep(*run, end - 1),
                  .unit = "s"});
      report.Add({.name = absl::StrCat(name, ".steps_to_0.8"),
                  .value = static_cast<double>(end),
                  .unit = "steps"});
      times.push_back(SecondsToStep(*run, end - 1));
      ++reached;
      break;
    }
  }

  report.Add({.name = "seeds_that_reached_0.8",
              .value = static_cast<double>(reached),
              .unit = "seeds",
              .baseline = static_cast<double>(seeds),
              .runs = seeds});
  report.Add({.name = "seconds_to_0.8",
              .value = sluice::bench::Median(times),
              .unit = "s",
              .runs = reached});
  report.Add({.name = "reward_last",
              .value = sluice::bench::Median(last),
              .unit = "reward",
              .runs = seeds});

  return reached == seeds ? 0 : 1;
}
