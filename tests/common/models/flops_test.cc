#include "common/models/flops.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/match.h"

namespace sluice {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.vocab_size = 100;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.qk_norm = true;
  return config;
}

// Multiply-adds of a token: each element of a matrix of the layers takes one.
double LayerElements(const ModelConfig& config) {
  double elements = 0;
  for (const TensorSpec& spec : config.Parameters(DType::kF32)) {
    if (spec.shape.size() == 2 && absl::StartsWith(spec.name, "model.layers."))
      elements += static_cast<double>(spec.shape[0] * spec.shape[1]);
  }
  return elements;
}

TEST(FlopsTest, EachElementOfAMatrixTakesSixOperationsPerToken) {
  const ModelConfig config = Config();
  const std::vector<int64_t> first(5, 0);  // Five sequences of one token.
  const double attention = 3 * 2 * 4 * 8;  // Per query and key.
  EXPECT_DOUBLE_EQ(TrainingFlops(config, first, 0), 6 * 5 * (LayerElements(config) + attention));
  EXPECT_DOUBLE_EQ(TrainingFlops(config, first, 2) - TrainingFlops(config, first, 0),
                   6.0 * 2 * 24 * 100);
}

TEST(FlopsTest, AttentionCountsThePositionsThatATokenAttendsTo) {
  ModelConfig config = Config();
  const double pair = 6 * 3 * 2 * 4 * 8;
  const double rest = 6 * 4 * LayerElements(config);
  EXPECT_DOUBLE_EQ(TrainingFlops(config, {0, 1, 2, 3}, 0), rest + pair * (1 + 2 + 3 + 4));
  config.sliding_window = 2;
  EXPECT_DOUBLE_EQ(TrainingFlops(config, {0, 1, 2, 3}, 0), rest + pair * (1 + 2 + 2 + 2));
}

TEST(FlopsTest, OfAMixtureOfExpertsTheChosenOnesAndTheRouterCount) {
  ModelConfig config = Config();
  config.architecture = "Qwen3MoeForCausalLM";
  config.num_experts = 8;
  config.expert_size = 16;
  config.experts_per_token = 8;
  const double all = TrainingFlops(config, {0}, 0);
  config.experts_per_token = 2;
  EXPECT_DOUBLE_EQ(all - TrainingFlops(config, {0}, 0), 6.0 * 3 * 6 * (3 * 24 * 16));
  EXPECT_DOUBLE_EQ(all, 6 * (LayerElements(config) + 3 * 2 * 4 * 8));
}

TEST(FlopsTest, ThePeakIsMeasured) {
  EXPECT_GT(MeasurePeakFlops(DType::kF32), 1e8);
  EXPECT_GT(MeasurePeakFlops(DType::kBF16), 1e8);
}

}  // namespace
}  // namespace sluice
