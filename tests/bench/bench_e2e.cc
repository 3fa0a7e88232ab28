// Measures the whole loop on the example: tokens per second, what each role did with its time, how
// much decoding and training overlap, and how long a weight update pauses generation.
//   bench_e2e [--json] [--runs 3] [--steps 150] [--file configs/examples/digits.yaml]
//     [--set KEY=VALUE ..] [--threads N|ROLE=N,..]
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/bench/private_run.h"
#include "tests/bench/report.h"

namespace {

using sluice::bench::DaemonUse;
using sluice::bench::RunOutcome;
using sluice::bench::SumMetric;

std::map<std::string, double> Measure(const RunOutcome& run) {
  std::map<std::string, double> out;
  const auto& result = run.status.result();
  const double seconds = result.seconds();
  out["job_seconds"] = seconds;
  out["steps_per_second"] = static_cast<double>(result.steps()) / seconds;
  out["tokens_generated_per_second"] = static_cast<double>(result.tokens_generated()) / seconds;
  out["tokens_trained_per_second"] = static_cast<double>(result.tokens_trained()) / seconds;
  double busy = 0, rollouts = 0, pause = 0, updates = 0;

  for (const DaemonUse& daemon : run.daemons) {
    out[absl::StrCat(daemon.role, ".cpu_seconds")] += daemon.cpu_seconds;
    if (daemon.role != "rollout") continue;
    ++rollouts;
    for (const char* const phase : {"decode", "prefill", "activate"})
      busy += SumMetric(daemon.metrics, "sluice_rollout_phase_seconds_total",
                        absl::StrCat("phase=\"", phase, "\""));
    pause +=
        SumMetric(daemon.metrics, "sluice_weights_update_duration_seconds_sum", "phase=\"pause\"");
    updates += SumMetric(daemon.metrics, "sluice_weights_update_duration_seconds_count",
                         "phase=\"pause\"");
  }

  busy /= std::max(1.0, rollouts);
  double train = 0, waiting = 0;
  for (const auto& step : run.steps) {
    const auto value = [&](const char* name) {
      const auto it = step.values().find(name);
      return it == step.values().end() ? 0.0 : it->second;
    };
    train += value("seconds_forward_backward");
    waiting += value("seconds_wait_data");
  }

  out["rollout.busy_share"] = busy / seconds;
  out["trainer.busy_share"] = std::max(0.0, 1 - waiting / seconds);
  out["trainer.forward_backward_share"] = train / seconds;

  // The share of samples in which a decoding and a training thread ran at once. It cannot exceed
  // the share of either.
  out["overlap_share"] = run.overlap.both;
  out["overlap_of_decode"] = run.overlap.first > 0 ? run.overlap.both / run.overlap.first : 0;
  out["pause_per_update_seconds"] = updates == 0 ? 0 : pause / updates;
  return out;
}

std::string UnitOf(const std::string& name) {
  if (name.find("per_second") != std::string::npos) return "1/s";
  if (name == "overlap_of_decode") return "of decode time";
  if (name == "overlap_share") return "of time after step 0";
  if (name.find("share") != std::string::npos) return "of job time";
  return "s";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures a whole job, by default the example: throughput, use of time by role, overlap, and "
      "pause per weight update.");
  bool json = false;
  int runs = 3, steps = 150;
  std::string file = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";
  std::vector<std::string> sets;
  std::string threads;
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--runs", runs, "number of runs; the figures are medians over the runs")
      ->check(CLI::Range(1, 100));
  app.add_option("--steps", steps, "steps of each run")->check(CLI::Range(1, 1'000'000));
  app.add_option("--file", file, "job file");
  app.add_option("--set", sets, "KEY=VALUE that replaces the job file's");
  app.add_option("--threads", threads, "as for `sluice run`; default: the daemons share the cores");
  CLI11_PARSE(app, argc, argv);

  sets.insert(sets.begin(), absl::StrCat("limits.max_steps=", steps));
  std::map<std::string, std::vector<double>> all;
  for (int i = 0; i < runs; ++i) {
    const auto run = sluice::bench::RunPrivately(file, sets, {.threads = threads});
    if (!run.ok()) {
      std::fprintf(stderr, "run %d: %s\n", i, run.status().ToString().c_str());
      return 1;
    }
    for (const auto& [name, value] : Measure(*run)) all[name].push_back(value);
  }

  const sluice::bench::Report report(json);
  for (const auto& [name, values] : all)
    report.Add(
        {.name = name, .value = sluice::bench::Median(values), .unit = UnitOf(name), .runs = runs});
  return 0;
}
