// One training step of the example's shape, by phase:  bench_trainer_step MODEL_DIR [--threads N] [--steps N] [--json]
// 32 groups of 8 answers, prompts of 6 tokens and answers of 6, GRPO with entropy bonus, as configs/examples/digits.yaml.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "services/trainer/core/trainer.h"

namespace sluice::trainer {
namespace {

std::vector<Group> MakeBatch(SplitMix64& random, int64_t version, int64_t vocab) {
  std::vector<Group> batch(32);
  for (Group& group : batch) {
    group.members.resize(8);
    for (Trajectory& t : group.members) {
      for (int i = 0; i < 12; ++i) {
        t.tokens.push_back(static_cast<int32_t>(random.Below(vocab)));
        t.mask.push_back(i >= 6);
        t.logprobs.push_back(-4.1f);
        t.versions.push_back(i >= 6 ? version : -1);
      }
      t.reward = random.Uniform();
    }
  }
  return batch;
}

int Main(int argc, char** argv) {
  int threads = 1, steps = 60;
  bool as_json = false;
  std::string dir;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) as_json = true;
    else if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) threads = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--steps") == 0 && i + 1 < argc) steps = std::atoi(argv[++i]);
    else dir = argv[i];
  }
  const absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\nhint: bench_trainer_step configs/examples/digits\n", model.status().ToString().c_str());
    return 2;
  }
  SetComputeThreads(threads);
  Settings settings;
  settings.algorithm.advantage.kind = "grpo";
  settings.algorithm.loss.entropy = 0.05;
  settings.algorithm.loss.dual = std::nullopt;
  settings.algorithm.loss.veto = std::nullopt;
  settings.optimizer.lr = 1e-3;
  settings.max_response = 7;
  auto trainer = Trainer::Create(settings, model->config, Clock::Real());
  if (!trainer.ok() || !(*trainer)->Load(*InitWeights(model->config, 1)).ok()) {
    std::fprintf(stderr, "%s\n", trainer.status().ToString().c_str());
    return 1;
  }

  SplitMix64 random(1);
  std::vector<double> total, forward_backward, optim, snapshot;
  for (int64_t k = 0; k < steps; ++k) {
    std::vector<Group> batch = MakeBatch(random, k, model->config.vocab_size);
    const absl::Duration start = Clock::Real()->Monotonic();
    if (absl::Status status = (*trainer)->Add(k, std::move(batch)); !status.ok()) return 1;
    const absl::StatusOr<StepResult> result = (*trainer)->Finish(k);
    if (!result.ok()) return 1;
    const absl::Duration stepped = Clock::Real()->Monotonic();
    const absl::StatusOr<TensorSet> copy = (*trainer)->Weights();
    const absl::Duration end = Clock::Real()->Monotonic();
    if (k < steps / 6) continue;  // Warm-up.
    total.push_back(absl::ToDoubleMilliseconds(end - start));
    forward_backward.push_back(result->seconds_forward_backward * 1e3);
    optim.push_back(result->seconds_optim * 1e3);
    snapshot.push_back(absl::ToDoubleMilliseconds(end - stepped));
  }
  const auto print = [&](const char* name, std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    const double median = values[values.size() / 2];
    if (as_json) {
      std::printf("{\"name\": \"trainer_step_%s\", \"value\": %.4f, \"unit\": \"ms\", \"baseline\": null, \"ratio\": null, \"runs\": %zu}\n",
                  name, median, values.size());
    } else {
      std::printf("%-18s median %8.3f ms   min %8.3f   max %8.3f   (%zu steps, %d threads)\n", name, median, values.front(),
                  values.back(), values.size(), threads);
    }
  };
  print("total", total);
  print("forward_backward", forward_backward);
  print("optim", optim);
  print("snapshot", snapshot);
  return 0;
}

}  // namespace
}  // namespace sluice::trainer

int main(int argc, char** argv) { return sluice::trainer::Main(argc, argv); }
