// Measures prefill and decode of a Qwen3 shape of 33.6 M random parameters, and compares them with
// the limits of the machine's memory and arithmetic:
//   bench_engine [--dtype f32|bf16|both] [--batch 1,16,64] [--prompt 128] [--new 256] [--threads N]
//     [--runs N] [--cpu-time] [--json]
//     [--config FILE]
// With --config the shape is that of a config.json.
//
// The engine's scheduler and block manager plan the steps, which are computed and sampled as in the
// engine. `prefill` is the rate of the steps that compute prompt tokens (and the decodes in the
// same steps), `decode` that of all other steps, and `generate` the rate of new tokens over all
// steps. `schedule` is the time for planning, packing and bookkeeping in a step, with the whole
// step as its baseline. `sample` is the sampler's share of the time.
//
// The baseline of each figure is the roofline: for each step the longer of bytes / bandwidth
// (packed weights once, keys and values once) and operations / peak. Bandwidth and peak are
// measured before and after each run, and the better values are used, because other processes on
// the machine may slow a measurement down. `--new 32` gives a short run. Use `--threads 1
// --cpu-time` on a machine that others use.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/models/decode_model.h"
#include "services/rollout/core/scheduler/scheduler.h"
#include "tests/bench/engine/machine.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

constexpr absl::string_view kShape =
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8192, "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, )"
    R"("num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": false})";

constexpr int kPrefillTokens = 2048;  // Most tokens of a step, as the engine's max_batch_tokens.

struct Options {
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::vector<int> batches = {1, 16, 64};
  int prompt = 128, new_tokens = 256, runs = 3;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool json = false;
  std::string config;  // A config.json; empty: the shape above.
};

struct Machine {
  double bandwidth = 0, peak = 0;  // Bytes/s, operations/s.

  static Machine Now(DType dtype, int threads) {
    return {.bandwidth = ReadBandwidth(threads),
            .peak = dtype == DType::kF32 ? PeakFlops(threads) : PeakFlopsBf16(threads)};
  }
  static Machine Better(const Machine& a, const Machine& b) {
    return {.bandwidth = std::max(a.bandwidth, b.bandwidth), .peak = std::max(a.peak, b.peak)};
  }
};

// What a step must move and compute.
struct Work {
  double bytes = 0, operations = 0;
  double Seconds(const Machine& machine) const {
    return std::max(bytes / machine.bandwidth, operations / machine.peak);
  }
};

// Counts the work of a step from the model's shape.
class Costs {
 public:
  Costs(const ModelConfig& config, DType dtype)
      : number_bytes_(static_cast<double>(DTypeBytes(dtype))) {
    const double h = static_cast<double>(config.hidden_size),
                 q = static_cast<double>(config.num_heads * config.head_dim);
    const double kv = static_cast<double>(config.num_kv_heads * config.head_dim),
                 layers = static_cast<double>(config.num_layers);
    body_ = layers * (h * (2 * q + 2 * kv) + 3 * h * static_cast<double>(config.intermediate_size));
    head_ = h * static_cast<double>(config.vocab_size);
    position_numbers_ = layers * 2 * kv;
    position_operations_ = layers * 4 * q;
  }

  // Returns the work of a step of `rows` rows, `logits` of which compute logits. In total the rows
  // attend to `seen` positions, and the keys and values of `read` positions are read from memory.
  Work Step(double rows, double logits, double seen, double read) const {
    return {.bytes = number_bytes_ * (body_ + (logits > 0 ? head_ : 0) + position_numbers_ * read),
            .operations = 2 * (rows * body_ + logits * head_) + position_operations_ * seen};
  }

 private:
  const double number_bytes_;
  // body_ and head_ count the weights of all layers and of the output projection. A position of the
  // KV cache has position_numbers_ numbers; a row that attends to it takes position_operations_.
  double body_ = 0, head_ = 0, position_numbers_ = 0, position_operations_ = 0;
};

// The prefill steps or the decode steps of a run.
struct Phase {
  double tokens = 0, seconds = 0;
  std::vector<Work> steps;

  double Limit(const Machine& machine) const {  // Seconds that the roofline allows.
    double sum = 0;
    for (const Work& step : steps) sum += step.Seconds(machine);
    return sum;
  }
};
struct Result {
  Phase prefill, decode;
  double schedule = 0, sample = 0;  // Seconds, part of both phases.
  int steps = 0;
};

class Run {
 public:
  Run(const ModelConfig& config, DType dtype, const TensorSet* weights, const Options& options,
      int batch)
      : config_(config), options_(options), batch_(batch), costs_(config, dtype) {
    const int context = options.prompt + options.new_tokens;
    auto model = DecodeModel::Create(
        config, weights, {.blocks = Blocks(), .max_context = context, .threads = options.threads});
    SLUICE_CHECK_MSG(model.ok(), model.status().ToString());
    model_ = *std::move(model);
    logits_.resize(static_cast<size_t>(batch) * config.vocab_size);
  }

