// Measures the weight deltas of one optimizer step on one core: their size, and the speed of
// encoding (detect, encode, copy to the shadow, fold the fingerprint) and applying. Baselines of
// the same run are the other ways to send a change (index and value, 16-bit gap and value, XOR with
// zstd level 1), and plain copies; baselines of sizes are the figures of the design.
//
//   bench_weight_delta [--json] [--mib N] [--runs N]
// Speeds count the bytes of the model. Each is given by wall time and by CPU time.
#include <dlfcn.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/weights/delta_chunk.h"
#include "kernels/weight_delta/bits.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

using kernels::DeltaTile;

// The columns of the design's table, with its bytes per changed element for tiles of 8192 and of
// 65536, and for XOR with zstd.
struct Column {
  const char* name;
  double lr, short_tiles, long_tiles, xor_zstd;
};
constexpr Column kColumns[] = {{"0.1%", 1e-7, 2.81, 1.92, 3.9},
                               {"0.3%", 3.5e-7, 1.93, 1.63, 3.0},
                               {"0.86%", 1.2e-6, 1.51, 1.41, 2.9},
                               {"2.6%", 4.5e-6, 1.25, 1.22, 2.5},
                               {"7.3%", 1.6e-5, 1.06, 1.05, 2.1}};

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double CpuSeconds() {
  timespec now;
  SLUICE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Seconds {
  double wall = 0, cpu = 0;
};
Seconds Measure(int runs, const std::function<void()>& run) {
  run();  // Warms caches and memory.
  std::vector<double> wall, cpu;
  for (int i = 0; i < runs; ++i) {
    const double wall_begin = WallSeconds(), cpu_begin = CpuSeconds();
    run();
    wall.push_back(WallSeconds() - wall_begin), cpu.push_back(CpuSeconds() - cpu_begin);
  }
  return {Median(wall), Median(cpu)};
}

// zstd's library, which every Debian has, without its headers. ZSTD_compress has been the same
// since version 1.0.
class Zstd {
 public:
  Zstd() {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW);
    if (library == nullptr) return;
    compress_ = reinterpret_cast<Compress>(dlsym(library, "ZSTD_compress"));
  }
  bool found() const { return compress_ != nullptr; }
  size_t CompressLevel1(const std::vector<char>& from, std::vector<char>* to) const {
    to->resize(from.size() + from.size() / 128 + 1024);
    return compress_(to->data(), to->size(), from.data(), from.size(), 1);
  }

 private:
  using Compress = size_t (*)(void*, size_t, const void*, size_t, int);
  Compress compress_ = nullptr;
};

// bf16 weights before and after one step of AdamW (betas 0.9 and 0.999) whose moments are warm:
// gradients are normal, so the mean of past gradients has a variance of 0.1 / 1.9. The weights are
// normal with a median of 0.019; their masters are fp32.
struct Step {
  std::vector<uint16_t> before, after;
  uint64_t changed = 0;
  double entropy_bytes = 0;  // Of which elements change, and by how much, as independent draws.
};
class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}
  float Next() {  // Box and Muller.
    const double u = 1 - random_.Uniform(), v = random_.Uniform();
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  }

 private:
  SplitMix64 random_;
};
uint16_t RoundToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
Step MakeStep(uint64_t count, double lr) {
  constexpr float kSigma = 0.019f / 0.67449f;
  const float past = std::sqrt(0.1f / 1.9f);
  Normal normal(1);
  Step step;
  std::map<uint16_t, uint64_t> differences;
  for (uint64_t i = 0; i < count; ++i) {
    const float w = kSigma * normal.Next(), g = normal.Next();
    const float m = 0.9f * past * normal.Next() + 0.1f * g, v = 0.999f + 0.001f * g * g;
    step.before.push_back(RoundToBf16(w));
    step.after.push_back(RoundToBf16(w - static_cast<float>(lr) * m / std::sqrt(v)));
    if (step.before.back() != step.after.back())
      ++differences[kernels::Difference(step.after.back(), step.before.back())], ++step.changed;
  }

  const double n = static_cast<double>(count), changed = static_cast<double>(step.changed);
  const auto bits = [](double part, double all) { return part * std::log2(all / part); };
  double entropy = bits(changed, n) + bits(n - changed, n);
  for (const auto& [d, times] : differences) entropy += bits(static_cast<double>(times), changed);
  step.entropy_bytes = entropy / 8;
  return step;
}

