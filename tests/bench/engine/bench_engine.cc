// Prefill and decode of a Qwen3 shape of 33.6 M random parameters, held against what the machine's memory and multipliers allow:
//   bench_engine [--dtype f32|bf16|both] [--batch 1,16,64] [--prompt 128] [--new 256] [--threads N] [--runs N] [--cpu-time] [--json]
//
// The baseline of each figure is the roofline: for each step the longer of bytes / bandwidth (packed weights once, keys and values once)
// and operations / peak, with both measured in the same run, beside the work. `--new 32` gives a short run, `--threads 1 --cpu-time`
// figures of a machine that others use.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/models/decode_model.h"
#include "kernels/sample/op.h"
#include "tests/bench/engine/machine.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

constexpr absl::string_view kShape = R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8192, "hidden_size": 512,
    "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": false})";

constexpr int kPrefillTokens = 2048;  // Of a step, as the engine's max_batch_tokens.

struct Options {
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  std::vector<int> batches = {1, 16, 64};
  int prompt = 128, fresh = 256, runs = 3;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  bool json = false;
};

struct Machine {
  double bandwidth = 0, peak = 0;  // Bytes/s, operations/s.
  void Measure(DType dtype, int threads) {
    bandwidth = std::max(bandwidth, ReadBandwidth(threads));
    peak = std::max(peak, dtype == DType::kF32 ? PeakFlops(threads) : PeakFlopsBf16(threads));
  }
};

// What a step must move and compute.
struct Work {
  double bytes = 0, operations = 0;
  double Seconds(const Machine& machine) const { return std::max(bytes / machine.bandwidth, operations / machine.peak); }
};

class Costs {
 public:
  Costs(const ModelConfig& config, DType dtype) : number_bytes_(static_cast<double>(DTypeBytes(dtype))) {
    const double h = static_cast<double>(config.hidden_size), q = static_cast<double>(config.num_heads * config.head_dim);
    const double kv = static_cast<double>(config.num_kv_heads * config.head_dim), layers = static_cast<double>(config.num_layers);
    body_ = layers * (h * (2 * q + 2 * kv) + 3 * h * static_cast<double>(config.intermediate_size));
    head_ = h * static_cast<double>(config.vocab_size);
    position_numbers_ = layers * 2 * kv;
    position_operations_ = layers * 4 * q;
  }

  // A step of `rows` rows, `logits` of which give logits, which see `seen` positions in all; of `read` positions keys and values come
  // from memory.
  Work Step(double rows, double logits, double seen, double read) const {
    return {.bytes = number_bytes_ * (body_ + (logits > 0 ? head_ : 0) + position_numbers_ * read),
            .operations = 2 * (rows * body_ + logits * head_) + position_operations_ * seen};
  }

 private:
  const double number_bytes_;
  double body_ = 0, head_ = 0, position_numbers_ = 0, position_operations_ = 0;
};

struct Result {
  double prefill = 0, decode = 0, sample = 0;  // Seconds; `sample` is part of both.
  double prefill_limit = 0, decode_limit = 0;  // Of the roofline.
};

class Run {
 public:
  Run(const ModelConfig& config, DType dtype, const TensorSet* weights, const Options& options, int batch)
      : config_(config), options_(options), batch_(batch), costs_(config, dtype) {
    const int per = (options.prompt + options.fresh + DecodeModel::kBlockTokens - 1) / DecodeModel::kBlockTokens;
    auto model = DecodeModel::Create(config, weights, {.blocks = per * batch, .max_context = options.prompt + options.fresh, .threads = options.threads});
    SLUICE_CHECK_MSG(model.ok(), model.status().ToString());
    model_ = *std::move(model);
    for (int i = 0; i < batch; ++i) {
      blocks_.emplace_back(per);
      for (int j = 0; j < per; ++j) blocks_[i][j] = j * batch + i;  // As they come when all grow together.
    }
    tables_.assign(blocks_.begin(), blocks_.end());
    logits_.resize(static_cast<size_t>(batch) * config.vocab_size);
    next_.resize(batch);
  }

  Result Measure(const Machine& machine) {
    Result result;
    SplitMix64 random(1);
    double start = Seconds();
    std::vector<DecodeModel::Row> rows;
    for (int i = 0; i < batch_; ++i) {
      for (int p = 0; p < options_.prompt; ++p) {
        rows.push_back({i, p, static_cast<int32_t>(random.Below(config_.vocab_size)), p + 1 == options_.prompt});
        if (static_cast<int>(rows.size()) == kPrefillTokens || (i + 1 == batch_ && p + 1 == options_.prompt)) Prefill(&rows, machine, &result);
      }
    }
    result.prefill = Seconds() - start;
    start = Seconds();
    for (int step = 1; step < options_.fresh; ++step) {
      rows.clear();
      const int position = options_.prompt + step - 1;
      for (int i = 0; i < batch_; ++i) rows.push_back({i, position, next_[i], true});
      model_->Step(rows, tables_, logits_.data());
      for (int i = 0; i < batch_; ++i) Sample(i, logits_.data() + static_cast<size_t>(i) * config_.vocab_size, position + 1, &result);
      const double seen = static_cast<double>(batch_) * (position + 1);
      result.decode_limit += costs_.Step(batch_, batch_, seen, seen).Seconds(machine);
    }
    result.decode = Seconds() - start;
    return result;
  }