  // Runs all requests from their prompts to their ends.
  Result Measure() {
    Scheduler scheduler(
        {.blocks = static_cast<uint32_t>(Blocks()),
         .max_running = static_cast<uint32_t>(batch_),
         .max_batch_tokens = static_cast<uint32_t>(std::max(kPrefillTokens, batch_)),
         .salt = {.lo = 1, .hi = 1}});
    SplitMix64 random(1);
    for (int i = 0; i < batch_; ++i) {
      SchedulerRequest request{.id = static_cast<uint64_t>(i) + 1,
                               .prompt = static_cast<uint32_t>(options_.prompt),
                               .end = static_cast<uint32_t>(options_.prompt + options_.new_tokens)};
      for (int p = 0; p < options_.prompt; ++p)
        request.tokens.push_back(static_cast<int32_t>(random.Below(config_.vocab_size)));
      const absl::Status added = scheduler.Add(std::move(request));
      SLUICE_CHECK_MSG(added.ok(), added.ToString());
    }

    Result result;
    while (scheduler.running() + scheduler.waiting() > 0) Step(&scheduler, &result);
    return result;
  }

 private:
  int Blocks() const {
    return batch_ * static_cast<int>(BlocksFor(options_.prompt + options_.new_tokens));
  }

  void Step(Scheduler* scheduler, Result* result) {
    const double start = Seconds();
    const SchedulerPlan& plan = scheduler->Plan();
    Pack(plan);
    const double planned = Seconds();
    model_->Step(rows_, tables_, logits_.data());
    const double computed = Seconds();
    Sample(plan);
    const double sampled = Seconds();
    scheduler->Advance(drawn_);
    const double end = Seconds();

    Phase& phase = rows_.size() > drawn_.size() ? result->prefill : result->decode;
    phase.tokens += static_cast<double>(rows_.size());
    phase.seconds += end - start;
    phase.steps.push_back(costs_.Step(static_cast<double>(rows_.size()),
                                      static_cast<double>(drawn_.size()), seen_, read_));
    result->schedule += (planned - start) + (end - sampled);
    result->sample += sampled - computed;
    ++result->steps;
  }

  // Converts the plan to the model's input.
  void Pack(const SchedulerPlan& plan) {
    for (const BlockManager::Copy& copy : plan.copies) model_->CopyBlock(copy.from, copy.to);
    rows_.clear(), tables_.clear();
    seen_ = read_ = 0;
    for (const SchedulerPlan::Row& row : plan.rows) {
      const uint32_t end = row.first + row.count;
      for (uint32_t position = row.first; position < end; ++position) {
        rows_.push_back({static_cast<int32_t>(tables_.size()), static_cast<int32_t>(position),
                         row.tokens[position], row.sample && position + 1 == end});
        seen_ += position + 1;
      }
      read_ += row.first;
      tables_.push_back(row.blocks);
    }
  }

  void Sample(const SchedulerPlan& plan) {
    sampling_.clear(), drawn_.clear();
    for (const SchedulerPlan::Row& row : plan.rows) {
      if (!row.sample) continue;
      sampling_.push_back(
          {.logits = logits_.data() + sampling_.size() * static_cast<size_t>(config_.vocab_size),
           .key = 7,
           .position = static_cast<uint32_t>(row.tokens.size()),
           .member = static_cast<uint32_t>(row.request),
           .temperature = 1});
      drawn_.push_back({.ends = row.tokens.size() + 1 ==
                                static_cast<size_t>(options_.prompt + options_.new_tokens)});
    }
    draws_.resize(sampling_.size());
    model_->Draw(sampling_, draws_.data());
    for (size_t i = 0; i < draws_.size(); ++i) drawn_[i].token = draws_[i].token;
  }

  const ModelConfig& config_;
  const Options& options_;
  const int batch_;
  const Costs costs_;
  std::unique_ptr<DecodeModel> model_;
  std::vector<float> logits_;

  // The step that is running.
  std::vector<DecodeModel::Row> rows_;
  std::vector<absl::Span<const int32_t>> tables_;
  std::vector<SampleRow> sampling_;
  std::vector<SampleDraw> draws_;
  std::vector<Scheduler::Drawn> drawn_;
  double seen_ = 0, read_ = 0;  // As in Costs::Step().
};

