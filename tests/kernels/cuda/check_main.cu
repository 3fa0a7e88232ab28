#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/kernels/cuda/check.h"

namespace sluice::cuda_check {
namespace {

constexpr int kNoDevice = 77;  // Exit code that ctest counts as skipped.
constexpr int kRuns = 7;
constexpr float kLeastMilliseconds = 5;  // Of a run, to make the clock's resolution irrelevant.

bool small = false;
bool failed = false;  // The running case has failed.

std::vector<Entry>& Cases() {
  static std::vector<Entry> cases;
  return cases;
}
std::vector<Entry>& Benches() {
  static std::vector<Entry> benches;
  return benches;
}

bool RunCase(const Entry& entry) {
  failed = false;
  const auto begin = std::chrono::steady_clock::now();
  entry.body();
  CUDA_OK(cudaDeviceSynchronize());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("{\"case\": \"%s\", \"passed\": %s, \"seconds\": %.3f}\n", entry.name,
              failed ? "false" : "true", took.count());
  std::fflush(stdout);
  return !failed;
}

float Milliseconds(int launches, const std::function<void()>& launch) {
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  CUDA_OK(cudaEventRecord(begin));
  for (int i = 0; i < launches; ++i) launch();
  CUDA_OK(cudaEventRecord(end));
  CUDA_OK(cudaEventSynchronize(end));
  float milliseconds = 0;
  CUDA_OK(cudaEventElapsedTime(&milliseconds, begin, end));
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  return milliseconds;
}

void PrintDevice() {
  cudaDeviceProp device;
  CUDA_OK(cudaGetDeviceProperties(&device, 0));
  std::printf("{\"device\": \"%s\", \"architecture\": \"sm_%d%d\", \"multiprocessors\": %d}\n",
              device.name, device.major, device.minor, device.multiProcessorCount);
}

int Main(int argc, char** argv) {
  bool bench = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--small") {
      small = true;
    } else if (argument == "--bench") {
      bench = true;
    } else {
      std::fprintf(stderr,
                   "usage: %s [--small] [--bench]\n"
                   "  --small  use small inputs, because a tool checks each memory access\n"
                   "  --bench  run the benchmarks instead of the cases\n",
                   argv[0]);
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return kNoDevice;
  }
  PrintDevice();
  int failures = 0;
  for (const Entry& entry : bench ? Benches() : Cases()) failures += !RunCase(entry);
#ifdef CUDA_EMULATOR
  if (!bench) failures += sluice::cuda_emulator::PrintKernelsNeverRun();
#endif
  return failures == 0 ? 0 : 1;
}

}  // namespace

bool Small() { return small; }

AddCase::AddCase(const Entry& entry) { Cases().push_back(entry); }
AddBench::AddBench(const Entry& entry) { Benches().push_back(entry); }

Failure::Failure(const char* file, int line, const std::string& what) {
  text_ << file << ":" << line << ": " << what;
}
Failure::~Failure() {
  failed = true;
  std::fprintf(stderr, "%s\n", text_.str().c_str());
}

void Measure(const std::string& name, double bytes, double flops,
             const std::function<void()>& launch) {
  // The first launch is slower, so its time is not used.
  float once = Milliseconds(1, launch);
  if (small) return;  // Check only that it runs.
  once = std::max(Milliseconds(3, launch) / 3, 1e-3f);
  const int launches = std::max(1, static_cast<int>(kLeastMilliseconds / once));
  std::vector<float> runs;
  for (int i = 0; i < kRuns; ++i)
    runs.push_back(Milliseconds(launches, launch) / static_cast<float>(launches));
  std::sort(runs.begin(), runs.end());
  const double seconds = runs[kRuns / 2] / 1e3;
  std::printf(
      "{\"bench\": \"%s\", \"microseconds\": %.2f, \"gb_per_s\": %.2f, \"gflop_per_s\": %.2f}\n",
      name.c_str(), seconds * 1e6, bytes / seconds / 1e9, flops / seconds / 1e9);
  std::fflush(stdout);
}

}  // namespace sluice::cuda_check

int main(int argc, char** argv) { return sluice::cuda_check::Main(argc, argv); }