class Bench {
 public:
  Bench(bool json, uint64_t count, int runs) : report_(json), count_(count), runs_(runs) {
    if (!zstd_.found())
      std::fprintf(stderr, "libzstd.so.1 is not installed: there are no figures of XOR and zstd\n");
  }

  void Run() {
    const std::vector<uint16_t> from(count_, 1);
    std::vector<uint16_t> to(count_);
    copy_ = Measure(runs_, [&] { std::memcpy(to.data(), from.data(), model_bytes()); });
    Speed("copy", copy_, {});
    for (const Column& column : kColumns) {
      const Step step = MakeStep(count_, column.lr);
      MeasureColumn(column, step);
      if (column.lr == 1.2e-6) MeasureDetectors(column, step);
    }
  }

 private:
  uint64_t model_bytes() const { return 2 * count_; }

  void Add(const std::string& name, double value, const std::string& unit, double baseline) const {
    report_.Add({.name = absl::StrCat("weight_delta.", name),
                 .value = value,
                 .unit = unit,
                 .baseline = baseline,
                 .runs = runs_});
  }
  void Speed(const std::string& name, const Seconds& took, const Seconds& baseline) const {
    const double gb = static_cast<double>(model_bytes()) / 1e9;
    const auto speed = [&](double seconds) { return seconds == 0 ? 0 : gb / seconds; };
    Add(absl::StrCat(name, ".wall"), speed(took.wall), "GB/s", speed(baseline.wall));
    Add(absl::StrCat(name, ".cpu"), speed(took.cpu), "GB/s", speed(baseline.cpu));
  }

  kernels::DeltaShard Shard() const { return {.tid = TensorKey("w"), .count = count_}; }

  // Encodes `now` against the shadow into one chunk after the other, and returns their bytes.
  uint64_t Encode(const std::vector<uint16_t>& now, std::vector<uint16_t>* shadow, int tile_log2,
                  std::vector<std::string>* chunks) const {
    const DeltaInput input = {0, 2, {Shard(), now.data(), shadow->data()}};
    Fingerprint sum;
    uint64_t bytes = 0;
    chunks->clear();
    EncodeDeltaChunks(
        {&input, 1}, {.tile_log2 = tile_log2},
        [](int64_t n, absl::FunctionRef<void(int64_t)> work) {
          for (int64_t i = 0; i < n; ++i) work(i);
        },
        [&](std::string chunk) {
          bytes += chunk.size();
          chunks->push_back(std::move(chunk));
        },
        {&sum, 1});
    return bytes;
  }

  void MeasureColumn(const Column& column, const Step& step) const {
    const double changed = static_cast<double>(step.changed);
    Add(absl::StrCat("density.", column.name), 100 * changed / static_cast<double>(count_), "%", 0);
    std::vector<uint16_t> shadow = step.before;
    std::vector<std::string> chunks;
    const auto long_bytes =
        static_cast<double>(Encode(step.after, &shadow, kernels::kLongDeltaTileLog2, &chunks));
    shadow = step.before;
    const auto bytes =
        static_cast<double>(Encode(step.after, &shadow, kernels::kDeltaTileLog2, &chunks));
    const auto size = [&](const std::string& what, double value, double baseline) {
      Add(absl::StrCat("bytes_per_change.", column.name, what), value / changed, "B", baseline);
    };
    size(".tiles_8192_to_design", bytes, column.short_tiles);
    size(".tiles_65536_to_design", long_bytes, column.long_tiles);
    size(".to_entropy", bytes, step.entropy_bytes / changed);
    size(".to_index_and_value", bytes, 6);
    size(".to_gap_and_value", bytes, 4);

    // Each run goes to the other state.
    bool forward = false;  // The shadow is `after`.
    const Seconds encode = Measure(runs_, [&] {
      Encode(forward ? step.after : step.before, &shadow, kernels::kDeltaTileLog2, &chunks);
      forward = !forward;
    });
    Speed(absl::StrCat("encode.", column.name, ".to_copy"), encode, copy_);
    if (zstd_.found()) {
      uint64_t xor_bytes = 0;
      const Seconds xor_zstd = Measure(runs_, [&] { xor_bytes = XorZstd(step); });
      size(".xor_zstd_to_design", static_cast<double>(xor_bytes), column.xor_zstd);
      size(".to_xor_zstd", bytes, static_cast<double>(xor_bytes) / changed);
      Speed(absl::StrCat("encode.", column.name, ".to_xor_zstd"), encode, xor_zstd);
    }
    MeasureApply(column, step);
  }

