#include "common/checkpoint/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "common/base/digest.h"
#include "common/base/id.h"

namespace sluice {
namespace {

ModelConfig SmallConfig() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 64, )"
      R"("intermediate_size": 192,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, )"
      R"("head_dim": 16, "max_position_embeddings": 64,
      "tie_word_embeddings": true})",
      "small");
}

std::string Digest(const TensorSet& set) {
  return ToHex(Sha256({reinterpret_cast<const char*>(set.buffer().data()), set.buffer().size()}));
}

TEST(InitTest, NormsAreOneAndTheRestIsNormalOfTheConfiguredWidth) {
  const TensorSet weights = *InitWeights(SmallConfig(), 3);
  double sum = 0, squares = 0, fourth = 0;
  int64_t n = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool norm = absl::EndsWith(weights.spec(i).name, "norm.weight");
    for (const float x : weights.as<float>(i)) {
      if (norm) {
        EXPECT_EQ(x, 1.0f);
        continue;
      }

      const double z = x / 0.02;
      sum += z, squares += z * z, fourth += z * z * z * z, ++n;
    }
  }

  // The loop left out five norms of hidden_size and, in each of two layers, two of head_dim.
  EXPECT_EQ(n + 64 * 5 + 16 * 4, SmallConfig().NumParameters());
  // Each moment may be off by five of its standard errors.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0 / n));
}

// A change of this digest means that every seeded job starts from other weights.
TEST(InitTest, ASeedGivesTheSameBitsForEver) {
  EXPECT_EQ(Digest(*InitWeights(SmallConfig(), 3)), Digest(*InitWeights(SmallConfig(), 3)));
  EXPECT_NE(Digest(*InitWeights(SmallConfig(), 3)), Digest(*InitWeights(SmallConfig(), 4)));
  EXPECT_EQ(Digest(*InitWeights(SmallConfig(), 3)),
            "68f0c586dcdbdb47ae0ed180c4c9d240a7b7b2e8a58e4a81d9ed1b0dbc875fc9");
}

TEST(InitTest, ATensorsNumbersDoNotDependOnTheOthers) {
  ModelConfig untied = SmallConfig();
  untied.tie_word_embeddings = false;
  const TensorSet a = *InitWeights(SmallConfig(), 3), b = *InitWeights(untied, 3);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a.as<float>(i), b.as<float>(b.Find(a.spec(i).name))) << a.spec(i).name;
  }
}

}  // namespace
}  // namespace sluice
