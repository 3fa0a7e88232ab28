#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/testing/data.h"
#include "tests/fault/weights/fleet_sim.h"

namespace sluice::fault {
namespace {

struct Options {
  uint64_t first = 1, runs = 10'000;
};

int RunWeightFaults(const Options& options) {
  Findings all;
  for (uint64_t seed = options.first; seed < options.first + options.runs; ++seed) {
    const Findings found = SimulateWeights(seed, testing_data::TempPath("weights"));
    for (const std::string& wrong : found.wrong) std::printf("WRONG: %s\n", wrong.c_str());
    all.Add(found);
    if (seed % 1000 == 0) std::fprintf(stderr, "%lu seeds\n", seed);
  }
  for (const auto& [what, count] : all.counts) std::printf("%10lu %s\n", count, what.c_str());
  std::printf("%10lu faults, of these\n", all.faults_in_all());
  for (const auto& [fault, count] : all.faults) std::printf("%10lu   %s\n", count, fault.c_str());
  std::printf("%s: %zu wrong\n", all.wrong.empty() ? "ok" : "FAILED", all.wrong.size());
  return all.wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::fault

int main(int argc, char** argv) {
  using namespace sluice::fault;
  CLI::App app{
      "Simulates how weights get from trainers to rollouts, with faults, once for each seed, and\n"
      "fails if a rollout ever holds, stamps or keeps what it must not.",
      "weight_faults"};
  Options options;
  app.add_option("--first", options.first, "The first seed")->capture_default_str();
  app.add_option("--runs", options.runs, "How many seeds")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return RunWeightFaults(options);
}
