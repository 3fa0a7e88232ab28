#include "common/checkpoint/tensor_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/id.h"

namespace sluice {
namespace {

TEST(TensorSetTest, TensorsLieSortedAndAlignedInOneZeroedBuffer) {
  const TensorSet set = *TensorSet::Create(
      {{"b", DType::kF32, {3}}, {"a.z", DType::kBF16, {5, 7}}, {"a", DType::kF32, {}}});
  ASSERT_EQ(set.size(), 3u);

  EXPECT_EQ(set.spec(0).name, "a");
  EXPECT_EQ(set.spec(1).name, "a.z");
  EXPECT_EQ(set.bytes(1), 70);
  EXPECT_EQ(set.elements(1), 35);

  for (size_t i = 0; i < set.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(set.data(i)) % 64, 0u);
    EXPECT_EQ(set.data(i), set.buffer().data() + set.offset(i));
  }

  EXPECT_THAT(set.buffer(), testing::Each(std::byte{0}));
  EXPECT_EQ(set.Find("b"), 2);
  EXPECT_EQ(set.Find("c"), -1);
}

// The test vectors of the weight synchronisation format.
TEST(TensorSetTest, LayoutIdsAreThoseOfTheFormat) {
  EXPECT_EQ(ToHex(TensorSet::Create({{"w", DType::kBF16, {16}}})->layout_id()),
            "5eb0cc502699189ea78e95132baecb3409789a7ed1bd5f62dc3999beab5e9729");
  EXPECT_EQ(ToHex(TensorSet::Create({{"model.norm.weight", DType::kF32, {3}},
                                     {"lm_head.weight", DType::kF8E4M3, {2}},
                                     {"model.embed_tokens.weight", DType::kBF16, {700, 3}}})
                      ->layout_id()),
            "0d64beb2c8c7338b3417227aadf34a788501a46968fa14aa03dc8c5936ff1ac5");
}

TEST(TensorSetTest, BadNamesAndShapesAreRefused) {
  const auto refusal = [](std::vector<TensorSpec> specs) {
    const auto set = TensorSet::Create(std::move(specs));
    EXPECT_EQ(set.status().code(), absl::StatusCode::kInvalidArgument) << set.status();
    return std::string(set.status().message());
  };

  EXPECT_EQ(refusal({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}), "tensor a occurs twice");
  EXPECT_THAT(refusal({{"", DType::kF32, {1}}}), testing::HasSubstr("empty name"));
  EXPECT_THAT(refusal({{"a b", DType::kF32, {1}}}), testing::HasSubstr("byte 32"));
  EXPECT_THAT(refusal({{"a\n", DType::kF32, {1}}}), testing::HasSubstr("byte 10"));
  EXPECT_THAT(refusal({{"a", DType::kF32, {-1}}}), testing::HasSubstr("negative dimension -1"));
  EXPECT_THAT(refusal({{"a", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}}),
              testing::HasSubstr("2^62"));
  EXPECT_THAT(refusal({{"a", DType::kF32, {int64_t{1} << 40, 0, int64_t{1} << 40}}}),
              testing::HasSubstr("2^62"));
}

TEST(TensorSetTest, ACopyIsDeep) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {2}}});
  set.as<float>(0)[1] = 3;
  TensorSet copy = set;
  EXPECT_EQ(copy.as<float>(0)[1], 3);

  copy.as<float>(0)[1] = 4;
  EXPECT_EQ(set.as<float>(0)[1], 3);

  set = copy;
  EXPECT_EQ(set.as<float>(0)[1], 4);
  EXPECT_EQ(set.layout_id(), copy.layout_id());
}

template <DType kTo>
uint16_t Narrow(float f) {
  uint16_t out;
  EXPECT_TRUE(ConvertElements(DType::kF32, &f, kTo, &out, 1).ok());
  return out;
}

TEST(ConvertTest, NarrowingRoundsToNearestTiesToEven) {
  EXPECT_EQ(Narrow<DType::kBF16>(1.0f), 0x3f80);
  // A tie goes to the even neighbour.
  EXPECT_EQ(Narrow<DType::kBF16>(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(Narrow<DType::kBF16>(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(Narrow<DType::kBF16>(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(Narrow<DType::kBF16>(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
  EXPECT_EQ(Narrow<DType::kBF16>(std::bit_cast<float>(0x7f800001u)), 0x7fc0);  // NaN stays NaN.
  EXPECT_EQ(Narrow<DType::kF16>(65519.0f), 0x7bff);
  EXPECT_EQ(Narrow<DType::kF16>(65520.0f), 0x7c00);
  EXPECT_EQ(Narrow<DType::kF16>(0x1p-24f), 0x0001);
  EXPECT_EQ(Narrow<DType::kF16>(0x1p-25f), 0x0000);
  EXPECT_EQ(Narrow<DType::kF16>(0x1.8p-25f), 0x0001);
  EXPECT_EQ(Narrow<DType::kF16>(-0x1.ffcp-15f), 0x8400);  // Rounded up, out of the subnormals.
}

TEST(ConvertTest, EveryNarrowNumberComesBackFromFp32) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const uint16_t narrow = static_cast<uint16_t>(bits);
      float wide;
      uint16_t back;
      ASSERT_TRUE(ConvertElements(dtype, &narrow, DType::kF32, &wide, 1).ok());
      ASSERT_TRUE(ConvertElements(DType::kF32, &wide, dtype, &back, 1).ok());

      if (std::isnan(wide)) continue;
      ASSERT_EQ(back, narrow) << DTypeName(dtype);
    }
  }
}

TEST(ConvertTest, SetsOfOtherTensorsAreRefused) {
  const TensorSet from = *TensorSet::Create({{"a", DType::kF32, {2}}});
  TensorSet name = *TensorSet::Create({{"b", DType::kF32, {2}}}),
            shape = *TensorSet::Create({{"a", DType::kF32, {3}}}),
            type = *TensorSet::Create({{"a", DType::kI32, {2}}});

  EXPECT_THAT(std::string(ConvertTensors(from, &name).message()),
              testing::HasSubstr("tensor a where b is needed"));
  EXPECT_THAT(std::string(ConvertTensors(from, &shape).message()),
              testing::HasSubstr("F32 [2]; wanted: F32 [3]"));
  EXPECT_THAT(std::string(ConvertTensors(from, &type).message()),
              testing::HasSubstr("cannot convert F32 to I32"));
}

}  // namespace
}  // namespace sluice
