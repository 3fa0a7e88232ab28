#include <cuda_runtime.h>

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sample/op.h"

namespace sluice {
namespace {

TEST(SampleCudaTest, DrawsEqualTheReferenceInBits) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  for (int64_t vocab : {1, 3, 64, 1023, 1025, 70'000, 151'936}) {
    constexpr int64_t kRows = 40;
    std::mt19937 random(static_cast<uint32_t>(vocab));
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(vocab * kRows);
    for (float& z : logits) z = normal(random);
    logits[vocab * 5] = NAN;
    const std::vector<int32_t> banned = {0, 2};

    float* device_logits = nullptr;
    int32_t* device_banned = nullptr;
    SampleRow* device_rows = nullptr;
    SampleDraw* device_draws = nullptr;
    ASSERT_EQ(cudaMalloc(&device_logits, logits.size() * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_banned, sizeof(int32_t) * 2), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_rows, sizeof(SampleRow) * kRows), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_draws, sizeof(SampleDraw) * kRows), cudaSuccess);
    std::vector<SampleRow> rows;
    for (int64_t r = 0; r < kRows; ++r) {
      rows.push_back({.logits = logits.data() + r * vocab,
                      .key = 77u + static_cast<uint64_t>(r),
                      .position = static_cast<uint32_t>(r),
                      .member = 2,
                      .temperature = r % 7 == 0 ? 0.0f : 0.5f + 0.1f * r,
                      .banned = banned.data(),
                      .banned_count = r % 3 == 0 ? 2 : 0,
                      .top_k = r % 5 == 1 ? 20 : 0,
                      .top_p = r % 4 == 1 ? 0.9 : 1.0,
                      .min_p = r % 6 == 2 ? 0.05f : 0.0f});
    }
    std::vector<SampleDraw> expected(kRows), draws(kRows);
    SampleCpu(rows.data(), kRows, vocab, expected.data());
    for (int64_t r = 0; r < kRows; ++r) {
      rows[r].logits = device_logits + r * vocab;
      rows[r].banned = device_banned;
    }
    cudaMemcpy(device_logits, logits.data(), logits.size() * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(device_banned, banned.data(), sizeof(int32_t) * 2, cudaMemcpyHostToDevice);
    cudaMemcpy(device_rows, rows.data(), sizeof(SampleRow) * kRows, cudaMemcpyHostToDevice);
    ASSERT_EQ(SampleCuda(device_rows, kRows, vocab, device_draws, nullptr), cudaSuccess);
    ASSERT_EQ(
        cudaMemcpy(draws.data(), device_draws, sizeof(SampleDraw) * kRows, cudaMemcpyDeviceToHost),
        cudaSuccess);
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(draws[r].token, expected[r].token) << "V " << vocab << " row " << r;
      EXPECT_EQ(draws[r].logprob, expected[r].logprob) << "V " << vocab << " row " << r;
    }
    cudaFree(device_logits);
    cudaFree(device_banned);
    cudaFree(device_rows);
    cudaFree(device_draws);
  }
}

}  // namespace
}  // namespace sluice
