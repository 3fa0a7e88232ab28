#include "kernels/fingerprint/op.h"
#include "tests/kernels/cuda/check.h"

namespace sluice {
namespace {

using cuda_check::Measure;
using cuda_check::OnDevice;
using cuda_check::Small;

std::vector<uint8_t> RandomBytes(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

CUDA_CASE(SumsEqualTheReference) {
  constexpr uint64_t kTensor = 0x1234567890ABCDEF;
  for (const int width : {1, 2, 4}) {
    for (const uint64_t first : {0, 5, 1023, 1024, 3000}) {
      for (const uint64_t count : {1, 7, 1019, 1024, 5000}) {
        const std::vector<uint8_t> bytes =
            RandomBytes(static_cast<uint32_t>(first + count), count * static_cast<size_t>(width));
        // The initial sums are not zero, because the kernel adds to them.
        std::vector<uint64_t> expected = {3, 5};
        OnDevice<uint8_t> elements(bytes);
        OnDevice<uint64_t> sum(expected);

        kernels::AddFingerprint(kTensor, bytes.data(), width, first, count, expected.data());
        kernels::AddFingerprintCuda(kTensor, elements.data(), width, first, count, sum.data(),
                                    nullptr);
        CUDA_OK(cudaGetLastError());

        CUDA_EXPECT(sum.CopyToHost() == expected)
            << "width " << width << ", " << count << " elements from " << first;
      }
    }
  }
}

// Several thread blocks read each tensor. The first and the last one read its edges, and only the
// others may assume that all their elements are there. Half of the tensors are misaligned. Of the
// longest tensors, a thread reads more than the least number of elements.
CUDA_CASE(SumsOfLongTensorsEqualTheReference) {
  constexpr uint64_t kTensor = 7;
  for (const size_t size : {size_t{100} << 10, size_t{Small() ? 200u : 80'000u} << 10}) {
    const std::vector<uint8_t> bytes = RandomBytes(2, size);
    OnDevice<uint8_t> elements(bytes);
    for (const size_t width : {1, 2, 4}) {
      for (const uint64_t first : {0, 16, 1000}) {
        for (const size_t skipped : {size_t{0}, width}) {
          const uint64_t count = (size - skipped) / width;
          std::vector<uint64_t> expected(2);
          OnDevice<uint64_t> sum(expected);
          kernels::AddFingerprint(kTensor, bytes.data() + skipped, static_cast<int>(width), first,
                                  count, expected.data());
          kernels::AddFingerprintCuda(kTensor, elements.data() + skipped, static_cast<int>(width),
                                      first, count, sum.data(), nullptr);
          CUDA_OK(cudaGetLastError());
          CUDA_EXPECT(sum.CopyToHost() == expected)
              << "width " << width << ", from " << first << ", " << skipped << " bytes skipped of "
              << size;
        }
      }
    }
  }
}

CUDA_CASE(NoElementsAddNothing) {
  const std::vector<uint64_t> before = {3, 5};
  OnDevice<uint64_t> sum(before);
  kernels::AddFingerprintCuda(1, nullptr, 2, 7, 0, sum.data(), nullptr);
  CUDA_OK(cudaGetLastError());
  CUDA_EXPECT(sum.CopyToHost() == before);
}

CUDA_CASE(PartsAddUpToTheWhole) {
  constexpr uint64_t kCount = 4000, kCut = 1500;
  const std::vector<uint8_t> bytes = RandomBytes(1, kCount * 2);
  OnDevice<uint8_t> elements(bytes);
  OnDevice<uint64_t> whole(std::vector<uint64_t>(2)), parts(std::vector<uint64_t>(2));

  kernels::AddFingerprintCuda(9, elements.data(), 2, 0, kCount, whole.data(), nullptr);
  kernels::AddFingerprintCuda(9, elements.data(), 2, 0, kCut, parts.data(), nullptr);
  kernels::AddFingerprintCuda(9, elements.data() + 2 * kCut, 2, kCut, kCount - kCut, parts.data(),
                              nullptr);
  CUDA_OK(cudaGetLastError());

  CUDA_EXPECT(whole.CopyToHost() == parts.CopyToHost());
}

CUDA_BENCH(Speed) {
  const size_t bytes = Small() ? 4096 : size_t{256} << 20;
  OnDevice<float> numbers(cuda_check::ManyFloats(static_cast<int64_t>(bytes / sizeof(float))));
  OnDevice<uint64_t> sum(std::vector<uint64_t>(2));
  for (const int width : {1, 2, 4}) {
    Measure("fingerprint of " + std::to_string(8 * width) + " bits", static_cast<double>(bytes), 0,
            [&] {
              kernels::AddFingerprintCuda(1, numbers.data(), width, 0,
                                          bytes / static_cast<size_t>(width), sum.data(), nullptr);
            });
  }
}

}  // namespace
}  // namespace sluice