void Measure(const ModelConfig& config, DType dtype, const TensorSet* weights,
             const Options& options, int batch, const Report& report) {
  Run run(config, dtype, weights, options, batch);
  run.Measure();  // Warm up, so that the pages of the KV cache are mapped.
  std::vector<double> bandwidth, peak, prefill, decode, total, prefill_limit, decode_limit,
      total_limit, schedule, step, sample;
  Machine before = Machine::Now(dtype, options.threads);
  for (int i = 0; i < options.runs; ++i) {
    const Result r = run.Measure();
    const Machine after = Machine::Now(dtype, options.threads),
                  machine = Machine::Better(before, after);
    before = after;

    const double new_tokens = static_cast<double>(batch) * options.new_tokens,
                 seconds = r.prefill.seconds + r.decode.seconds;
    const double prefill_seconds = r.prefill.Limit(machine),
                 decode_seconds = r.decode.Limit(machine);
    bandwidth.push_back(machine.bandwidth / 1e9), peak.push_back(machine.peak / 1e9);
    prefill.push_back(r.prefill.tokens / r.prefill.seconds),
        prefill_limit.push_back(r.prefill.tokens / prefill_seconds);
    decode.push_back(r.decode.tokens / r.decode.seconds),
        decode_limit.push_back(r.decode.tokens / decode_seconds);
    total.push_back(new_tokens / seconds),
        total_limit.push_back(new_tokens / (prefill_seconds + decode_seconds));
    schedule.push_back(1e6 * r.schedule / r.steps), step.push_back(1e6 * seconds / r.steps);
    sample.push_back(100 * r.sample / seconds);
  }

  const std::string name = absl::StrCat(dtype == DType::kF32 ? "f32" : "bf16", "_batch_", batch);
  const auto add = [&](absl::string_view what, const std::vector<double>& values,
                       absl::string_view unit, const std::vector<double>& baselines) {
    report.Add({.name = absl::StrCat(what, "_", name),
                .value = Median(values),
                .unit = std::string(unit),
                .baseline = Median(baselines),
                .runs = options.runs});
  };
  add("memory_bandwidth", bandwidth, "GB/s", {});
  add("multiply_peak", peak, "GFLOP/s", {});
  add("prefill", prefill, "tokens/s", prefill_limit);
  add("decode", decode, "tokens/s", decode_limit);
  add("generate", total, "tokens/s", total_limit);
  add("schedule", schedule, "us/step", step);
  add("sample", sample, "% of time", {});
}

absl::StatusOr<ModelConfig> ConfigOf(const Options& options) {
  std::string text(kShape);
  if (!options.config.empty()) {
    SLUICE_ASSIGN_OR_RETURN(text, ReadFile(options.config));
  }
  SLUICE_ASSIGN_OR_RETURN(
      const ModelConfig config,
      ParseModelConfig(text, options.config.empty() ? "shape" : options.config));
  if (options.prompt + options.new_tokens <= config.max_context) return config;
  return absl::InvalidArgumentError(
      absl::StrCat("prompt and new tokens are ", options.prompt + options.new_tokens,
                   ", the model's context is ", config.max_context, "; lower --prompt or --new"));
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures prefill and decode for a model's shape, and compares them with the limits of the "
      "machine's memory and arithmetic.");
  Options options;
  std::string dtype = "both";
  bool cpu_time = false;
  const CLI::Validator positive = CLI::Range(1, 1'000'000);
  app.add_option("--dtype", dtype, "type of the weights: f32, bf16 or both")
      ->check(CLI::IsMember({"f32", "bf16", "both"}))
      ->capture_default_str();
  app.add_option("--batch", options.batches,
                 "sequences at a time, with one run for each number, as in 1,16,64")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  app.add_option("--prompt", options.prompt, "tokens of a prompt")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--new", options.new_tokens, "tokens of an answer")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "number of compute threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--runs", options.runs, "number of runs; the figures are medians over the runs")
      ->check(positive)
      ->capture_default_str();
  app.add_flag("--cpu-time", cpu_time, "measure CPU time instead of wall time; needs --threads 1");
  app.add_option("--config", options.config,
                 "config.json of the shape; default: a Qwen3 of 33.6 M parameters");
  app.add_flag("--json", options.json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  if (dtype != "both") options.dtypes = {dtype == "f32" ? DType::kF32 : DType::kBF16};
  if (cpu_time) UseCpuTime();

  const absl::StatusOr<ModelConfig> config = ConfigOf(options);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
    return 2;
  }

  const Report report(options.json);
  report.Add(
      {.name = "parameters", .value = static_cast<double>(config->NumParameters()), .unit = ""});
  for (const DType dtype : options.dtypes) {
    const TensorSet weights = *InitWeights(*config, 1, dtype);
    for (const int batch : options.batches)
      Measure(*config, dtype, &weights, options, batch, report);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
