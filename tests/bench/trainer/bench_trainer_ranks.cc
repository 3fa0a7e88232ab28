// Measures the steps and the memory of a trainer with several ranks, each in a process of its own
// on this machine:
//   bench_trainer_ranks MODEL_DIR [--ranks N ..] [--shard none|optimizer|gradients|parameters ..]
//     [--threads N] [--steps N] [--groups N] [--prompt N] [--answer N]
//     [--micro-batch TOKENS] [--context] [--dtype float32|bfloat16] [--json]
// The baseline of each figure is that of one rank with the same number of threads. A step has the
// same batch whatever the number of ranks. After the steps two checkpoints are written, one by all
// ranks that have parts of the state and one by rank 0 alone, which is the baseline of the first;
// they are in the memory, and no time of them in the steps.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/reused_memory.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/collective/c10d_collective.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/trainer.h"
#include "tests/bench/report.h"
#include "tests/bench/trainer/batch.h"

namespace sluice::trainer {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);
const std::vector<std::string> kShardNames = {"none", "optimizer", "gradients",
                                              "parameters"};  // In the order of Shard.

// The rendezvous of processes of one machine, in a folder.
class FolderRendezvous : public Rendezvous {
 public:
  explicit FolderRendezvous(std::string dir) : dir_(std::move(dir)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return WriteFileAtomic(Path(key), value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const absl::Duration end = Clock::Real()->Monotonic() + timeout;
    while (true) {
      absl::StatusOr<std::string> value = ReadFile(Path(key));
      if (value.ok() || Clock::Real()->Monotonic() >= end) return value;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  std::string Path(const std::string& key) const {
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '_');
    return absl::StrCat(dir_, "/", name);
  }
  const std::string dir_;
};

struct Options {
  std::string model;
  Settings settings;
  BatchShape shape;
  int steps = 6;
};

// A checkpoint that was written.
struct CheckpointFigures {
  double milliseconds = 0;
  double rank_0 = 0, others = 0;  // MiB that rank 0 has written, and the most of another rank.
};

// What one rank reports: its largest memory and its CPU time. Rank 0 also has the times of the
// steps, and the checkpoints.
struct RankFigures {
  std::vector<double> milliseconds;
  CheckpointFigures together, alone;
  double mebibytes = 0, cpu_seconds = 0;
};

absl::StatusOr<CheckpointFigures> WriteCheckpoint(const Options& options, const std::string& dir,
                                                  Trainer& trainer) {
  SLUICE_ASSIGN_OR_RETURN(ModelDir model, ReadModelDir(options.model));
  SLUICE_ASSIGN_OR_RETURN(Trainer::Sources sources, trainer.TakeSnapshot());
  CheckpointContents contents{.model = std::move(sources.model),
                              .optimizer = std::move(sources.moments)};
  contents.state = {.job = "j", .version = {1, 0}, .ledger_hash = std::string(32, '\0')};
  CheckpointStore store({.dir = dir, .source = std::move(model)});
  const absl::Duration start = Clock::Real()->Monotonic();
  SLUICE_ASSIGN_OR_RETURN(const std::string path, store.Write(std::move(contents)));
  CheckpointFigures figures;
  figures.milliseconds = absl::ToDoubleMilliseconds(Clock::Real()->Monotonic() - start);

  std::map<int, double> of_rank;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    const std::string name = file.path().filename().string();
    const size_t at = name.find("-rank");
    of_rank[at == std::string::npos ? 0 : std::atoi(name.c_str() + at + 5)] +=
        static_cast<double>(file.file_size()) / (1 << 20);
  }
  for (const auto& [rank, mebibytes] : of_rank) {
    if (rank == 0) figures.rank_0 = mebibytes;
    else figures.others = std::max(figures.others, mebibytes);
  }
  return figures;
}

absl::StatusOr<std::vector<double>> RunSteps(const Options& options, const ModelConfig& config,
                                             Trainer& trainer) {
  SplitMix64 random(1);
  std::vector<double> milliseconds;
  for (int64_t k = 0; k < options.steps; ++k) {
    std::vector<Group> batch =
        MakeBatch(random, k, config.vocab_size, options.shape, /*one_prompt=*/true);
    const absl::Duration start = Clock::Real()->Monotonic();
    SLUICE_RETURN_IF_ERROR(trainer.Add(k, std::move(batch)));
    SLUICE_RETURN_IF_ERROR(trainer.Finish(k).status());
    if (k < 1) continue;  // Warm-up.
    milliseconds.push_back(absl::ToDoubleMilliseconds(Clock::Real()->Monotonic() - start));
  }
  return milliseconds;
}

absl::StatusOr<RankFigures> RunRank(const Options& options, const ModelConfig& config, int rank,
                                    int world, const std::string& dir) {
  const ReusedMemory memory;  // As the trainer.
  memory.UseOnThisThread();
  std::unique_ptr<Collective> steps;
  std::shared_ptr<Collective> snapshots;
  if (world > 1) {
    FolderRendezvous meet(dir);
    PrefixedRendezvous second(&meet, "snapshots_");
    SLUICE_ASSIGN_OR_RETURN(steps,
                            JoinC10d({.rank = rank, .world = world, .timeout = kTimeout}, &meet));
    SLUICE_ASSIGN_OR_RETURN(snapshots,
                            JoinC10d({.rank = rank, .world = world, .timeout = kTimeout}, &second));
  }
  RankFigures figures;
  {
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(options.settings, config, Clock::Real(), steps.get(), snapshots));
    if (rank > 0) {
      trainer->SetCheckpointDir(dir + "/together");
      // Ends with the error that rank 0 is gone.
      trainer->Follow([](bool) {}).IgnoreError();
    } else {
      {
        SLUICE_ASSIGN_OR_RETURN(const TensorSet weights, InitWeights(config, 1));
        SLUICE_RETURN_IF_ERROR(trainer->Load(weights));
      }
      SLUICE_ASSIGN_OR_RETURN(figures.milliseconds, RunSteps(options, config, *trainer));
      SLUICE_ASSIGN_OR_RETURN(figures.alone, WriteCheckpoint(options, dir + "/alone", *trainer));
      SLUICE_ASSIGN_OR_RETURN(figures.together,
                              WriteCheckpoint(options, dir + "/together", *trainer));
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  figures.mebibytes = static_cast<double>(usage.ru_maxrss) / 1024;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  figures.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return figures;
}

// Runs all ranks as child processes. Each leaves its figures in a file.
absl::StatusOr<std::vector<RankFigures>> RunRanks(const Options& options, const ModelConfig& config,
                                                  int world) {
  const std::string dir = absl::StrCat("/tmp/sluice-bench-ranks-", ToHex(RandomId16()));
  SLUICE_RETURN_IF_ERROR(MakeDirs(dir));
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child < 0) return absl::ResourceExhaustedError("fork failed");
    if (child == 0) {
      const absl::StatusOr<RankFigures> figures = RunRank(options, config, rank, world, dir);
      if (!figures.ok()) std::fprintf(stderr, "%s\n", figures.status().ToString().c_str());
      if (figures.ok()) {
        std::string text = absl::StrCat(figures->mebibytes, " ", figures->cpu_seconds);
        for (const CheckpointFigures& each : {figures->together, figures->alone})
          absl::StrAppend(&text, " ", each.milliseconds, " ", each.rank_0, " ", each.others);
        for (const double each : figures->milliseconds) absl::StrAppend(&text, " ", each);
        (void)WriteFileAtomic(absl::StrCat(dir, "/figures-", rank), text);
      }
      _exit(figures.ok() ? 0 : 1);
    }
    children.push_back(child);
  }

