// Measures what asynchronous training saves when answers have long-tailed lengths: a job with one
// thread per role is run synchronously, with streaming, and with max_staleness 1, 2 and 4.
//   bench_async [--json] [--runs 3] [--steps 10] [--warmup 4] [--mode sync,stream,async2 ..]
//     [--file FILE] [--set KEY=VALUE ..]
#include <CLI/CLI.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "tests/bench/async/measure.h"
#include "tests/bench/private_run.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

// How far sampling and training may overlap.
struct Mode {
  const char* name;
  int max_staleness;
  bool stream;
};
constexpr Mode kModes[] = {{"sync", 0, false},
                           {"stream", 0, true},
                           {"async1", 1, false},
                           {"async2", 2, false},
                           {"async4", 4, false}};
constexpr char kBaseline[] = "sync";

struct Options {
  std::string file = SLUICE_SOURCE_DIR "/tests/bench/async/job.yaml";
  std::vector<std::string> sets;
  int steps = 10, warmup = 4;
};

// Figures of one run by name; the names are those of MeasureWindow().
using Figures = std::map<std::string, double>;

// Reads the lengths of the answers in the batches [first, end) from the queue, which keeps applied
// groups until the next checkpoint.
absl::StatusOr<std::vector<double>> ReadLengths(const LiveRun& run, int64_t first, int64_t end) {
  std::vector<double> lengths;
  std::string page;
  do {
    job::v1::InspectRequest request;
    request.set_job(run.job);
    queue::v1::PeekRequest& peek = *request.mutable_queue_peek();
    peek.set_what(queue::v1::PEEK_WHAT_GROUPS);
    peek.set_text(true);  // Without token ids, rows have only the sum of prompt and answer.
    peek.set_page(page);
    job::v1::InspectResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(run.controller, request, &response));

    for (const queue::v1::PeekRow& row : response.queue_peek().rows()) {
      const nlohmann::json group = nlohmann::json::parse(row.json());
      const int64_t batch = group.value("batch", int64_t{-1});
      if (batch < first || batch >= end) continue;
      for (const nlohmann::json& member : group.at("members")) {
        if (!member.contains("dropped"))
          lengths.push_back(static_cast<double>(member.at("ids").size()));
      }
    }
    page = response.queue_peek().page();
  } while (!page.empty());
  return lengths;
}

// Runs the job in one mode and measures the steps between its first and its last ones: at first the
// queue is empty, and at the end nothing is sampled any more for steps that will not come.
absl::StatusOr<Figures> RunMode(const Mode& mode, const Options& options) {
  const int64_t first = options.warmup, end = first + options.steps;
  const int64_t last = end + mode.max_staleness + 1;
  std::vector<std::string> sets = {
      absl::StrCat("queue.max_staleness=", mode.max_staleness),
      absl::StrCat("trainer.batching.stream=", mode.stream ? "true" : "false"),
      absl::StrCat("limits.max_steps=", last),
      // No checkpoint before the end: it would take time in some of the steps, and the queue would
      // free the groups whose lengths are read.
      absl::StrCat("checkpoint.every_steps=", last)};
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());

  Window window;
  absl::Status lengths_read;
  const auto on_step = [&](const LiveRun& run, const job::v1::StepReport& step) {
    if (step.k() < first - 1 || step.k() >= end) return;
    window.steps.push_back(step);
    if (step.k() == first - 1) window.begin = run.read_use();
    if (step.k() != end - 1) return;
    window.end = run.read_use();
    absl::StatusOr<std::vector<double>> lengths = ReadLengths(run, first, end);
    lengths_read = lengths.status();
    if (lengths.ok()) window.answer_tokens = *std::move(lengths);
  };

  // One thread for each role. With fixed numbers no daemon borrows the cores of one that waits.
  SLUICE_RETURN_IF_ERROR(
      RunPrivately(options.file, sets, {.threads = "rollout=1,trainer=1", .on_step = on_step})
          .status());
  SLUICE_RETURN_IF_ERROR(lengths_read);
  return MeasureWindow(window);
}

// The figures of all runs: by mode, then by figure, one value per run.
using Results = std::map<std::string, std::map<std::string, std::vector<double>>>;

void PrintResults(const Results& results, int runs, bool json) {
  const Report report(json);
  const auto baseline = results.find(kBaseline);
  for (const Mode& mode : kModes) {
    const auto found = results.find(mode.name);
    if (found == results.end()) continue;
    for (const auto& [figure, values] : found->second) {
      report.Add({.name = absl::StrCat(mode.name, ".", figure),
                  .value = Median(values),
                  .unit = UnitOf(figure),
                  .baseline = baseline == results.end() ? 0 : Median(baseline->second.at(figure)),
                  .runs = runs});
    }
  }
}

int Main(const Options& options, const std::vector<std::string>& modes, int runs, bool json) {
  Results results;
  // All modes take turns, so that other load on the machine hits them alike.
  for (int run = 0; run < runs; ++run) {
    for (const Mode& mode : kModes) {
      if (std::find(modes.begin(), modes.end(), mode.name) == modes.end()) continue;
      const absl::StatusOr<Figures> figures = RunMode(mode, options);
      if (!figures.ok()) {
        std::fprintf(stderr, "run %d, mode %s: %s\n", run + 1, mode.name,
                     figures.status().ToString().c_str());
        return 1;
      }
      std::fprintf(stderr, "run %d of %d, %-6s %8.3f s per step\n", run + 1, runs, mode.name,
                   figures->at("seconds_per_step"));
      for (const auto& [figure, value] : *figures) results[mode.name][figure].push_back(value);
    }
  }

  PrintResults(results, runs, json);
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using sluice::bench::kModes;
  CLI::App app(
      "Measures what asynchronous training saves when answers have long-tailed lengths. It runs "
      "one "
      "job on real daemons with one thread for the rollout and one for the trainer: synchronously "
      "(sync), with batches that stream to the trainer (stream), and with max_staleness 1, 2 and 4 "
      "(async1, async2, async4). Each figure is shown beside that of sync. The speed-up is the "
      "ratio of steps_per_second. In a short run the modes train different answers, so compare "
      "tokens_trained_per_second as well.");
  app.footer(
      "examples:\n"
      "  bench_async\n"
      "  bench_async --json --runs 1 --steps 20\n"
      "  bench_async --mode sync,async2 --set queue.groups_per_step=16");
  std::vector<std::string> names;
  for (const auto& mode : kModes) names.emplace_back(mode.name);

  sluice::bench::Options options;
  bool json = false;
  int runs = 3;
  std::vector<std::string> modes = names;
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--runs", runs, "number of runs of each mode; the figures are medians over them")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "measured steps of each run")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "steps before them that are not measured")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--mode", modes, "the modes to run; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--file", options.file, "job file");
  app.add_option("--set", options.sets, "KEY=VALUE that replaces the job file's");
  CLI11_PARSE(app, argc, argv);
  return sluice::bench::Main(options, modes, runs, json);
}
