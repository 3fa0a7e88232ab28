// Measures one training step, by phase:
//   bench_trainer_step MODEL_DIR [--threads N] [--steps N] [--groups N] [--prompt N] [--answer N]
//     [--dtype float32|bfloat16] [--json]
// By default a step has the shape of configs/examples/digits.yaml: 32 groups of 8 answers, with
// prompts of 6 tokens and answers of 6. Unlike the example it trains by GRPO. In the baseline each
// answer has a prompt of its own, so that no prompt can be shared.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/reused_memory.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "services/trainer/core/trainer.h"
#include "tests/bench/report.h"
#include "tests/bench/trainer/batch.h"

namespace sluice::trainer {
namespace {

// Milliseconds of each step, by phase.
struct Times {
  std::vector<double> total, forward_backward, optim, snapshot;
};

absl::StatusOr<Times> Measure(const Settings& settings, const ModelConfig& config, int steps,
                              const BatchShape& shape, bool one_prompt) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                          Trainer::Create(settings, config, Clock::Real()));
  SLUICE_ASSIGN_OR_RETURN(const TensorSet weights, InitWeights(config, 1));
  SLUICE_RETURN_IF_ERROR(trainer->Load(weights));
  SplitMix64 random(1);
  Times times;

  for (int64_t k = 0; k < steps; ++k) {
    std::vector<Group> batch = MakeBatch(random, k, config.vocab_size, shape, one_prompt);
    const absl::Duration start = Clock::Real()->Monotonic();
    SLUICE_RETURN_IF_ERROR(trainer->Add(k, std::move(batch)));
    SLUICE_ASSIGN_OR_RETURN(const StepResult result, trainer->Finish(k));
    const absl::Duration stepped = Clock::Real()->Monotonic();
    SLUICE_ASSIGN_OR_RETURN(const TensorSet copy, trainer->Weights());
    const absl::Duration end = Clock::Real()->Monotonic();
    if (k < steps / 6) continue;  // Warm-up.
    times.total.push_back(absl::ToDoubleMilliseconds(end - start));
    times.forward_backward.push_back(result.seconds_forward_backward * 1e3);
    times.optim.push_back(result.seconds_optim * 1e3);
    times.snapshot.push_back(absl::ToDoubleMilliseconds(end - stepped));
  }

  return times;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures one training step, by phase; by default of the example's shape. In the baseline, "
      "no "
      "answers share a prompt.");
  int threads = 1, steps = 60;
  BatchShape shape;
  bool as_json = false;
  std::string dir, dtype = "float32";
  app.add_option("MODEL_DIR", dir,
                 "a model directory, as configs/examples/digits; its weights are random")
      ->required();
  app.add_option("--threads", threads, "number of compute threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--steps", steps, "steps of each run; the first sixth is not counted")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  AddShapeOptions(app, &shape);
  app.add_option("--dtype", dtype, "arithmetic of the forward pass")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_flag("--json", as_json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  const absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\nhint: bench_trainer_step configs/examples/digits\n",
                 model.status().ToString().c_str());
    return 2;
  }

  const ReusedMemory memory;  // As the trainer.
  memory.UseOnThisThread();
  SetComputeThreads([threads] { return threads; });
  Settings settings = BenchSettings(shape);
  settings.dtype = *DTypeFromTorchName(dtype);

  const absl::StatusOr<Times> baseline = Measure(settings, model->config, steps, shape, false),
                              times = Measure(settings, model->config, steps, shape, true);
  if (!baseline.ok() || !times.ok()) {
    std::fprintf(stderr, "%s\n", (baseline.ok() ? times : baseline).status().ToString().c_str());
    return 1;
  }

  const bench::Report report(as_json);
  const auto print = [&](const char* name, std::vector<double> Times::* phase) {
    const std::vector<double>& values = (*times).*phase;
    report.Add({.name = name,
                .value = bench::Median(values),
                .unit = "ms",
                .baseline = bench::Median((*baseline).*phase),
                .runs = static_cast<int>(values.size())});
  };
  print("trainer_step_total", &Times::total);
  print("trainer_step_forward_backward", &Times::forward_backward);
  print("trainer_step_optim", &Times::optim);
  print("trainer_step_snapshot", &Times::snapshot);
  return 0;
}

}  // namespace
}  // namespace sluice::trainer

int main(int argc, char** argv) { return sluice::trainer::Main(argc, argv); }
