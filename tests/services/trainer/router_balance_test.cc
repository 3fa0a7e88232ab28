// The load-balancing loss of a mixture of experts.

#include <gmock/gmock.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "services/trainer/core/micro_batch.h"
#include "tests/services/trainer/experts_fixture.h"
#include "tests/services/trainer/pairs_fixture.h"

namespace sluice::trainer {
namespace {

class RouterBalanceTest : public TrainerTest {
 protected:
  RouterBalanceTest() : TrainerTest(TinyExpertsDir(kVocab)) {}

  static Settings BalancedSettings(double coefficient) {
    Settings settings = BaseSettings();
    settings.algorithm.loss.router_balance = coefficient;
    settings.optimizer.max_grad_norm = 0;
    settings.optimizer.eps = 1e-3;  // So that the update follows small gradients smoothly.
    return settings;
  }

  // The tokens that predict a trained one, and those before them: what a forward pass reads.
  static size_t InputsOf(const Trajectory& trajectory) {
    size_t last = trajectory.tokens.size() - 1;
    while (trajectory.mask[last] == 0) --last;
    return last;
  }

  // The loss of a batch in its straightforward form. Each trajectory is a pass of its own, and a
  // token with which all members of its group begin counts 1 / members in each.
  double SlowBalance(const TensorSet& weights, const std::vector<Group>& batch) {
    const std::unique_ptr<TrainModel> model = *TrainModel::Create(model_.config, DType::kF32);
    EXPECT_TRUE(model->Load(weights).ok());
    struct Pass {
      AloneBatch alone;
      std::vector<float> token_weights;
    };
    std::vector<Pass> passes;
    double tokens = 0;
    std::vector<double> loads(kLayers * kExperts);
    for (const Group& group : batch) {
      size_t shared = group.members.size() < 2 ? 0 : InputsOf(group.members[0]);
      for (const Trajectory& other : group.members) {
        const Trajectory& first = group.members[0];
        const size_t experts = first.routing.size() / first.tokens.size();
        size_t common = 0;
        while (common < std::min(shared, InputsOf(other)) &&
               first.tokens[common] == other.tokens[common] &&
               std::equal(first.routing.begin() + common * experts,
                          first.routing.begin() + (common + 1) * experts,
                          other.routing.begin() + common * experts))
          ++common;
        shared = common;
      }
      for (const Trajectory& trajectory : group.members) {
        Pass& pass = passes.emplace_back(Pass{PackAlone(trajectory), {}});
        const size_t inputs = InputsOf(trajectory);
        PackedBatch& packed = pass.alone.packed;
        packed.tokens.resize(inputs), packed.positions.resize(inputs);
        packed.cu_seqlens.back() = static_cast<int64_t>(inputs);
        packed.routing = trajectory.routing;
        packed.routing.resize(trajectory.routing.size() / trajectory.tokens.size() * inputs);
        for (size_t t = 0; t < inputs; ++t) {
          const float weight = t < shared ? 1.0f / static_cast<float>(group.members.size()) : 1.0f;
          pass.token_weights.push_back(weight);
          tokens += weight;
        }
        const auto counted = *model->CountExperts(packed, pass.token_weights);
        for (size_t i = 0; i < loads.size(); ++i) loads[i] += counted[i];
      }
    }

    // E / L sum_l sum_e f_le P_le.
    double sum = 0;
    for (const Pass& pass : passes) {
      const RouterBalance balance{pass.token_weights, loads};
      sum += model->Score(pass.alone.packed, pass.alone.targets, 1.0, nullptr, &balance)
                 ->router_balance.item<double>();
    }
    return double{kExperts} / kLayers * sum / (tokens * tokens);
  }

