#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

// Macros and functions for programs that check CUDA kernels. They need no test library, so the
// programs run on a bare machine with a GPU and on tests/cuda_emulator. There is one program per
// kernel:
//
//   CUDA_CASE(NormHasTheBitsOfTheCpu) {
//     OnDevice<float> x(host_x), y(count);
//     CUDA_OK(cuda::RmsNorm(x.data(), .., y.data(), nullptr));
//     CUDA_EXPECT(SameBits(y.CopyToHost(), expected)) << count << " numbers";
//   }
//   CUDA_BENCH(NormSpeed) { Measure("rms_norm", bytes, flops, [&] { launch }); }
//
// check_main.cu has main(): it runs the cases, or with --bench the benchmarks, and prints one JSON
// object per line. A failed expectation is printed, and the case goes on.
namespace sluice::cuda_check {

// Whether inputs should be small, because a tool checks each memory access (--small).
bool Small();

// A case or a benchmark.
struct Entry {
  const char* name;
  void (*body)();
};
// CUDA_CASE and CUDA_BENCH below define objects of these types, which register an entry.
struct AddCase {
  explicit AddCase(const Entry& entry);
};
struct AddBench {
  explicit AddBench(const Entry& entry);
};

// Collects the text that is written to it. Its destructor prints the text and makes the running
// case fail.
class Failure {
 public:
  Failure(const char* file, int line, const std::string& what);
  ~Failure();
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  template <typename T>
  Failure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

#define CUDA_CASE(name)                                                  \
  static void name();                                                    \
  static const ::sluice::cuda_check::AddCase name##_case({#name, name}); \
  static void name()
#define CUDA_BENCH(name)                                                   \
  static void name();                                                      \
  static const ::sluice::cuda_check::AddBench name##_bench({#name, name}); \
  static void name()

#define CUDA_EXPECT(condition) \
  if (condition) {             \
  } else ::sluice::cuda_check::Failure(__FILE__, __LINE__, "not true: " #condition) << " "
#define CUDA_OK(call)                                                                      \
  if (const auto cuda_error = static_cast<cudaError_t>(call); cuda_error == cudaSuccess) { \
  } else                                                                                   \
    ::sluice::cuda_check::Failure(__FILE__, __LINE__, #call)                               \
        << " failed: " << cudaGetErrorString(cuda_error) << " "

// Measures the time of one `launch`, which moves at least `bytes` bytes and does `flops` additions
// and multiplications, and prints the median of several runs.
void Measure(const std::string& name, double bytes, double flops,
             const std::function<void()>& launch);

// An array in device memory: a copy of a host array, or uninitialised memory.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    CUDA_OK(cudaMalloc(&data_, count_ * sizeof(T)));
  }
  explicit OnDevice(const std::vector<T>& host) : OnDevice(host.size()) {
    CUDA_OK(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() { return data_; }
  std::vector<T> CopyToHost() const {
    std::vector<T> host(count_);
    CUDA_OK(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  const size_t count_;
  T* data_ = nullptr;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Returns numbers from a normal distribution around 0.
inline std::vector<float> RandomFloats(uint32_t seed, int64_t count, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(random);
  return x;
}

// Repeats the same numbers. Use it if many numbers are needed and only the time matters.
inline std::vector<float> ManyFloats(int64_t count) {
  const std::vector<float> some = RandomFloats(1, 1 << 16);
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = some[i % some.size()];
  return x;
}

}  // namespace sluice::cuda_check
