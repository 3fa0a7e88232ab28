#include "common/weights/fingerprint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/id.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/tensor_set.h"
#include "kernels/fingerprint/op.h"

namespace sluice {
namespace {

TensorSet Set(std::vector<TensorSpec> specs) { return *TensorSet::Create(std::move(specs)); }
template <typename T>
void Fill(TensorSet* set, const std::string& name, const std::vector<T>& values) {
  std::memcpy(set->data(set->Find(name)), values.data(), values.size() * sizeof(T));
}

TEST(FingerprintTest, MatchesTheWorkedVectorOfOneTensor) {
  TensorSet set = Set({{"w", DType::kBF16, {16}}});
  std::vector<uint16_t> bits(16, 0x3c00);
  bits[1] = 0x8000, bits[2] = 0xbf80, bits[14] = 0x7fc0;
  Fill(&set, "w", bits);

  EXPECT_EQ(TensorKey("w"), 0x931aae91b01677e1u);
  EXPECT_EQ(FingerprintOf(set).hex(), "e615397115fa6440b4e2ae93599b2440");

  bits[1] = 0, bits[2] = 0xbf81, bits[9] = 0x3c05, bits[14] = 1;
  Fill(&set, "w", bits);
  EXPECT_EQ(FingerprintOf(set).hex(), "7671c7f1d731e4d356cf74184d7c49db");
  EXPECT_EQ(ToHex(set.layout_id()),
            "5eb0cc502699189ea78e95132baecb3409789a7ed1bd5f62dc3999beab5e9729");
}

TEST(FingerprintTest, MatchesTheWorkedVectorOfThreeTypes) {
  TensorSet set = Set({{"model.embed_tokens.weight", DType::kBF16, {700, 3}},
                       {"model.norm.weight", DType::kF32, {3}},
                       {"lm_head.weight", DType::kF8E4M3, {2}}});
  std::vector<uint16_t> embed(2100);
  for (uint32_t i = 0; i < embed.size(); ++i)
    embed[i] = static_cast<uint16_t>((2654435761u * i) >> 7);
  Fill(&set, "model.embed_tokens.weight", embed);
  Fill<uint32_t>(&set, "model.norm.weight", {0x3f800000, 0x80000000, 0x7fc00001});
  Fill<uint8_t>(&set, "lm_head.weight", {0x38, 0xb8});

  EXPECT_EQ(FingerprintOfTensor(set, set.Find("model.embed_tokens.weight")).hex(),
            "f008a7ca4f2444a8239628d67865945c");
  EXPECT_EQ(FingerprintOfTensor(set, set.Find("model.norm.weight")).hex(),
            "60b6e7d0a32f9cf1a6470e6723815fbf");
  EXPECT_EQ(FingerprintOfTensor(set, set.Find("lm_head.weight")).hex(),
            "ec0ab5229322d360c7df78f2021134d0");
  EXPECT_EQ(FingerprintOf(set).hex(), "3cca44bd8576b4f991bcb02f9df828eb");
  EXPECT_EQ(ToHex(set.layout_id()),
            "0d64beb2c8c7338b3417227aadf34a788501a46968fa14aa03dc8c5936ff1ac5");
}

TEST(FingerprintTest, W02PartsCutAnywhereAddUpToTheWhole) {
  SplitMix64 random(5);
  std::vector<uint32_t> bits(5000);
  for (uint32_t& b : bits) b = static_cast<uint32_t>(random.Next());
  uint64_t whole[2] = {0, 0};
  kernels::AddFingerprint(77, bits.data(), 4, 0, bits.size(), whole);

  for (int i = 0; i < 100; ++i) {
    const uint64_t cut = random.Below(bits.size() + 1);
    uint64_t parts[2] = {0, 0};
    kernels::AddFingerprint(77, bits.data() + cut, 4, cut, bits.size() - cut, parts);
    kernels::AddFingerprint(77, bits.data(), 4, 0, cut, parts);
    EXPECT_EQ(parts[0], whole[0]) << cut;
    EXPECT_EQ(parts[1], whole[1]) << cut;
  }
}

TEST(FingerprintTest, W13EverySingleFlippedBitShows) {
  TensorSet set = Set({{"a", DType::kF32, {33}}, {"b", DType::kBF16, {7}}});
  SplitMix64 random(9);
  for (std::byte& b : set.buffer()) b = static_cast<std::byte>(random.Next());
  const Fingerprint before = FingerprintOf(set);

  for (size_t tensor = 0; tensor < set.size(); ++tensor) {
    for (int64_t bit = 0; bit < 8 * set.bytes(tensor); ++bit) {
      set.data(tensor)[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_FALSE(FingerprintOf(set) == before) << tensor << " bit " << bit;
      set.data(tensor)[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }

  EXPECT_TRUE(FingerprintOf(set) == before);
}

}  // namespace
}  // namespace sluice