  uint64_t XorZstd(const Step& step) const {
    uint64_t bytes = 0;
    std::vector<char> difference, packed;
    for (uint64_t start = 0; start < count_; start += kChunkTargetBytes / 2) {
      const uint64_t n = std::min(count_ - start, kChunkTargetBytes / 2);
      difference.resize(2 * n);
      for (uint64_t i = 0; i < n; ++i) {
        const auto x = static_cast<uint16_t>(step.before[start + i] ^ step.after[start + i]);
        std::memcpy(&difference[2 * i], &x, 2);
      }
      bytes += zstd_.CompressLevel1(difference, &packed);
    }
    return bytes;
  }

  void MeasureApply(const Column& column, const Step& step) const {
    const std::vector<TensorSpec> layout = {{"w", DType::kBF16, {static_cast<int64_t>(count_)}}};
    std::vector<uint16_t> shadow = step.before, weights = step.before;
    std::vector<std::string> bytes;
    Encode(step.after, &shadow, kernels::kDeltaTileLog2, &bytes);
    std::vector<DeltaChunk> chunks;
    const Seconds check = Measure(runs_, [&] {
      chunks.clear();
      for (const std::string& chunk : bytes) chunks.push_back(*DeltaChunk::Parse(chunk, layout));
    });
    const DeltaTarget target = {0, Shard(), weights.data()};
    Fingerprint sum;
    int sign = -1;
    const Seconds apply = Measure(runs_, [&] {
      sign = -sign;
      for (const DeltaChunk& chunk : chunks) chunk.Apply(sign, {&target, 1}, {&sum, 1});
    });
    SLUICE_CHECK(weights == (sign > 0 ? step.after : step.before));
    Speed(absl::StrCat("check.", column.name, ".to_copy"), check, copy_);
    Speed(absl::StrCat("apply.", column.name, ".to_copy"), apply, copy_);
  }

  void MeasureDetectors(const Column& column, const Step& step) const {
    kernels::DeltaChanges changes;
    for (const kernels::DeltaDetector& detector : kernels::DeltaDetectors()) {
      const Seconds took = Measure(runs_, [&] {
        for (uint64_t start = 0; start < count_; start += 8192) {
          detector.detect(2, &step.after[start], &step.before[start],
                          static_cast<uint32_t>(std::min<uint64_t>(8192, count_ - start)),
                          &changes);
        }
      });
      Speed(absl::StrCat("detect.", column.name, ".", detector.name, ".to_copy"), took, copy_);
    }
  }

  const Report report_;
  const uint64_t count_;
  const int runs_;
  const Zstd zstd_;
  Seconds copy_;
};

int Main(int argc, char** argv) {
  CLI::App app("Measures size and speed of weight deltas on one core.");
  bool json = false;
  uint64_t mib = 64;
  int runs = 5;
  app.add_option("--mib", mib, "MiB of bf16 weights")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--runs", runs, "runs of each measurement; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  Bench(json, (mib << 20) / 2, runs).Run();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
