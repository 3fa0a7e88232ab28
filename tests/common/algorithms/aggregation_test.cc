#include "common/algorithms/aggregation.h"

#include <numeric>
#include <optional>

#include "common/algorithms/losses/ppo_clip.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

TEST(AggregationTest, EveryRowGivesTheWorkedNumber) {
  const std::vector<std::pair<std::string, double>> oracles = {{"token_mean", -0.451485},
                                                               {"seq_mean_token_mean", -0.296855},
                                                               {"seq_mean_token_sum", -1.128711},
                                                               {"fixed_length", -0.282178},
                                                               {"prompt_mean", -0.296855}};
  std::vector<std::string> tested;
  const F1 f;
  const PolicyTokens tokens = f.Tokens(ProxMode::kRecompute);
  std::vector<float> value(5), grad(5);
  ComputePolicyLoss(MakePpoClip({.clip_low = 0.2, .clip_high = 0.2, .dual = std::nullopt}),
                    ProxMode::kRecompute, tokens,
                    ComputeCorrection({.level = WeightLevel::kNone}, tokens), absl::MakeSpan(value),
                    absl::MakeSpan(grad));

  for (const auto& [name, wanted] : oracles) {
    tested.push_back(name);
    const Aggregation mode = FindRow(AggregationRows(), name)->value;
    // Each sequence has a prompt of its own.
    double sum = 0;
    for (int t = 0; t < 5; ++t)
      sum += mode.sequence_weight(t < 3 ? 3 : 2, t < 3 ? 3 : 2) * value[t];
    ExpectClose(sum * mode.step_scale({.tokens = 5, .sequences = 2, .prompts = 2}, 4), wanted,
                name);
  }
  ExpectOracleForEveryRow(AggregationRows(), tested);
}

TEST(AggregationTest, PromptMeanDividesByTheTokensOfTheWholeGroup) {
  // One prompt has two members, of 3 and 1 tokens; another has one member of 2 tokens. Every loss
  // is 1, so the mean of each prompt is 1 too.
  const double sum = 3 * kPromptMean.sequence_weight(3, 4) + kPromptMean.sequence_weight(1, 4) +
                     2 * kPromptMean.sequence_weight(2, 2);
  EXPECT_DOUBLE_EQ(sum * kPromptMean.step_scale({.tokens = 6, .sequences = 3, .prompts = 2}, 8), 1);
}

TEST(AggregationTest, T20MicroBatchesOfUnequalSizeAddUpToTheMeanOverAllTokens) {
  const std::vector<std::vector<double>> micro_batches = {{1, 2, 3}, {4}, {10}, {20, 30}};
  double sum = 0;
  int64_t tokens = 0;
  for (const auto& batch : micro_batches) {
    // Under token_mean each sequence has the weight 1, which is left out here.
    sum += std::accumulate(batch.begin(), batch.end(), 0.0);
    tokens += static_cast<int64_t>(batch.size());
  }

  EXPECT_DOUBLE_EQ(sum * kTokenMean.step_scale({.tokens = tokens, .sequences = 4, .prompts = 4}, 8),
                   10);
}

}  // namespace
}  // namespace sluice