  // The gradients of a step, by "m." and the parameter's name, as the first moment of AdamW shows
  // them after one update.
  std::map<std::string, std::vector<double>> GradientsOf(const Settings& settings,
                                                         std::vector<Group> batch) {
    const std::unique_ptr<Trainer> trainer = Make(settings);
    Run(*trainer, 0, std::move(batch));
    std::map<std::string, std::vector<double>> out;
    const TensorSet moments = MomentsOf(*trainer);
    for (size_t i = 0; i < moments.size(); ++i) {
      for (const float m : moments.as<float>(i))
        out[moments.spec(i).name].push_back(m / (1 - settings.optimizer.beta1));
    }
    return out;
  }
};

TEST_F(RouterBalanceTest, TheValueOfAStepIsTheStraightforwardOne) {
  for (const bool recorded : {false, true}) {
    std::vector<Group> batch = RandomBatch(2);
    if (recorded) batch = WithRouting(std::move(batch), 7);
    const double slow = SlowBalance(weights_, batch);
    const std::unique_ptr<Trainer> trainer = Make(BalancedSettings(0.01));
    const StepResult result = Run(*trainer, 0, batch);
    EXPECT_NEAR(result.metrics.at("router_balance"), slow, 1e-6) << recorded;

    const std::unique_ptr<Trainer> without = Make(BalancedSettings(0));
    const StepResult plain = Run(*without, 0, batch);
    EXPECT_EQ(plain.metrics.count("router_balance"), 0u);
    EXPECT_NEAR(result.loss - plain.loss, 0.01 * slow, 1e-6) << recorded;
  }
}

// f has no gradient and is constant between two choices of the router, so central differences of
// the loss are those of its P.
TEST_F(RouterBalanceTest, TheGradientIsTheCentralDifferenceOfTheLoss) {
  for (const char* aggregation : {"token_mean", "seq_mean_token_sum"}) {
    constexpr double kCoefficient = 0.5;
    Settings without = BalancedSettings(0), with = BalancedSettings(kCoefficient);
    without.algorithm.loss.aggregation = with.algorithm.loss.aggregation = aggregation;
    const std::vector<Group> batch = WithRouting(RandomBatch(2, 2), 7);
    const auto plain = GradientsOf(without, batch), balanced = GradientsOf(with, batch);

    SplitMix64 random(4);
    int compared = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const std::string& name = weights_.spec(i).name;
      if (name.find("gate.weight") == std::string::npos && random.Below(4) != 0) continue;
      const size_t at = random.Below(weights_.elements(i));
      const auto loss = [&](float shift) {
        TensorSet moved = *TensorSet::Create(model_.config.Parameters(DType::kF32));
        EXPECT_TRUE(ConvertTensors(weights_, &moved).ok());
        moved.as<float>(i)[at] += shift;
        return SlowBalance(moved, batch);
      };
      const double difference = (loss(1e-3f) - loss(-1e-3f)) / 2e-3;
      const std::string moment = absl::StrCat("m.", name);
      const double got = (balanced.at(moment)[at] - plain.at(moment)[at]) / kCoefficient;
      ++compared;
      EXPECT_NEAR(got, difference, 2e-3) << aggregation << " " << name << " " << at;
    }
    EXPECT_GT(compared, 5);
  }
}

TEST_F(RouterBalanceTest, T18AnyPartitionGivesTheSameParameters) {
  for (const char* kind : {"rl", "sft", "dpo"}) {
    Settings settings = BalancedSettings(0.5);
    std::vector<Group> batch = WithRouting(RandomBatch(2), 7);
    if (std::string(kind) == "sft") {
      settings.kind = Settings::Kind::kSft;
      batch = AsDemonstrations(std::move(batch));
    } else if (std::string(kind) == "dpo") {
      const Settings dpo = DpoSettings();
      settings.kind = dpo.kind, settings.reference = true, settings.dpo = dpo.dpo;
      batch = Pairs(3);
    }
    const std::unique_ptr<Trainer> whole = Make(settings);
    const StepResult expected = Run(*whole, 0, batch);
    EXPECT_NEAR(expected.metrics.at("router_balance"), SlowBalance(weights_, batch), 1e-6) << kind;

    settings.algorithm.loss.router_balance = 0;
    const std::unique_ptr<Trainer> without = Make(settings);
    Run(*without, 0, batch);
    EXPECT_GE(MaxDifference(*without->Weights(), *whole->Weights()), 1e-4) << kind;

    settings.algorithm.loss.router_balance = 0.5;
    for (uint32_t limit : {1u, 9u, 40u}) {
      settings.micro_batch_tokens = limit;
      settings.recompute = limit == 9 ? Recompute::kLayer : Recompute::kNone;
      const std::unique_ptr<Trainer> parts = Make(settings);
      const StepResult result = Run(*parts, 0, batch);
      EXPECT_NEAR(result.loss, expected.loss, 2e-6) << kind << " " << limit;
      EXPECT_NEAR(result.metrics.at("router_balance"), expected.metrics.at("router_balance"), 1e-6)
          << kind << " " << limit;
      EXPECT_LE(MaxDifference(*parts->Weights(), *whole->Weights()), 3e-6) << kind << " " << limit;
    }
  }
}

TEST_F(RouterBalanceTest, TheWeightsOfTokensAddUpToTheSameInEachPartition) {
  std::vector<Sequence> sequences;
  for (const auto& [group, tokens] : std::vector<std::pair<uint32_t, std::vector<int32_t>>>{
           {0, {7, 8, 1, 2}}, {0, {7, 8, 1, 3, 4}}, {0, {7, 8, 5}}, {1, {5, 6, 6}}}) {
    sequences.push_back({.group = group, .tokens = tokens, .rows = {1}, .targets = {9}});
  }
  for (const uint32_t limit : {1u, 6u, 8u, 100u}) {
    std::map<int32_t, double> sums;  // By token.
    for (const MicroBatch& batch : MakeMicroBatches(sequences, limit)) {
      ASSERT_EQ(batch.balance.token_weights.size(), batch.packed.tokens.size());
      for (size_t t = 0; t < batch.packed.tokens.size(); ++t)
        sums[batch.packed.tokens[t]] += batch.balance.token_weights[t];
    }
    // The prompt 7, 8 counts once; token 1 of two answers is not common to all three.
    const std::map<int32_t, double> wanted = {{1, 2}, {2, 1}, {3, 1}, {4, 1},
                                              {5, 2}, {6, 2}, {7, 1}, {8, 1}};
    for (const auto& [token, sum] : wanted) EXPECT_NEAR(sums[token], sum, 1e-6) << limit;
  }
}

TEST_F(RouterBalanceTest, TheValueOfSeveralUpdatesIsTheirMean) {
  Settings settings = BalancedSettings(0.1);
  settings.optimizer.lr = 0;  // All updates begin with the same weights.
  settings.minibatches = 2;
  const std::vector<Group> batch = RandomBatch(2);
  const std::vector<Group> first(batch.begin(), batch.begin() + 3),
      second(batch.begin() + 3, batch.end());
  const std::unique_ptr<Trainer> trainer = Make(settings);
  EXPECT_NEAR(Run(*trainer, 0, batch).metrics.at("router_balance"),
              (SlowBalance(weights_, first) + SlowBalance(weights_, second)) / 2, 1e-6);
}

TEST_F(RouterBalanceTest, TrainingWithTheTermEvensTheLoads) {
  double last[2];
  for (const bool on : {false, true}) {
    Settings settings = BalancedSettings(on ? 1 : 0);
    settings.kind = Settings::Kind::kSft;
    settings.optimizer.lr = 1e-2;
    const std::unique_ptr<Trainer> trainer = Make(settings);
    for (int64_t k = 0; k < 60; ++k) Run(*trainer, k, AsDemonstrations(RandomBatch(k)));
    last[on] = SlowBalance(*trainer->Weights(), AsDemonstrations(RandomBatch(100, 12)));
  }
  // With equal loads it is the number of a token's experts.
  EXPECT_GT(last[0], kChosen + 0.1) << last[1];
  EXPECT_LT(last[1] - kChosen, (last[0] - kChosen) / 4) << last[0];
}

TEST_F(RouterBalanceTest, WhereItCannotWorkItIsRefused) {
  Settings settings = BalancedSettings(0.1);
  EXPECT_EQ(Validate(settings), absl::OkStatus());
  settings.max_staleness = 0;
  EXPECT_FALSE(Streams(settings));  // f is that of the whole batch.
  settings.lora.rank = 2;
  EXPECT_EQ(Validate(settings).code(), absl::StatusCode::kInvalidArgument);
  settings.lora.rank = 0;
  settings.algorithm.advantage.kind = "min_variance";
  settings.algorithm.loss.kind = "reinforce";
  EXPECT_THAT(std::string(Validate(settings).message()), testing::HasSubstr("router_balance"));
  settings = BalancedSettings(-1);
  EXPECT_EQ(Validate(settings).code(), absl::StatusCode::kInvalidArgument);

  const ModelDir plain = TinyModelDir(kVocab);
  const auto trainer = Trainer::Create(BalancedSettings(0.1), plain.config, Clock::Real());
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(trainer.status().message()), testing::HasSubstr("has no experts"));
}

}  // namespace
}  // namespace sluice::trainer
