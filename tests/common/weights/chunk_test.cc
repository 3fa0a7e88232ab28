#include "common/weights/chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "common/base/splitmix.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {
namespace {

TensorSet SmallRandomSet(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {40, 9}},
                                      {"b", DType::kBF16, {7}},
                                      {"empty", DType::kF32, {0}},
                                      {"z", DType::kF32, {1000}}});
  SplitMix64 random(seed);

  for (size_t i = 0; i < set.size(); ++i) {
    for (int64_t b = 0; b < set.bytes(i); ++b)
      set.data(i)[b] = static_cast<std::byte>(random.Next());
  }
  return set;
}
bool Equal(const TensorSet& a, const TensorSet& b) {
  return std::equal(a.buffer().begin(), a.buffer().end(), b.buffer().begin(), b.buffer().end());
}

TEST(ChunkTest, WeightsComeBackWholeAtEveryChunkSize) {
  const TensorSet from = SmallRandomSet(1);
  // The first tensor has 1440 bytes.
  for (const uint64_t target : {4u, 6u, 100u, 1439u, 1440u, 1u << 20}) {
    TensorSet to = *TensorSet::Create({from.specs().begin(), from.specs().end()});
    uint64_t written = 0;
    EncodeFullChunks(from, target, [&](std::string chunk) {
      const absl::Status status = DecodeFullChunk(chunk, &to, &written);
      EXPECT_TRUE(status.ok()) << status;
    });

    EXPECT_TRUE(Equal(from, to)) << target;
    EXPECT_EQ(written, 4u * 360 + 2 * 7 + 4 * 1000);
  }
}

TEST(ChunkTest, ACutOrFloodedChunkIsRefusedAndWritesNothing) {
  const TensorSet from = SmallRandomSet(2);
  std::string chunk;
  EncodeFullChunks(from, 1 << 20, [&](std::string c) { chunk = std::move(c); });
  TensorSet to = SmallRandomSet(3);
  const TensorSet before = to;
  uint64_t written = 0;

  for (size_t length = 0; length < chunk.size(); length += 13) {
    EXPECT_EQ(DecodeFullChunk(chunk.substr(0, length), &to, &written).code(),
              absl::StatusCode::kDataLoss)
        << length;
  }

  EXPECT_FALSE(DecodeFullChunk(chunk + "x", &to, &written).ok());
  EXPECT_TRUE(Equal(before, to));
  EXPECT_EQ(written, 0u);
}

TEST(ChunkTest, W11DamagedHeadersNeitherWriteOutsideNorCrash) {
  const TensorSet from = SmallRandomSet(4);
  std::string chunk;
  EncodeFullChunks(from, 1 << 20, [&](std::string c) { chunk = std::move(c); });
  SplitMix64 random(11);

  for (int i = 0; i < 20'000; ++i) {
    std::string bad = chunk;
    // The header has 16 bytes, and each run of elements 48; the empty tensor has no run.
    for (int flips = 0; flips < 3; ++flips)
      bad[random.Below(16 + 48 * 3)] = static_cast<char>(random.Next());
    TensorSet to = SmallRandomSet(5);
    uint64_t written = 0;
    // AddressSanitizer reports a write outside the buffers.
    const absl::Status status = DecodeFullChunk(bad, &to, &written);
    if (!status.ok()) {
      EXPECT_EQ(written, 0u);
    }
  }
}

}  // namespace
}  // namespace sluice