  bool ok = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ok = ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!ok) return absl::InternalError("a rank failed");
  std::vector<RankFigures> figures(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    std::ifstream in(absl::StrCat(dir, "/figures-", rank));
    in >> figures[rank].mebibytes >> figures[rank].cpu_seconds;
    for (CheckpointFigures* each : {&figures[rank].together, &figures[rank].alone})
      in >> each->milliseconds >> each->rank_0 >> each->others;
    for (double each; in >> each;) figures[rank].milliseconds.push_back(each);
  }
  RemoveTree(dir).IgnoreError();
  return figures;
}

void Print(const bench::Report& report, const std::string& run,
           const std::vector<RankFigures>& figures, const std::vector<RankFigures>& one) {
  const auto add = [&](const char* name, double value, const char* unit, double baseline,
                       size_t runs) {
    report.Add({.name = absl::StrCat(run, "_", name),
                .value = value,
                .unit = unit,
                .baseline = baseline,
                .runs = static_cast<int>(runs)});
  };
  const size_t runs = figures[0].milliseconds.size();
  add("step", bench::Median(figures[0].milliseconds), "ms", bench::Median(one[0].milliseconds),
      runs);
  double cpu = 0, most = 0;
  for (size_t rank = 0; rank < figures.size(); ++rank) {
    cpu += figures[rank].cpu_seconds;
    if (rank > 0) most = std::max(most, figures[rank].mebibytes);
  }
  add("cpu_of_all", cpu, "s", one[0].cpu_seconds, 1);
  const CheckpointFigures &together = figures[0].together, &alone = figures[0].alone;
  add("checkpoint", together.milliseconds, "ms", alone.milliseconds, 1);
  add("checkpoint_of_rank_0", together.rank_0, "MiB", alone.rank_0, 1);
  if (together.others > 0) add("checkpoint_of_others", together.others, "MiB", alone.rank_0, 1);
  add("memory_of_rank_0", figures[0].mebibytes, "MiB", one[0].mebibytes, 1);
  if (figures.size() > 1) add("memory_of_others", most, "MiB", one[0].mebibytes, 1);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures the steps and the memory of a trainer with several ranks, each a process of this "
      "machine. The baseline is one rank.\n\nExample:\n  bench_trainer_ranks "
      "configs/examples/digits --ranks 2 --ranks 4 --shard optimizer");
  Options options;
  int threads = 1;
  bool as_json = false, context = false;
  std::vector<int> worlds = {2};
  std::string dtype = "float32";
  std::vector<std::string> shards = {"optimizer"};
  app.add_option("MODEL_DIR", options.model,
                 "a model directory, as configs/examples/digits; its weights are random")
      ->required();
  app.add_option("--ranks", worlds, "number of ranks; may be given several times")
      ->check(CLI::Range(2, 64));
  app.add_option("--shard", shards, "what the ranks share out; may be given several times")
      ->check(CLI::IsMember(kShardNames))
      ->capture_default_str();
  app.add_option("--threads", threads, "compute threads of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "steps of each run; the first is not counted")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  AddShapeOptions(app, &options.shape);
  app.add_option("--micro-batch", options.settings.micro_batch_tokens,
                 "most tokens of one pass; longer sequences are computed in parts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--context", context,
               "the ranks compute sequences that are longer than a micro-batch together");
  app.add_option("--dtype", dtype, "arithmetic of the forward pass")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_flag("--json", as_json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  const absl::StatusOr<ModelDir> model = ReadModelDir(options.model);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\nhint: bench_trainer_ranks configs/examples/digits\n",
                 model.status().ToString().c_str());
    return 2;
  }
  SetComputeThreads([threads] { return threads; });
  const uint32_t micro_batch_tokens = options.settings.micro_batch_tokens;
  options.settings = BenchSettings(options.shape);
  options.settings.micro_batch_tokens = micro_batch_tokens;
  options.settings.dtype = *DTypeFromTorchName(dtype);

  const bench::Report report(as_json);
  std::vector<RankFigures> one;
  const auto measure = [&](int world, const std::string& run) {
    const absl::StatusOr<std::vector<RankFigures>> figures =
        RunRanks(options, model->config, world);
    if (!figures.ok()) {
      std::fprintf(stderr, "%s: %s\n", run.c_str(), figures.status().ToString().c_str());
      return false;
    }
    if (one.empty()) one = *figures;
    Print(report, run, *figures, one);
    return true;
  };
  if (!measure(1, "ranks_1")) return 1;
  for (const int world : worlds) {
    for (const std::string& shard : shards) {
      options.settings.shard =
          static_cast<Shard>(absl::c_find(kShardNames, shard) - kShardNames.begin());
      options.settings.context = context;
      const std::string run = absl::StrCat("ranks_", world, "_", shard, context ? "_context" : "");
      if (!measure(world, run)) return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::trainer

int main(int argc, char** argv) { return sluice::trainer::Main(argc, argv); }
