// Compares what a step of training spends its time on with what the machine can do at best:
//   bench_trainer_kernels [--tokens N] [--heads N] [--kv-heads N] [--head-dim N]
//     [--parameters N] [--threads N] [--runs N] [--json]
// attention: forward and backward of one sequence, in arithmetic per second. Its baseline is the
//   speed of a large product of the kernels' own, measured in turn with it on the same threads.
//   The work is counted as FlashAttention counts it: two products forward and five backward, of
//   which a causal sequence needs half.
// adamw: bytes per second that an update moves: it reads parameter, gradient and two moments and
//   writes all but the gradient. Its baseline is a loop that adds one array to another, on the same
//   threads.

#include <ATen/ops/rand.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "common/base/clock.h"
#include "common/models/parallel.h"
#include "common/models/train_model.h"
#include "common/models/train_ops.h"
#include "kernels/decoder/op.h"
#include "services/trainer/core/optimizer.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/trainer.h"
#include "tests/bench/report.h"

namespace sluice::trainer {
namespace {

struct Options {
  int64_t tokens = 8192, heads = 16, kv_heads = 8, head_dim = 128;  // Those of Qwen3-0.6B.
  int64_t parameters = 64'000'000;
  int threads = 2, runs = 3;
};

double Seconds(absl::Duration start) {
  return absl::ToDoubleSeconds(Clock::Real()->Monotonic() - start);
}

// Returns the speed of a product of the kernels, in 10^9 operations per second.
double MeasureProduct(int threads) {
  constexpr int64_t kRows = 256, kInputs = 1024, kOutputs = 1024;
  const std::vector<float> x(kRows * kInputs, 0.5f),
      rows(kOutputs * kInputs, 0.25f);  // [outputs, inputs]
  std::vector<float> packed(PackedFloats(kOutputs, kInputs));
  PackRows(rows.data(), kOutputs, kInputs, 0, packed.data());
  std::vector<std::vector<float>> out(threads, std::vector<float>(kRows * kOutputs));
  const auto start = Clock::Real()->Monotonic();
  constexpr int kTimes = 40;
  ParallelEach(threads, [&](int64_t i) {
    for (int n = 0; n < kTimes; ++n) {
      BestDecoderOps().gemm(x.data(), kInputs, packed.data(), kRows, kOutputs, kInputs,
                            out[i].data(), kOutputs, false);
    }
  });
  return 2e-9 * kRows * kInputs * kOutputs * kTimes * threads / Seconds(start);
}

// Returns the speed of attention, in 10^9 operations per second.
double MeasureAttention(const Options& o, bool halves) {
  const auto make = [&](int64_t heads) {
    return at::rand({o.tokens, heads * o.head_dim}).requires_grad_(true);
  };
  const at::Tensor q = make(o.heads), k = make(o.kv_heads), v = make(o.kv_heads);
  const auto start = Clock::Real()->Monotonic();
  const at::Tensor out =
      train_ops::CausalAttention(q, k, v, {0, o.tokens}, {}, o.head_dim, /*window=*/0, halves);
  const absl::Status status = Backward(out.sum());
  SLUICE_CHECK(status.ok());
  const double products = 2 + 5, length = static_cast<double>(o.tokens);
  return products * 1e-9 * length * length * static_cast<double>(o.heads * o.head_dim) /
         Seconds(start);
}

// Returns how fast a loop that adds one array to another moves bytes, in GB/s.
double MeasureMemory(int64_t floats) {
  std::vector<float> from(floats, 1.0f), to(floats, 2.0f);
  const auto start = Clock::Real()->Monotonic();
  ParallelFor(floats, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] += from[i];
  });
  return 3e-9 * sizeof(float) * static_cast<double>(floats) / Seconds(start);
}

// Returns how fast an update of AdamW moves bytes, in GB/s.
class AdamW {
 public:
  AdamW(int64_t parameters, DType moments)
      : moments_(moments),
        tensor_(at::zeros({parameters / 1000, 1000}).requires_grad_(true)),
        parameters_{{"model.norm.weight", tensor_}},
        ranks_(nullptr),
        optimizer_(parameters_, {.lr = 1e-3, .max_grad_norm = 0, .moments = moments}, &ranks_,
                   /*share_moments=*/false) {}

  double Measure() {
    tensor_.mutable_grad().fill_(1e-3);
    const auto start = Clock::Real()->Monotonic();
    const absl::StatusOr<Optimizer::Outcome> outcome = optimizer_.Update(1, 1, 1);
    SLUICE_CHECK(outcome.ok() && outcome->applied);
    const double bytes = 12 + 4 * static_cast<double>(DTypeBytes(moments_));
    return 1e-9 * bytes * static_cast<double>(tensor_.numel()) / Seconds(start);
  }

 private:
  const DType moments_;
  at::Tensor tensor_;
  const std::vector<TrainModel::Parameter> parameters_;
  Ranks ranks_;
  Optimizer optimizer_;
};

// Measures `value` and `baseline` in turns, and reports the medians.
template <typename Value, typename Baseline>
void Compare(const bench::Report& report, const Options& options, const char* name,
             const char* unit, const Value& value, const Baseline& baseline) {
  std::vector<double> values, baselines;
  for (int i = 0; i <= options.runs; ++i) {
    const double before = baseline(), now = value();
    if (i == 0) continue;  // Warm-up.
    values.push_back(now), baselines.push_back(before);
  }
  report.Add({.name = name,
              .value = bench::Median(values),
              .unit = unit,
              .baseline = bench::Median(baselines),
              .runs = options.runs});
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Compares attention of one long sequence and AdamW with the speed of a large product and of "
      "memory on this machine.\n\nExample:\n  bench_trainer_kernels --tokens 8192");
  Options options;
  bool as_json = false;
  const auto count = [&](const char* flag, auto* to, const char* doc) {
    app.add_option(flag, *to, doc)->check(CLI::PositiveNumber)->capture_default_str();
  };
  count("--tokens", &options.tokens, "tokens of the sequence");
  count("--heads", &options.heads, "query heads");
  count("--kv-heads", &options.kv_heads, "heads of keys and values");
  count("--head-dim", &options.head_dim, "numbers of a head");
  count("--parameters", &options.parameters, "parameters that AdamW updates");
  count("--threads", &options.threads, "compute threads");
  count("--runs", &options.runs, "runs of which the median is printed, after one for warm-up");
  app.add_flag("--json", as_json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);
  SetComputeThreads([threads = options.threads] { return threads; });

  const bench::Report report(as_json);
  const auto product = [&] { return MeasureProduct(options.threads); };
  Compare(
      report, options, "attention_fp32", "GFLOP/s",
      [&] { return MeasureAttention(options, /*halves=*/false); }, product);
  Compare(
      report, options, "attention_fp16_keys", "GFLOP/s",
      [&] { return MeasureAttention(options, /*halves=*/true); }, product);
  const auto memory = [&] { return MeasureMemory(options.parameters); };
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    AdamW adamw(options.parameters, moments);
    Compare(
        report, options, moments == DType::kF32 ? "adamw" : "adamw_bf16_moments", "GB/s",
        [&] { return adamw.Measure(); }, memory);
  }

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  report.Add({.name = "cpu_of_all_runs",
              .value = seconds(usage.ru_utime) + seconds(usage.ru_stime),
              .unit = "s"});
  return 0;
}

}  // namespace
}  // namespace sluice::trainer

int main(int argc, char** argv) { return sluice::trainer::Main(argc, argv); }