 private:
  void Prefill(std::vector<DecodeModel::Row>* rows, const Machine& machine, Result* result) {
    model_->Step(*rows, tables_, logits_.data());
    double wanted = 0, seen = 0;
    for (const DecodeModel::Row& row : *rows) {
      seen += row.position + 1;
      if (!row.want_logits) continue;
      Sample(row.table, logits_.data() + static_cast<size_t>(wanted) * config_.vocab_size, row.position + 1, result);
      ++wanted;
    }
    result->prefill_limit += costs_.Step(static_cast<double>(rows->size()), wanted, seen, 0).Seconds(machine);
    rows->clear();
  }

  void Sample(int sequence, const float* logits, int position, Result* result) {
    const double start = Seconds();
    const SampleRow row{.logits = logits, .key = 7, .position = static_cast<uint32_t>(position), .member = static_cast<uint32_t>(sequence), .temperature = 1};
    SampleDraw draw;
    SampleCpu(&row, 1, config_.vocab_size, &draw);
    next_[sequence] = draw.token;
    result->sample += Seconds() - start;
  }

  const ModelConfig& config_;
  const Options& options_;
  const int batch_;
  const Costs costs_;
  std::unique_ptr<DecodeModel> model_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<absl::Span<const int32_t>> tables_;
  std::vector<float> logits_;
  std::vector<int32_t> next_;
};

void Measure(const ModelConfig& config, DType dtype, const TensorSet* weights, const Options& options, int batch, const Report& report) {
  Machine machine;
  machine.Measure(dtype, options.threads);
  Run run(config, dtype, weights, options, batch);
  std::vector<double> prefill, decode, total, prefill_limit, decode_limit, total_limit, sample;
  for (int i = 0; i <= options.runs; ++i) {
    const Result r = run.Measure(machine);
    machine.Measure(dtype, options.threads);
    if (i == 0) continue;  // Warm-up: pages of the cache.
    const double prompts = static_cast<double>(batch) * options.prompt, fresh = static_cast<double>(batch) * (options.fresh - 1);
    prefill.push_back(prompts / r.prefill), prefill_limit.push_back(prompts / r.prefill_limit);
    decode.push_back(fresh / r.decode), decode_limit.push_back(fresh / r.decode_limit);
    total.push_back((fresh + batch) / (r.prefill + r.decode)), total_limit.push_back((fresh + batch) / (r.prefill_limit + r.decode_limit));
    sample.push_back(100 * r.sample / (r.prefill + r.decode));
  }
  const std::string name = absl::StrCat(dtype == DType::kF32 ? "f32" : "bf16", "_batch_", batch);
  report.Add({.name = absl::StrCat("memory_bandwidth_", name), .value = machine.bandwidth / 1e9, .unit = "GB/s"});
  report.Add({.name = absl::StrCat("multiply_peak_", name), .value = machine.peak / 1e9, .unit = "GFLOP/s"});
  report.Add({.name = absl::StrCat("prefill_", name), .value = Median(prefill), .unit = "tokens/s", .baseline = Median(prefill_limit), .runs = options.runs});
  report.Add({.name = absl::StrCat("decode_", name), .value = Median(decode), .unit = "tokens/s", .baseline = Median(decode_limit), .runs = options.runs});
  report.Add({.name = absl::StrCat("generate_", name), .value = Median(total), .unit = "tokens/s", .baseline = Median(total_limit), .runs = options.runs});
  report.Add({.name = absl::StrCat("sample_", name), .value = Median(sample), .unit = "% of time", .runs = options.runs});
}

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view name = argv[i];
    if (name == "--json" || name == "--cpu-time") {
      if (name == "--json") options->json = true;
      else UseCpuTime();
      continue;
    }
    if (i + 1 == argc) return false;
    const absl::string_view value = argv[++i];
    bool ok = true;
    if (name == "--dtype") {
      ok = value == "both" || value == "f32" || value == "bf16";
      if (value == "f32") options->dtypes = {DType::kF32};
      if (value == "bf16") options->dtypes = {DType::kBF16};
    } else if (name == "--batch") {
      options->batches.clear();
      for (const absl::string_view part : absl::StrSplit(value, ',')) ok = ok && absl::SimpleAtoi(part, &options->batches.emplace_back());
      for (const int batch : options->batches) ok = ok && batch >= 1;
    } else {
      int* const to = name == "--prompt" ? &options->prompt : name == "--new" ? &options->fresh : name == "--threads" ? &options->threads
                      : name == "--runs" ? &options->runs : nullptr;
      ok = to != nullptr && absl::SimpleAtoi(value, to) && *to >= (name == "--new" ? 2 : 1);
    }
    if (!ok) return false;
  }
  return options->prompt + options->fresh <= 4096;
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fprintf(stderr, "usage: bench_engine [--dtype f32|bf16|both] [--batch 1,16,64] [--prompt N] [--new N] [--threads N] [--runs N] [--cpu-time] [--json]\n"
                         "prompt and new tokens are at most 4096 together\n");
    return 2;
  }
  const ModelConfig config = *ParseModelConfig(kShape, "shape");
  const Report report(options.json);
  report.Add({.name = "parameters", .value = static_cast<double>(config.NumParameters()), .unit = ""});
  for (const DType dtype : options.dtypes) {
    const TensorSet weights = *InitWeights(config, 1, dtype);
    for (const int batch : options.batches) Measure(config, dtype, &weights, options, batch, report);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
