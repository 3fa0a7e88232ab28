#include "tests/cuda_emulator/emulator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <ostream>
#include <random>

#include "gtest/gtest.h"
#include "tests/cuda_emulator/cuda_fp16.h"
#include "tests/cuda_emulator/planted.h"

namespace sluice::cuda_emulator {

void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }

namespace {

constexpr uint64_t kSeeds = 4;

class PlantedTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedTest, IsFoundInEveryOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto run = [&] {
      SetSeed(seed);
      GetParam().run(true);
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(kFaultExitCode), GetParam().report)
        << "seed " << seed;
  }
}

TEST_P(PlantedTest, PassesWithoutTheFault) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto run = [&] {
      SetSeed(seed);
      GetParam().run(false);
      std::exit(0);
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(0), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlantedTest, testing::ValuesIn(AllPlanted()),
                         [](const auto& info) { return info.param.name; });

std::vector<int32_t> RandomNumbers(uint64_t seed, size_t count, int32_t below) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> x(count);
  for (int32_t& v : x) v = static_cast<int32_t>(random() % (2 * below)) - below;
  return x;
}

TEST(EmulatorTest, SumsEqualAPlainLoopInEveryOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SetSeed(seed);
    const int blocks = 1 + static_cast<int>(seed % 3), threads = 32 << seed % 6;
    const size_t part = 1 + 97 * seed;
    const std::vector<int32_t> x = RandomNumbers(seed, part * blocks, 1 << 30);
    std::vector<int64_t> expected;
    for (int b = 0; b < blocks; ++b)
      expected.push_back(std::accumulate(x.begin() + static_cast<ptrdiff_t>(b * part),
                                         x.begin() + static_cast<ptrdiff_t>((b + 1) * part),
                                         int64_t{0}));

    EXPECT_EQ(SumsOfParts(x, blocks, threads), expected) << "seed " << seed;
  }
}

TEST(EmulatorTest, RanksEqualAStableSortInEveryOrder) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SetSeed(seed);
    const int threads = 32 * (1 + static_cast<int>(seed % 4));
    const std::vector<int32_t> x = RandomNumbers(seed, 3 * threads, 20);
    std::vector<int> expected(x.size());

    for (size_t begin = 0; begin < x.size(); begin += threads) {
      std::vector<int> order(threads);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return x[begin + a] < x[begin + b]; });
      for (int place = 0; place < threads; ++place) expected[begin + order[place]] = place;
    }

    EXPECT_EQ(RanksInBlocks(x, threads), expected) << "seed " << seed;
  }
}

TEST(EmulatorTest, ALaunchThatADeviceRefusesIsAnErrorAndRunsNothing) {
  EXPECT_EQ(ErrorOfLaunch(1, 1024), 0);
  EXPECT_EQ(ErrorOfLaunch(1, 1025), 9);
  EXPECT_EQ(ErrorOfLaunch(0, 32), 9);
  EXPECT_EQ(ErrorOfLaunch(3, 32), 0);  // The call before cleared the error.
}

TEST(EmulatorTest, AKernelThatNoLaunchRanIsNamed) {
  const Kernels kernels("new.cu", {"NewKernel"});
  ASSERT_EQ(ErrorOfLaunch(1, 32), 0);

  testing::internal::CaptureStderr();
  EXPECT_GE(PrintKernelsNeverRun(), 1);

  const std::string named = testing::internal::GetCapturedStderr();
  EXPECT_NE(named.find("kernel NewKernel of new.cu was never run"), std::string::npos) << named;
  EXPECT_EQ(named.find("kernel Fill of"), std::string::npos) << named;
}

TEST(EmulatorTest, DenormalsOfAnFtzProductAreZeroWithTheirSign) {
  EXPECT_EQ(FmaRnFtz(2.0f, 3.0f, 1.0f), 7.0f);
  EXPECT_EQ(FmaRnFtz(0x1p-130f, 0x1p100f, 1.0f), 1.0f);
  EXPECT_EQ(FmaRnFtz(0x1p-100f, -0x1p-30f, 0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(FmaRnFtz(0x1p-100f, -0x1p-30f, -0.0f)));
}

TEST(EmulatorTest, HalvesConvertToFloatsAndBackToTheNearestOrEven) {
  const auto bits = [](float x) { return __half_as_ushort(__float2half_rn(x)); };
  const auto value = [](int half) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(half)));
  };

  EXPECT_EQ(value(0x0001), 0x1p-24f);
  EXPECT_EQ(value(0x3C00), 1.0f);
  EXPECT_EQ(value(0x7BFF), 65504.0f);
  EXPECT_TRUE(std::isnan(value(0x7E00)));
  EXPECT_GT(bits(NAN) & 0x7FFF, 0x7C00);

  for (int half = 0; half <= 0x7C00; ++half) {
    EXPECT_EQ(bits(value(half)), half);
    EXPECT_EQ(bits(-value(half)), half | 0x8000);
    if (half >= 0x7BFF) continue;
    const float between = (value(half) + value(half + 1)) / 2;
    EXPECT_EQ(bits(between), half + half % 2) << half;
    EXPECT_EQ(bits(std::nextafter(between, 0.0f)), half) << half;
    EXPECT_EQ(bits(std::nextafter(between, 65504.0f)), half + 1) << half;
  }

  EXPECT_EQ(bits(65519.0f), 0x7BFF);
  EXPECT_EQ(bits(65520.0f), 0x7C00);
}

}  // namespace
}  // namespace sluice::cuda_emulator
