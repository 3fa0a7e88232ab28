#include "common/models/train_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/models/decode_model.h"
#include "common/models/moe.h"
#include "common/models/parallel.h"
#include "common/models/train_ops.h"
#include "kernels/decoder/op.h"
#include "kernels/sample/op.h"
#include "tests/common/models/reference.h"

namespace sluice {
namespace {

// Returns the sequences packed end to end. Every row is scored.
PackedBatch Pack(const std::vector<std::vector<int32_t>>& sequences) {
  PackedBatch batch{.cu_seqlens = {0}};
  for (const auto& tokens : sequences) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      batch.score_rows.push_back(static_cast<int64_t>(batch.tokens.size()));
      batch.tokens.push_back(tokens[t]);
      batch.positions.push_back(static_cast<int64_t>(t));
    }
    batch.cu_seqlens.push_back(static_cast<int64_t>(batch.tokens.size()));
  }
  return batch;
}

std::unique_ptr<TrainModel> Make(const ModelConfig& config, const TensorSet& weights,
                                 DType dtype = DType::kF32) {
  auto model = TrainModel::Create(config, dtype);
  SLUICE_CHECK_MSG(model.ok(), model.status().ToString());
  SLUICE_CHECK((*model)->Load(weights).ok());
  return *std::move(model);
}

at::Tensor Logits(TrainModel* model, const PackedBatch& batch) {
  auto logits = model->Logits(batch);
  SLUICE_CHECK_MSG(logits.ok(), logits.status().ToString());
  return *logits;
}

// Returns the rows of the reference tensor [B, width, ...] without padding, and without the last
// `skip` rows of each sequence, in the order of the packed sequences.
at::Tensor Unpadded(const ReferenceModel& m, const std::string& name,
                    const ReferenceSequences& sequences, int64_t skip) {
  const at::Tensor whole =
      at::from_blob(const_cast<float*>(m.floats(name)), m.shape(name), at::kFloat);
  std::vector<at::Tensor> rows;
  for (size_t b = 0; b < sequences.tokens.size(); ++b) {
    rows.push_back(whole[b].narrow(0, 0, static_cast<int64_t>(sequences.tokens[b].size()) - skip));
  }
  return at::cat(rows);
}

double Worst(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// The rows whose next token is known, and these tokens.
struct Predictions {
  PackedBatch batch;
  std::vector<int64_t> targets;
};
Predictions NextTokens(const std::vector<std::vector<int32_t>>& sequences) {
  Predictions out{Pack(sequences), {}};
  out.batch.score_rows.clear();
  for (size_t b = 0; b < sequences.size(); ++b) {
    for (size_t t = 0; t + 1 < sequences[b].size(); ++t) {
      out.batch.score_rows.push_back(out.batch.cu_seqlens[b] + static_cast<int64_t>(t));
      out.targets.push_back(sequences[b][t + 1]);
    }
  }
  return out;
}

class TrainReferenceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SLUICE_NEEDS_TEST_DATA("models"); }
};

TEST_P(TrainReferenceTest, LogitsLogProbsAndEntropyAreTheReference) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences want = m.Sequences();
  const auto model = Make(m.dir.config, m.weights);
  const at::Tensor logits = Logits(model.get(), Pack(want.tokens)).detach();
  EXPECT_LT(Worst(logits, Unpadded(m, "logits", want, 0)), 1e-4);

  const Predictions next = NextTokens(want.tokens);
  const c10::NoGradGuard no_grad;
  const TokenScores scores = *model->Score(next.batch, next.targets, 1.0);
  EXPECT_LT(Worst(scores.logprobs, Unpadded(m, "logprobs", want, 1)), 1e-4);
  if (m.has("entropy")) {
    EXPECT_LT(Worst(scores.entropy, Unpadded(m, "entropy", want, 1)), 1e-4);
  }
  if (m.has("logprobs_t0_7")) {
    EXPECT_LT(Worst(model->Score(next.batch, next.targets, 0.7)->logprobs,
                    Unpadded(m, "logprobs_t0_7", want, 1)),
              1e-4);
  }
}

class Bf16ReferenceTest : public TrainReferenceTest {};

// The errors of our bf16 arithmetic must not exceed those of transformers' bf16 arithmetic.
TEST_P(Bf16ReferenceTest, LogProbsInBf16StayWithinItsBounds) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences want = m.Sequences();
  const auto model = Make(m.dir.config, *ReadWeights(m.dir, DType::kBF16), DType::kBF16);

  const Predictions next = NextTokens(want.tokens);
  const at::Tensor ours = model->Score(next.batch, next.targets, 1.0)->logprobs.detach();
  const at::Tensor exact = Unpadded(m, "logprobs", want, 1),
                   theirs = Unpadded(m, "bf16.logprobs", want, 1);
  const double mean = (ours - exact).abs().mean().item<double>();

  EXPECT_LE(mean, 0.01);
  EXPECT_LE(Worst(ours, exact), 0.15);
  EXPECT_LE(mean, 1.25 * (theirs - exact).abs().mean().item<double>());
}

TEST_P(TrainReferenceTest, GreedyContinuationsAreTheReference) {
  const ReferenceModel m(GetParam());
  const ReferenceGreedy want = m.Greedy();
  const auto model = Make(m.dir.config, m.weights);
  const c10::NoGradGuard no_grad;
  std::vector<std::vector<int32_t>> sequences = want.prompts, got(want.prompts.size());

  while (got[0].size() < want.continuations[0].size()) {
    PackedBatch batch = Pack(sequences);
    batch.score_rows.clear();
    for (size_t b = 0; b < sequences.size(); ++b)
      batch.score_rows.push_back(batch.cu_seqlens[b + 1] - 1);

    const at::Tensor best = Logits(model.get(), batch).argmax(1);
    for (size_t b = 0; b < sequences.size(); ++b) {
      got[b].push_back(static_cast<int32_t>(best[b].item<int64_t>()));
      sequences[b].push_back(got[b].back());
    }
  }

  EXPECT_EQ(got, want.continuations);
}

// Returns the logits of the decode execution, with all sequences in one step. Sets `routing` to the
// experts of each row.
at::Tensor Decoded(const ModelConfig& config, const TensorSet& weights,
                   const std::vector<std::vector<int32_t>>& sequences,
                   std::vector<uint16_t>* routing = nullptr) {
  std::vector<std::vector<int32_t>> blocks(sequences.size());
  std::vector<DecodeModel::Row> rows;
  int held = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    for (size_t t = 0; t < sequences[b].size(); ++t) {
      if (t % DecodeModel::kBlockTokens == 0) blocks[b].push_back(held++);
      rows.push_back({static_cast<int32_t>(b), static_cast<int32_t>(t), sequences[b][t], true});
    }
  }

  const std::vector<absl::Span<const int32_t>> tables(blocks.begin(), blocks.end());
  auto decode = DecodeModel::Create(
      config, &weights, {.blocks = held, .max_context = static_cast<int>(config.max_context)});
  SLUICE_CHECK_MSG(decode.ok(), decode.status().ToString());
  at::Tensor logits = at::empty({static_cast<int64_t>(rows.size()), config.vocab_size});
  (*decode)->Step(rows, tables, logits.mutable_data_ptr<float>());
  if (routing != nullptr) routing->assign((*decode)->routing().begin(), (*decode)->routing().end());
  return logits;
}

// Checks that a trainer with fp32 parameters, in either arithmetic, gives the same bits as a decode
// execution with the weights that this trainer publishes. This makes the ratio of an on-policy
// token exactly 1.
void ExpectDecodeGivesTheSameBits(const ModelConfig& config, const TensorSet& weights,
                                  const std::vector<std::vector<int32_t>>& sequences) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto train = Make(config, weights, dtype);
    TensorSet published = *TensorSet::Create(config.Parameters(dtype));
    ASSERT_TRUE(train->Store(&published).ok());
    PackedBatch batch = Pack(sequences);
    std::vector<uint16_t> routing;
    const at::Tensor logits = Logits(train.get(), batch).detach(),
                     decoded = Decoded(config, published, sequences, &routing);
    EXPECT_TRUE(at::equal(decoded, logits)) << config.architecture << " in " << DTypeName(dtype)
                                            << ": worst difference " << Worst(decoded, logits);
    EXPECT_EQ(routing.size(), batch.tokens.size() * config.num_layers * config.experts_per_token);
    batch.routing = std::move(routing);
    EXPECT_TRUE(at::equal(Logits(train.get(), batch).detach(), logits))
        << "with the experts that decoding recorded";
  }
}

TEST_P(TrainReferenceTest, TheDecodeExecutionGivesTheSameBits) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences want = m.Sequences();
  ExpectDecodeGivesTheSameBits(m.dir.config, m.weights, want.tokens);
}

// Returns the loss `kind` as the README of the reference file defines it, over its response tokens.
at::Tensor ReferenceLoss(const ReferenceModel& m, const std::string& kind,
                         const ReferenceSequences& sequences, const at::Tensor& lp) {
  std::vector<float> mask, advantage;
  for (size_t b = 0; b < sequences.tokens.size(); ++b) {
    for (size_t t = 1; t < sequences.tokens[b].size(); ++t) {
      mask.push_back(static_cast<float>(m.integer("response_mask", b * sequences.longest + t)));
      advantage.push_back(kind == "ppo" ? m.floats("advantages")[b] : 0);
    }
  }
  const at::Tensor w = at::tensor(mask);
  if (kind == "sft") return -(lp * w).sum() / w.sum();
  const at::Tensor a = at::tensor(advantage),
                   ratio = (lp - Unpadded(m, "old_logprobs", sequences, 1)).exp();
  const at::Tensor policy = -at::min(ratio * a, ratio.clamp(0.8, 1.28) * a),
                   d = Unpadded(m, "ref_logprobs", sequences, 1) - lp;
  return ((policy + 0.05 * (d.exp() - d - 1)) * w).sum() / w.sum();
}

class GradientReferenceTest : public TrainReferenceTest {};

TEST_P(GradientReferenceTest, GradientsOfBothLossesAreTheReference) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences sequences = m.Sequences();
  const auto model = Make(m.dir.config, m.weights);
  const Predictions next = NextTokens(sequences.tokens);
  for (const std::string kind : {"sft", "ppo"}) {
    model->ZeroGrad();
    const at::Tensor lp = model->Score(next.batch, next.targets, 1.0)->logprobs;

    const at::Tensor loss = ReferenceLoss(m, kind, sequences, lp);
    ASSERT_TRUE(Backward(loss).ok());
    EXPECT_NEAR(loss.item<double>(), m.floats(kind + ".loss")[0], 1e-5);

    double squares = 0;
    int compared = 0;
    for (const TrainModel::Parameter& p : model->parameters()) {
      const at::Tensor grad = p.tensor.grad();
      squares += grad.square().sum().item<double>();
      if (!m.has(kind + ".grad." + p.name)) continue;
      const at::Tensor want = at::from_blob(const_cast<float*>(m.floats(kind + ".grad." + p.name)),
                                            grad.sizes(), at::kFloat);
      EXPECT_LT((grad - want).norm().item<double>(), 1e-4 * want.norm().item<double>())
          << kind << " " << p.name;
      ++compared;
    }

    EXPECT_GE(compared, 6);
    EXPECT_NEAR(std::sqrt(squares) / m.floats(kind + ".grad_norm")[0], 1, 1e-4);
  }
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) { return TestName(info.param); }
INSTANTIATE_TEST_SUITE_P(Models, TrainReferenceTest, testing::ValuesIn(ReferenceModelNames()),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Models, Bf16ReferenceTest, testing::Values("qwen3-tiny-bf16-sharded"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Models, GradientReferenceTest,
                         testing::Values("qwen3-tiny", "qwen3-tiny-tied", "qwen2-tiny",
                                         "llama3-tiny", "qwen3moe-tiny"),
                         NameOf);

ModelConfig SmallConfig() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 19, "hidden_size": 20, )"
      R"("intermediate_size": 27,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, )"
      R"("max_position_embeddings": 64,
      "initializer_range": 0.3})",
      "small");
}

ModelConfig SmallExperts() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 19, "hidden_size": 20, )"
      R"("intermediate_size": 27,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, )"
      R"("max_position_embeddings": 64,
      "initializer_range": 0.3, "num_experts": 5, "num_experts_per_tok": 2, )"
      R"("moe_intermediate_size": 9, "norm_topk_prob": true})",
      "experts");
}

std::vector<std::vector<int32_t>> SmallSequences() {
  SplitMix64 random(3);
  std::vector<std::vector<int32_t>> out;
  for (const size_t length : {5, 1, 18}) {
    out.emplace_back(length);
    for (int32_t& token : out.back()) token = static_cast<int32_t>(random.Below(19));
  }
  return out;
}

// A projection onto a row of the output head is that column of the logits.
TEST(TrainModelTest, AProjectionHasTheBitsAndTheGradientOfALogit) {
  for (const ModelConfig& config : {SmallConfig(), SmallExperts()}) {
    const TensorSet weights = *InitWeights(config, 5);
    const auto model = Make(config, weights);
    const PackedBatch batch = Pack(SmallSequences());
    ASSERT_EQ(model->parameters().front().name, "lm_head.weight");
    const at::Tensor head = model->parameters().front().tensor;
    const at::Tensor weight = head.detach().narrow(0, 7, 1).clone().requires_grad_(true);
    const at::Tensor bias = at::full({1}, 0.25f).requires_grad_(true);
    const at::Tensor logits = Logits(model.get(), batch),
                     values = *model->Project(batch, weight, bias);
    EXPECT_EQ(values.sizes(), at::IntArrayRef({logits.size(0)}));
    EXPECT_TRUE(values.detach().equal(logits.detach().select(1, 7) + 0.25));

    model->ZeroGrad();
    ASSERT_TRUE(Backward(logits.select(1, 7).square().sum()).ok());
    const at::Tensor wanted = model->parameters().back().tensor.grad().clone();
    const at::Tensor wanted_weight = head.grad()[7].clone();
    model->ZeroGrad();
    ASSERT_TRUE(Backward((values - bias.detach()).square().sum()).ok());
    EXPECT_LT(Worst(model->parameters().back().tensor.grad(), wanted), 1e-4);
    EXPECT_LT(Worst(weight.grad()[0], wanted_weight), 1e-3);
    EXPECT_NEAR(bias.grad().item<double>(), 2 * (values - bias).sum().item<double>(), 1e-3);
  }
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 5));
  PackedBatch bad = Pack(SmallSequences());
  bad.score_rows.push_back(1000);
  EXPECT_EQ(model->Project(bad, at::zeros({1, 20}), at::zeros({1})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// No vector width divides the sizes, many of them are odd, and contexts are longer than a chunk of
// attention.
TEST(TrainModelTest, TheDecodeExecutionGivesTheSameBitsInEveryArchitecture) {
  for (const std::string shape :
       {R"("Qwen3ForCausalLM"], "head_dim": 6)", R"("Qwen2ForCausalLM"])",
        R"("LlamaForCausalLM"], "head_dim": 10)", R"("MistralForCausalLM"], "sliding_window": 33)",
        R"("Qwen3ForCausalLM"], "head_dim": 6, "attention_bias": true)",
        R"("LlamaForCausalLM"], "attention_bias": true, "mlp_bias": true)",
        R"("Qwen3MoeForCausalLM"], "num_experts": 7, "num_experts_per_tok": 3, )"
        R"("moe_intermediate_size": 17)",
        R"("Qwen3MoeForCausalLM"], "num_experts": 5, "moe_intermediate_size": 9, )"
        R"("num_experts_per_tok": 2, "norm_topk_prob": true)"}) {
    const ModelConfig config = *ParseModelConfig(
        R"({"vocab_size": 67, "hidden_size": 44, "intermediate_size": 37, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 300, )"
        R"("initializer_range": 0.3, "architectures": [)" +
            shape + "}",
        shape);

    SplitMix64 random(9);
    std::vector<std::vector<int32_t>> sequences;
    for (const size_t length : {1, 31, 32, 33, 127, 129, 290}) {
      sequences.emplace_back(length);
      for (int32_t& token : sequences.back()) token = static_cast<int32_t>(random.Below(67));
    }

    ExpectDecodeGivesTheSameBits(config, *InitWeights(config, 4), sequences);
  }
}

// The weights with which the term is the load-balancing loss of the whole batch, in which each
// token counts once; see Scorer::SetRouterBalance() of the trainer.
RouterBalance BalanceOf(TrainModel* model, const PackedBatch& batch) {
  RouterBalance balance;
  balance.token_weights.assign(batch.tokens.size(), 1.0f);
  balance.expert_weights = *model->CountExperts(batch, balance.token_weights);
  const double tokens = static_cast<double>(batch.tokens.size()),
               experts = static_cast<double>(model->config().num_experts),
               layers = static_cast<double>(model->config().num_layers);
  for (double& weight : balance.expert_weights) weight *= experts / layers / (tokens * tokens);
  return balance;
}

// The numbers are printed by router_balance_reference.py.
TEST(TrainModelTest, TheBalanceOfTheExpertsIsThatOfTransformers) {
  SLUICE_NEEDS_TEST_DATA("models");
  const ReferenceModel m("qwen3moe-tiny");
  const Predictions next = NextTokens(m.Sequences().tokens);
  const auto model = Make(m.dir.config, m.weights);
  const RouterBalance balance = BalanceOf(model.get(), next.batch);
  const at::Tensor loss =
      model->Score(next.batch, next.targets, 1.0, nullptr, &balance)->router_balance;
  EXPECT_NEAR(loss.item<double>(), 2.287631034851074, 1e-5);

  model->ZeroGrad();
  ASSERT_TRUE(Backward(loss).ok());
  std::map<std::string, double> norms;
  for (const TrainModel::Parameter& p : model->parameters())
    if (p.tensor.grad().defined()) norms[p.name] = p.tensor.grad().norm().item<double>();
  EXPECT_NEAR(norms["model.embed_tokens.weight"], 0.2060366233102192, 1e-5);
  EXPECT_NEAR(norms["model.layers.0.mlp.gate.weight"], 0.4564354628946213, 1e-5);
  EXPECT_NEAR(norms["model.layers.1.mlp.gate.weight"], 0.30162473036078474, 1e-5);
}

TEST(TrainModelTest, TheGradientOfTheBalanceIsItsCentralDifference) {
  const ModelConfig config = SmallExperts();
  const TensorSet weights = *InitWeights(config, 5);
  const PackedBatch batch = Pack(SmallSequences());
  const std::vector<int64_t> targets(batch.score_rows.size(), 3);
  const auto model = Make(config, weights);
  RouterBalance balance = BalanceOf(model.get(), batch);
  for (size_t t = 0; t < batch.tokens.size(); ++t)
    balance.token_weights[t] = 1.0f / static_cast<float>(1 + t % 3);
  const auto value = [&] {
    return model->Score(batch, targets, 1.0, nullptr, &balance)->router_balance;
  };
  ASSERT_TRUE(Backward(value()).ok());

  SplitMix64 random(8);
  int compared = 0;
  for (const TrainModel::Parameter& p : model->parameters()) {
    if (!p.tensor.grad().defined()) continue;
    float* const data = p.tensor.mutable_data_ptr<float>();
    const int64_t i = static_cast<int64_t>(random.Below(p.tensor.numel()));
    const float kept = data[i], step = 2e-3f;
    const c10::NoGradGuard no_grad;
    data[i] = kept + step;
    const double above = value().item<double>();
    data[i] = kept - step;
    const double below = value().item<double>();
    data[i] = kept;
    EXPECT_NEAR(p.tensor.grad().view(-1)[i].item<double>(), (above - below) / (2 * step), 3e-4)
        << p.name << " " << i;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(TrainModelTest, TheBalanceHasTheSameBitsIfLayersAreComputedAgain) {
  const ModelConfig config = SmallExperts();
  const TensorSet weights = *InitWeights(config, 5);
  const PackedBatch batch = Pack(SmallSequences());
  const std::vector<int64_t> targets(batch.score_rows.size(), 3);
  std::vector<at::Tensor> gradients[2];
  double values[2];
  for (const bool again : {false, true}) {
    const auto model = *TrainModel::Create(
        config, DType::kF32, {.recompute = again ? Recompute::kLayer : Recompute::kNone});
    ASSERT_TRUE(model->Load(weights).ok());
    const RouterBalance balance = BalanceOf(model.get(), batch);
    const TokenScores scores = *model->Score(batch, targets, 1.0, nullptr, &balance);
    values[again] = scores.router_balance.item<double>();
    // The log-probs alone, and then the balance too: their gradients add up.
    ASSERT_TRUE(model->Backward(scores.logprobs.sum(), /*keep_graph=*/true).ok());
    ASSERT_TRUE(model->Backward(0 * scores.logprobs.sum() + scores.router_balance).ok());
    for (const TrainModel::Parameter& p : model->parameters())
      gradients[again].push_back(p.tensor.grad());
  }
  EXPECT_EQ(values[0], values[1]);
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    // An expert without tokens has no gradient.
    ASSERT_EQ(gradients[0][i].defined(), gradients[1][i].defined()) << i;
    if (!gradients[0][i].defined()) continue;
    EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
  }
}

TEST(TrainModelTest, TheBalanceOfALongSequenceInPartsIsThatOfTheWhole) {
  const ModelConfig config = SmallExperts();
  SplitMix64 random(4);
  std::vector<int32_t> tokens(40);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(19));
  const PackedBatch batch = Pack({tokens});
  const std::vector<int64_t> targets(tokens.size(), 3);
  std::vector<at::Tensor> whole;
  std::vector<double> loads;
  for (const int64_t part : {0, 1, 7, 39}) {
    const auto model = *TrainModel::Create(config, DType::kF32,
                                           {.recompute = Recompute::kLayer, .part_tokens = part});
    ASSERT_TRUE(model->Load(*InitWeights(config, 5)).ok());
    std::vector<float> weights(tokens.size());
    for (size_t t = 0; t < weights.size(); ++t) weights[t] = 1.0f / static_cast<float>(1 + t % 3);
    const std::vector<double> counted = *model->CountExperts(batch, weights);
    if (loads.empty()) loads = counted;
    EXPECT_EQ(counted, loads) << part;

    const RouterBalance balance{.token_weights = weights, .expert_weights = loads};
    const TokenScores scores = *model->Score(batch, targets, 1.0, nullptr, &balance);
    ASSERT_TRUE(model->Backward(scores.logprobs.sum() + scores.router_balance).ok());
    std::vector<at::Tensor> got = {scores.router_balance.detach()};
    for (const TrainModel::Parameter& p : model->parameters())
      got.push_back(p.tensor.grad().defined() ? p.tensor.grad() : at::zeros_like(p.tensor));
    if (whole.empty()) whole = got;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(Worst(got[i], whole[i]), 2e-6 * whole[i].abs().max().item<double>())
          << part << " " << i;
    }
  }
}

TEST(TrainModelTest, ABalanceThatDoesNotFitTheModelIsRefused) {
  const PackedBatch batch = Pack(SmallSequences());
  const std::vector<int64_t> targets(batch.score_rows.size(), 3);
  const std::vector<float> ones(batch.tokens.size(), 1.0f);
  const auto plain = Make(SmallConfig(), *InitWeights(SmallConfig(), 5)),
             experts = Make(SmallExperts(), *InitWeights(SmallExperts(), 5));
  const auto code = [&](TrainModel& model, std::vector<float> tokens, size_t weights) {
    const RouterBalance balance{std::move(tokens), std::vector<double>(weights, 1.0)};
    return model.Score(batch, targets, 1.0, nullptr, &balance).status().code();
  };
  EXPECT_EQ(code(*experts, ones, 10), absl::StatusCode::kOk);
  EXPECT_EQ(code(*experts, ones, 5), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*experts, {1.0f}, 10), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*plain, ones, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plain->CountExperts(batch, ones).status().code(), absl::StatusCode::kInvalidArgument);
}

// Returns a loss of log-probs with weights of both signs, plus the entropy, so that every output of
// the scores takes part.
at::Tensor SmallLoss(TrainModel* model, const PackedBatch& batch) {
  std::vector<int64_t> targets;
  for (size_t i = 0; i < batch.score_rows.size(); ++i)
    targets.push_back(static_cast<int64_t>(i * 7 % 19));
  const TokenScores scores = *model->Score(batch, targets, 0.8);
  const at::Tensor weights = at::arange(scores.logprobs.size(0), at::kFloat).sin();
  return (scores.logprobs * weights).sum() + 0.5 * scores.entropy.sum();
}

TEST(TrainModelTest, GradientsInBf16AreThoseOfFp32ButForItsRoundings) {
  const TensorSet weights = *InitWeights(SmallConfig(), 4);
  TensorSet rounded = *TensorSet::Create(SmallConfig().Parameters(DType::kBF16));
  ASSERT_TRUE(ConvertTensors(weights, &rounded).ok());
  const auto narrow = Make(SmallConfig(), weights, DType::kBF16),
             wide = Make(SmallConfig(), rounded);

  for (TrainModel* model : {narrow.get(), wide.get()})
    ASSERT_TRUE(Backward(SmallLoss(model, Pack(SmallSequences()))).ok());

  for (size_t i = 0; i < narrow->parameters().size(); ++i) {
    const at::Tensor got = narrow->parameters()[i].tensor.grad(),
                     want = wide->parameters()[i].tensor.grad();
    const double off = (got - want).norm().item<double>();
    EXPECT_LT(off, 0.03 * want.norm().item<double>()) << narrow->parameters()[i].name;
    EXPECT_GT(off, 0) << narrow->parameters()[i].name;
  }
}

// Another model of the same vocabulary, as the teacher of the tests below.
std::unique_ptr<TrainModel> MakeTeacher(DType dtype = DType::kF32) {
  ModelConfig config = SmallConfig();
  config.hidden_size *= 2;
  return Make(config, *InitWeights(config, 9), dtype);
}

TeacherRows RowsOf(TrainModel* teacher, const PackedBatch& batch, int64_t top_k) {
  const c10::NoGradGuard no_grad;
  TeacherRows rows = *teacher->HeadInput(batch);
  rows.top_k = top_k;
  return rows;
}

// The reverse KL of each row by torch, from whole logits.
at::Tensor TorchKl(TrainModel* model, TrainModel* teacher, const PackedBatch& batch, int64_t top_k,
                   double temperature) {
  at::Tensor z = *model->Logits(batch) / temperature, y;
  {
    const c10::NoGradGuard no_grad;
    y = *teacher->Logits(batch) / temperature;
  }
  if (top_k > 0) {
    const at::Tensor ids = std::get<1>(y.topk(top_k, 1));
    z = z.gather(1, ids), y = y.gather(1, ids);
  }
  const at::Tensor log_p = z.log_softmax(1), log_q = y.log_softmax(1);
  return (log_p.exp() * (log_p - log_q)).sum(1);
}

TEST(TrainModelTest, TheKlToATeacherAndItsGradientsAreTorchsFromWholeLogits) {
  const TensorSet weights = *InitWeights(SmallConfig(), 4);
  const PackedBatch batch = Pack(SmallSequences());
  const std::vector<int64_t> targets(batch.score_rows.size(), 3);
  for (const int64_t top_k : {0, 2, 5, 18, 19, 400}) {
    SCOPED_TRACE(testing::Message() << "top_k " << top_k);
    const auto ours = Make(SmallConfig(), weights), torchs = Make(SmallConfig(), weights),
               teacher = MakeTeacher();
    const TeacherRows rows = RowsOf(teacher.get(), batch, top_k);
    const TokenScores scores = *ours->Score(batch, targets, 0.8, &rows);
    const at::Tensor wanted =
        TorchKl(torchs.get(), teacher.get(), batch, top_k >= 19 ? 0 : top_k, 0.8);
    EXPECT_LT(Worst(scores.teacher_kl.detach(), wanted.detach()), 1e-5);
    EXPECT_GT(wanted.abs().max().item<double>(), 1e-3);

    // Beside a loss of the other outputs, whose gradients go through the same rows.
    const at::Tensor mix = at::arange(wanted.size(0), at::kFloat).cos();
    ASSERT_TRUE(Backward((scores.teacher_kl * mix).sum() + (scores.logprobs * mix).sum()).ok());
    ASSERT_TRUE(Backward((wanted * mix).sum()).ok());
    const TokenScores plain = *torchs->Score(batch, targets, 0.8);
    EXPECT_FALSE(plain.teacher_kl.defined());
    ASSERT_TRUE(Backward((plain.logprobs * mix).sum()).ok());
    for (size_t i = 0; i < ours->parameters().size(); ++i) {
      EXPECT_LT(Worst(ours->parameters()[i].tensor.grad(), torchs->parameters()[i].tensor.grad()),
                1e-4)
          << ours->parameters()[i].name;
    }
    for (const TrainModel::Parameter& p : teacher->parameters())
      EXPECT_FALSE(p.tensor.grad().defined()) << p.name;
  }
}

TEST(TrainModelTest, AModelThatIsItsOwnTeacherHasNoKlAndNoGradientOfIt) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4), dtype);
    const PackedBatch batch = Pack(SmallSequences());
    const std::vector<int64_t> targets(batch.score_rows.size(), 3);
    for (const int64_t top_k : {0, 4}) {
      const TeacherRows rows = RowsOf(model.get(), batch, top_k);
      const TokenScores scores = *model->Score(batch, targets, 1, &rows);
      EXPECT_LT(scores.teacher_kl.abs().max().item<double>(), 1e-6);
      ASSERT_TRUE(Backward(scores.teacher_kl.sum()).ok());
      for (const TrainModel::Parameter& p : model->parameters())
        EXPECT_LT(p.tensor.grad().abs().max().item<double>(), 1e-5) << p.name;
      model->ZeroGrad();
    }
  }
}

TEST(TrainModelTest, ATeacherOfOtherRowsOrVocabularyIsRefused) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4)), teacher = MakeTeacher();
  const PackedBatch batch = Pack(SmallSequences());
  const std::vector<int64_t> targets(batch.score_rows.size(), 3);
  TeacherRows rows = RowsOf(teacher.get(), batch, 0);
  rows.hidden = rows.hidden.narrow(0, 0, 1);
  EXPECT_EQ(model->Score(batch, targets, 1, &rows).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The model has so many rows and columns that each product and each loop is divided among threads.
TEST(TrainModelTest, TheNumberOfThreadsChangesNoBitOfLossAndGradients) {
  for (const std::string shape :
       {R"("Qwen2ForCausalLM"])",
        R"("Qwen3MoeForCausalLM"], "num_experts": 3, "num_experts_per_tok": 2, )"
        R"("moe_intermediate_size": 70)"}) {
    const ModelConfig config = *ParseModelConfig(
        R"({"vocab_size": 19, "hidden_size": 150, "intermediate_size": 333, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, )"
        R"("max_position_embeddings": 300, "architectures": [)" +
            shape + "}",
        shape);

    const TensorSet weights = *InitWeights(config, 4);
    std::vector<std::vector<int32_t>> sequences;
    for (const size_t length : {290, 3, 280, 270, 33})
      sequences.emplace_back(length, static_cast<int32_t>(length % 19));

    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<at::Tensor> first;
      for (const int threads : {1, 2, 3, 5}) {
        SetParallelThreads([threads] { return threads; });
        const auto model = Make(config, weights, dtype);
        const at::Tensor loss = SmallLoss(model.get(), Pack(sequences));
        ASSERT_TRUE(Backward(loss).ok());

        std::vector<at::Tensor> got = {loss.detach()};
        for (const TrainModel::Parameter& p : model->parameters())
          got.push_back(p.tensor.grad().clone());
        if (first.empty()) first = got;
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::equal(got[i], first[i])) << threads << " threads, tensor " << i;
      }
      SetParallelThreads([] { return 1; });
    }
  }
}

TEST(TrainModelTest, ActivationsThatAreComputedAgainChangeNoBitOfLossAndGradients) {
  for (const ModelConfig& config : {SmallConfig(), SmallExperts()}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<at::Tensor> first;
      for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer, Recompute::kAuto}) {
        const auto model = *TrainModel::Create(config, dtype, {.recompute = recompute});
        ASSERT_TRUE(model->Load(*InitWeights(config, 4)).ok());
        at::Tensor loss;
        {
          // The backward pass must not need the batch any more.
          const PackedBatch batch = Pack(SmallSequences());
          loss = SmallLoss(model.get(), batch);
        }
        ASSERT_TRUE(Backward(loss).ok());
        std::vector<at::Tensor> got = {loss.detach()};
        for (const TrainModel::Parameter& p : model->parameters()) {
          // A router may leave an expert without a token.
          got.push_back(p.tensor.grad().defined() ? p.tensor.grad() : at::zeros_like(p.tensor));
        }
        if (first.empty()) first = got;
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], first[i])) << i;
      }
    }
  }
}

// Every row of one sequence of 61 tokens is scored, which is longer than a window and a tile.
TEST(TrainModelTest, ALongSequenceInPartsHasTheSameScoresAndGradients) {
  ModelConfig window = SmallConfig();
  window.sliding_window = 9;
  std::vector<int32_t> tokens(61);
  SplitMix64 random(8);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(19));
  PackedBatch batch = Pack({tokens});
  for (const ModelConfig& config : {SmallConfig(), window, SmallExperts()}) {
    if (config.num_experts > 0) {
      // What the router chose in one run is given to all of them, for every second token.
      for (size_t i = 0; i < tokens.size() * 2; ++i) {
        const auto first = static_cast<uint16_t>(random.Below(4));
        batch.routing.push_back(i % 2 == 0 ? first : kAnyExpert);
        batch.routing.push_back(first + 1);
      }
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<at::Tensor> whole;
      at::Tensor scores;
      for (const int64_t part : {0, 1, 7, 32, 60, 61}) {
        const auto model = *TrainModel::Create(
            config, dtype, {.recompute = Recompute::kLayer, .part_tokens = part});
        ASSERT_TRUE(model->Load(*InitWeights(config, 4)).ok());
        {
          const c10::NoGradGuard no_grad;
          const at::Tensor got = model->Score(batch, batch.tokens, 0.8)->logprobs;
          if (!scores.defined()) scores = got;
          EXPECT_TRUE(at::equal(got, scores)) << part;
        }
        const at::Tensor loss = SmallLoss(model.get(), batch);
        ASSERT_TRUE(Backward(loss).ok());
        std::vector<at::Tensor> got = {loss.detach()};
        for (const TrainModel::Parameter& p : model->parameters())
          got.push_back(p.tensor.grad().defined() ? p.tensor.grad() : at::zeros_like(p.tensor));
        if (whole.empty()) whole = got;
        EXPECT_TRUE(at::equal(got[0], whole[0])) << part;
        // Sums in another order differ in the last digits, which may round to another bf16 number.
        const double share = dtype == DType::kBF16 ? 2e-4 : 2e-6;
        for (size_t i = 1; i < got.size(); ++i) {
          const double limit = share * whole[i].abs().max().item<double>();
          EXPECT_LE(Worst(got[i], whole[i]), limit)
              << part << " " << model->parameters()[i - 1].name;
        }
      }
    }
  }
}

TEST(TrainModelTest, TheNumberOfThreadsChangesNoBitOfASequenceInParts) {
  const PackedBatch batch = Pack({std::vector<int32_t>(50, 3)});
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2, 3}) {
    SetParallelThreads([threads] { return threads; });
    const auto model = *TrainModel::Create(SmallConfig(), DType::kBF16,
                                           {.recompute = Recompute::kLayer, .part_tokens = 16});
    ASSERT_TRUE(model->Load(*InitWeights(SmallConfig(), 4)).ok());
    ASSERT_TRUE(Backward(SmallLoss(model.get(), batch)).ok());
    std::vector<at::Tensor> got;
    for (const TrainModel::Parameter& p : model->parameters()) got.push_back(p.tensor.grad());
    if (first.empty()) first = got;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], first[i])) << threads;
  }
  SetParallelThreads([] { return 1; });
}

// No vector width divides the sizes.
TEST(TrainModelTest, GradientsAreTheCentralDifferencesOfTheLoss) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4));
  const PackedBatch batch = Pack(SmallSequences());
  ASSERT_TRUE(Backward(SmallLoss(model.get(), batch)).ok());

  const c10::NoGradGuard no_grad;
  SplitMix64 random(5);
  for (const TrainModel::Parameter& p : model->parameters()) {
    // Compare along one random direction per parameter.
    at::Tensor direction = at::empty_like(p.tensor);
    float* to = direction.mutable_data_ptr<float>();
    for (int64_t i = 0; i < direction.numel(); ++i)
      to[i] = static_cast<float>(random.Uniform() - 0.5);

    // A step changes the numbers of each parameter by 4e-4 in the root mean square.
    const double step = 2e-3 / direction.norm().item<double>() *
                        std::sqrt(static_cast<double>(direction.numel())) / 5;
    at::Tensor tensor = p.tensor;
    tensor.add_(direction, step);
    const double above = SmallLoss(model.get(), batch).item<double>();
    tensor.add_(direction, -2 * step);
    const double below = SmallLoss(model.get(), batch).item<double>();
    tensor.add_(direction, step);

    const double want = (p.tensor.grad() * direction).sum().item<double>(),
                 got = (above - below) / (2 * step);
    EXPECT_NEAR(got, want, 0.02 * std::max(1.0, std::abs(want))) << p.name;
  }
}

// Attention [T, heads * D] by the formula, in torch's arithmetic.
at::Tensor PlainAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::vector<int64_t>& cu_seqlens,
                          const std::vector<int64_t>& prefix, int64_t d, int64_t window) {
  const int64_t heads = q.size(1) / d, group = q.size(1) / k.size(1);
  const auto rows_of = [&](const at::Tensor& x, size_t b) {
    return x.narrow(0, cu_seqlens[b], cu_seqlens[b + 1] - cu_seqlens[b]);
  };
  std::vector<at::Tensor> out;
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    at::Tensor keys = rows_of(k, b), values = rows_of(v, b);
    const int64_t length = keys.size(0);
    if (!prefix.empty() && prefix[b] >= 0) {
      const size_t a = static_cast<size_t>(prefix[b]);
      keys = at::cat({rows_of(k, a), keys}), values = at::cat({rows_of(v, a), values});
    }
    const int64_t n = keys.size(0);
    // Query i has position n - length + i. The mask is true where it must not look.
    const at::Tensor behind = at::arange(n).unsqueeze(0) - at::arange(n - length, n).unsqueeze(1);
    at::Tensor hidden = behind > 0;
    if (window > 0) hidden = hidden.logical_or(behind <= -window);
    std::vector<at::Tensor> parts;
    for (int64_t h = 0; h < heads; ++h) {
      const at::Tensor s =
          rows_of(q, b).narrow(1, h * d, d).mm(keys.narrow(1, h / group * d, d).t()) /
          std::sqrt(static_cast<double>(d));
      parts.push_back(
          s.masked_fill(hidden, -INFINITY).softmax(1).mm(values.narrow(1, h / group * d, d)));
    }
    out.push_back(at::cat(parts, 1));
  }
  return at::cat(out);
}

TEST(TrainOpsTest, AttentionAndItsGradientsAreThoseOfDoubles) {
  at::manual_seed(1);
  struct Case {
    int64_t heads, kv_heads, d, window;
    std::vector<int64_t> cu_seqlens, prefix;
  };
  for (const Case& c : {
           Case{2, 2, 6, 0, {0, 1, 34, 190}, {}},
           Case{6, 2, 16, 0, {0, 150, 151, 290}, {}},
           Case{4, 1, 8, 33, {0, 5, 170}, {}},
           Case{4, 2, 20, 0, {0, 131, 140, 180, 200, 203}, {-1, 0, 0, -1, 3}},
           Case{2, 1, 64, 100, {0, 127, 160, 290}, {-1, 0, 0}},
           // The queries of the longest sequence are divided.
           Case{4, 1, 8, 0, {0, 40, 2140, 2150}, {}},
           Case{3, 1, 8, 700, {0, 3100}, {}},
       }) {
    const int64_t tokens = c.cu_seqlens.back();
    const auto random = [&](int64_t width) {
      return (at::randn({tokens, width}) * 2).requires_grad_(true);
    };
    const at::Tensor q = random(c.heads * c.d), k = random(c.kv_heads * c.d),
                     v = random(c.kv_heads * c.d), weights = at::randn({tokens, c.heads * c.d});
    for (const bool halves : {false, true}) {
      SCOPED_TRACE(absl::StrCat("D = ", c.d, halves ? ", halves" : ""));
      for (const at::Tensor& x : {q, k, v}) x.mutable_grad().reset();
      const at::Tensor out =
          train_ops::CausalAttention(q, k, v, c.cu_seqlens, c.prefix, c.d, c.window, halves);
      ASSERT_TRUE(Backward((out * weights).sum()).ok());

      const auto exact = [](const at::Tensor& x, bool rounded) {
        const at::Tensor from = x.detach();
        return (rounded ? from.to(at::kHalf) : from).to(at::kDouble).requires_grad_(true);
      };
      const at::Tensor dq = exact(q, false), dk = exact(k, halves), dv = exact(v, halves);
      const at::Tensor want = PlainAttention(dq, dk, dv, c.cu_seqlens, c.prefix, c.d, c.window);
      ASSERT_TRUE(Backward((want * weights).sum()).ok());
      EXPECT_LT(Worst(out, want), 2e-5);
      // A number in bf16 has a relative error of at most 1/256.
      const auto limit = [halves](const at::Tensor& x) {
        return halves ? x.grad().abs().max().item<double>() / 128 : 1e-4;
      };
      EXPECT_LT(Worst(q.grad(), dq.grad()), limit(dq));
      EXPECT_LT(Worst(k.grad(), dk.grad()), limit(dk));
      EXPECT_LT(Worst(v.grad(), dv.grad()), limit(dv));
    }
  }
}

TEST(TrainOpsTest, TheNumberOfThreadsChangesNoBitOfTheAttentionOfALongSequence) {
  constexpr int64_t kTokens = 3100, kDim = 8, kHeads = 4;
  for (const bool halves : {false, true}) {
    std::vector<at::Tensor> first;
    for (const int threads : {1, 2, 5}) {
      SetParallelThreads([threads] { return threads; });
      at::manual_seed(1);
      const auto random = [&](int64_t heads) {
        return at::randn({kTokens, heads * kDim}).requires_grad_(true);
      };
      const at::Tensor q = random(kHeads), k = random(1), v = random(1);
      const at::Tensor out = train_ops::CausalAttention(q, k, v, {0, kTokens}, {}, kDim, 0, halves);
      ASSERT_TRUE(Backward((out * out).sum()).ok());
      const std::vector<at::Tensor> all = {out.detach(), q.grad(), k.grad(), v.grad()};
      if (first.empty()) first = all;
      for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(all[i].equal(first[i])) << i;
    }
  }
  SetParallelThreads([] { return 1; });
}

// Sizes that need several pieces and parts, and that no vector width divides.
TEST(TrainOpsTest, ProductsAndTheirGradientsAreThoseOfDoubles) {
  at::manual_seed(1);
  struct Case {
    int64_t m, n, k;
  };
  for (const Case& c : {Case{1, 3, 5}, Case{70, 19, 33}, Case{1100, 40, 17}, Case{13, 2500, 60},
                        Case{50, 33, 1100}}) {
    for (const auto operands : {train_ops::Operands::kF32, train_ops::Operands::kBf16Weight,
                                train_ops::Operands::kBf16}) {
      const bool narrow = operands != train_ops::Operands::kF32;
      const auto rounded = [](const at::Tensor& x, bool round) {
        return (round ? x.to(at::kBFloat16) : x).to(at::kDouble);
      };
      const at::Tensor x = at::randn({c.m, c.k}).requires_grad_(true),
                       w = at::randn({c.n, c.k}).requires_grad_(true), dy = at::randn({c.m, c.n});
      const at::Tensor y = train_ops::Linear(x, w, operands);
      ASSERT_TRUE(Backward((y * dy).sum()).ok());

      const at::Tensor xs = rounded(x.detach(), narrow), ws = rounded(w.detach(), narrow),
                       dys = rounded(dy, narrow),
                       inputs = rounded(x.detach(), operands == train_ops::Operands::kBf16);
      const auto close = [](const at::Tensor& got, const at::Tensor& want) {
        return (got - want).norm().item<double>() < 2e-6 * want.norm().item<double>();
      };
      EXPECT_TRUE(close(y.detach(), inputs.mm(ws.t()))) << c.m << " " << c.n << " " << c.k;
      EXPECT_TRUE(close(x.grad(), dys.mm(ws))) << c.m << " " << c.n << " " << c.k;
      EXPECT_TRUE(close(w.grad(), dys.t().mm(xs))) << c.m << " " << c.n << " " << c.k;
      // Gradients are added to what is there.
      ASSERT_TRUE(Backward((train_ops::Linear(x, w, operands) * dy).sum()).ok());
      EXPECT_TRUE(close(w.grad(), 2 * dys.t().mm(xs))) << c.m << " " << c.n << " " << c.k;
    }
  }
}

TEST(TrainModelTest, RecordedExpertsAreTakenInsteadOfTheRoutersChoice) {
  const TensorSet weights = *InitWeights(SmallExperts(), 4);
  const auto model = Make(SmallExperts(), weights);
  PackedBatch batch = Pack(SmallSequences());
  const at::Tensor chosen = Logits(model.get(), batch).detach();
  // Each token has two experts in each of two layers.
  const size_t sets = batch.tokens.size() * 2;
  batch.routing.assign(sets * 2, kAnyExpert);
  EXPECT_TRUE(at::equal(Logits(model.get(), batch).detach(), chosen));

  // Give token 4, the last one of the first sequence, the experts 0 and 1 in both layers, then 3
  // and 4. No other row attends to this token.
  std::vector<at::Tensor> logits;
  for (const uint16_t first : {0, 3}) {
    for (size_t i = 4 * 4; i < 5 * 4; ++i) batch.routing[i] = static_cast<uint16_t>(first + i % 2);
    logits.push_back(Logits(model.get(), batch).detach());
    for (int64_t row = 0; row < chosen.size(0); ++row) {
      EXPECT_TRUE(row == 4 || at::equal(logits.back()[row], chosen[row])) << row;
    }
  }
  EXPECT_FALSE(at::equal(logits[0][4], logits[1][4]));

  batch.routing[0] = 2, batch.routing[1] = 2;
  EXPECT_EQ(model->Logits(batch).status().message(),
            "expert 1 of the routing is 2; a token's experts must rise and be below 5");
  batch.routing.pop_back();
  EXPECT_FALSE(model->Logits(batch).ok());
}

TEST(TrainModelTest, ASequenceDoesNotSeeItsNeighbours) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4));
  const auto sequences = SmallSequences();
  std::vector<at::Tensor> alone;
  for (const auto& sequence : sequences)
    alone.push_back(Logits(model.get(), Pack({sequence})).detach());
  EXPECT_TRUE(at::equal(Logits(model.get(), Pack(sequences)).detach(), at::cat(alone)));
}

// Returns a batch with a prefix that three sequences share, a prefix with one sequence, and a
// sequence alone. Every row is scored.
PackedBatch WithPrefixes() {
  SplitMix64 random(8);
  PackedBatch batch{.cu_seqlens = {0}, .prefix = {-1, 0, 0, 0, -1, -1, 5}};
  const int64_t lengths[] = {6, 3, 17, 1, 4, 2, 20}, before[] = {0, 6, 6, 6, 0, 0, 2};
  for (int b = 0; b < 7; ++b) {
    for (int64_t t = 0; t < lengths[b]; ++t) {
      batch.score_rows.push_back(static_cast<int64_t>(batch.tokens.size()));
      batch.tokens.push_back(static_cast<int64_t>(random.Below(19)));
      batch.positions.push_back(before[b] + t);
    }
    batch.cu_seqlens.push_back(static_cast<int64_t>(batch.tokens.size()));
  }
  return batch;
}

// The sequences of a shared batch, each with its own copy of the prefix. copies[row] are the rows
// of `batch` that are copies of row `row` of the shared batch.
struct Unshared {
  PackedBatch batch;
  std::vector<std::vector<int64_t>> copies;
};
Unshared CopyPrefixes(const PackedBatch& shared) {
  Unshared out{{.cu_seqlens = {0}}, std::vector<std::vector<int64_t>>(shared.tokens.size())};
  const auto copy = [&](int64_t sequence) {
    for (int64_t t = shared.cu_seqlens[sequence]; t < shared.cu_seqlens[sequence + 1]; ++t) {
      out.copies[t].push_back(static_cast<int64_t>(out.batch.tokens.size()));
      out.batch.score_rows.push_back(static_cast<int64_t>(out.batch.tokens.size()));
      out.batch.tokens.push_back(shared.tokens[t]);
      out.batch.positions.push_back(shared.positions[t]);
    }
  };
  for (size_t b = 0; b < shared.prefix.size(); ++b) {
    if (shared.prefix[b] >= 0) copy(shared.prefix[b]);
    copy(static_cast<int64_t>(b));
    out.batch.cu_seqlens.push_back(static_cast<int64_t>(out.batch.tokens.size()));
  }
  return out;
}

TEST(TrainModelTest, T21BehindASharedPrefixARowHasTheBitsItHasBehindACopy) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4));
  const PackedBatch shared = WithPrefixes();
  const Unshared unshared = CopyPrefixes(shared);
  const at::Tensor got = Logits(model.get(), shared).detach(),
                   want = Logits(model.get(), unshared.batch).detach();

  for (size_t row = 0; row < unshared.copies.size(); ++row) {
    for (const int64_t copy : unshared.copies[row])
      EXPECT_TRUE(at::equal(got[static_cast<int64_t>(row)], want[copy])) << "row " << row;
  }
}

TEST(TrainModelTest, T21TheGradientsOfAllThatFollowAPrefixAddUp) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4));
  const PackedBatch shared = WithPrefixes();
  const Unshared unshared = CopyPrefixes(shared);
  const auto gradients = [&](const at::Tensor& loss) {
    model->ZeroGrad();
    EXPECT_TRUE(Backward(loss).ok());
    std::vector<at::Tensor> out;
    for (const TrainModel::Parameter& p : model->parameters())
      out.push_back(p.tensor.grad().clone());
    return out;
  };

  // The first copy of each row carries its term of the loss.
  std::vector<int64_t> firsts;
  for (const std::vector<int64_t>& copies : unshared.copies) firsts.push_back(copies[0]);
  const at::Tensor weights =
      at::arange(static_cast<int64_t>(firsts.size()) * 19, at::kFloat).sin().view({-1, 19});

  const auto got = gradients((Logits(model.get(), shared) * weights).sum());
  const auto want = gradients(
      (Logits(model.get(), unshared.batch).index_select(0, at::tensor(firsts)) * weights).sum());

  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT((got[i] - want[i]).norm().item<double>(), 1e-5 * want[i].norm().item<double>())
        << model->parameters()[i].name;
  }
}

TEST(TrainModelTest, AWindowHidesWhatLiesBeforeIt) {
  ModelConfig config = SmallConfig();
  const TensorSet weights = *InitWeights(config, 4);
  const std::vector<std::vector<int32_t>> sequences = SmallSequences();
  const at::Tensor open = Logits(Make(config, weights).get(), Pack(sequences)).detach();
  config.sliding_window = 7;
  const at::Tensor windowed = Logits(Make(config, weights).get(), Pack(sequences)).detach();

  EXPECT_TRUE(at::equal(windowed, Decoded(config, weights, sequences)));
  // The first tokens of the last sequence have nothing before their window.
  EXPECT_TRUE(at::equal(windowed.narrow(0, 6, 7), open.narrow(0, 6, 7)));
  EXPECT_FALSE(at::equal(windowed.narrow(0, 13, 11), open.narrow(0, 13, 11)));
}

TEST(TrainModelTest, StoreGivesBackWhatLoadTook) {
  const TensorSet weights = *InitWeights(SmallConfig(), 4, DType::kBF16);
  const auto model = Make(SmallConfig(), weights);
  TensorSet stored = *TensorSet::Create(SmallConfig().Parameters(DType::kBF16));
  ASSERT_TRUE(model->Store(&stored).ok());
  EXPECT_EQ(stored.buffer(), weights.buffer());

  ModelConfig other = SmallConfig();
  other.intermediate_size = 28;
  const absl::Status refused = model->Load(*InitWeights(other, 4));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("model.layers.0.mlp.down_proj.weight"));
}

TEST(TrainModelTest, ABatchOutOfRangeIsRefusedWithItsReason) {
  const auto model = Make(SmallConfig(), *InitWeights(SmallConfig(), 4));
  const PackedBatch good = Pack({{1, 2, 3}});
  const auto refusal = [&](auto change) {
    PackedBatch batch = good;
    change(&batch);
    const absl::Status status = model->Logits(batch).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };

  EXPECT_EQ(refusal([](PackedBatch* b) { b->tokens[1] = 19; }), "token 1 is 19, not in [0, 19)");
  EXPECT_EQ(refusal([](PackedBatch* b) { b->positions[2] = 64; }),
            "position 2 is 64, not in [0, 64)");
  EXPECT_EQ(refusal([](PackedBatch* b) { b->score_rows[0] = 3; }),
            "row to score 0 is 3, not in [0, 3)");
  EXPECT_THAT(refusal([](PackedBatch* b) { b->cu_seqlens = {0, 2}; }),
              testing::HasSubstr("cu_seqlens"));
  EXPECT_THAT(refusal([](PackedBatch* b) { b->cu_seqlens = {0, 4, 3}; }),
              testing::HasSubstr("cu_seqlens"));

  EXPECT_EQ(refusal([](PackedBatch* b) { b->prefix = {-1, 0}; }),
            "the batch has 1 sequences, but 2 prefixes");
  EXPECT_THAT(refusal([](PackedBatch* b) { b->prefix = {0}; }),
              testing::HasSubstr("prefix 0 is 0"));
  EXPECT_THAT(refusal([](PackedBatch* b) { b->cu_seqlens = {0, 1, 2, 3}, b->prefix = {-1, 0, 1}; }),
              testing::HasSubstr("prefix 2 is 1"));

  const auto score = [&](std::vector<int64_t> targets, double temperature) {
    return std::string(model->Score(Pack({{1, 2}}), targets, temperature).status().message());
  };
  EXPECT_EQ(score({1}, 1.0), "there are 1 targets, but 2 rows to score");
  EXPECT_EQ(score({1, 19}, 1.0), "target 1 is 19, not in [0, 19)");
  EXPECT_EQ(score({1, 2}, 0.0), "temperature 0 is not above 0");
}

// The vocabulary of 600,000 is so large that the rows are scored in several parts.
TEST(TrainModelTest, TokensScoreInTheBitsOfTheirDraw) {
  SplitMix64 random(3);
  for (const int64_t vocab : {19, 1024, 5000, 600'000}) {
    const ModelConfig config = *ParseModelConfig(
        absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 6, )"
                     R"("intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 1, )"
                     R"("max_position_embeddings": 64, "initializer_range": 0.9, "vocab_size": )",
                     vocab, "}"),
        "one layer");
    const int64_t rows = vocab > 100'000 ? 60 : 20;
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocab)));
    const PackedBatch batch = Pack({tokens});

    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto model = Make(config, *InitWeights(config, 4), dtype);
      const c10::NoGradGuard no_grad;
      const at::Tensor logits = Logits(model.get(), batch);
      for (const float temperature : {1.0f, 0.7f}) {
        std::vector<int64_t> targets;
        std::vector<float> drawn;
        for (int64_t r = 0; r < rows; ++r) {
          SampleDraw draw;
          const SampleRow row{.logits = logits.const_data_ptr<float>() + r * vocab,
                              .key = 7,
                              .position = static_cast<uint32_t>(r),
                              .temperature = temperature};
          SampleCpu(&row, 1, vocab, &draw);
          targets.push_back(draw.token);
          drawn.push_back(draw.logprob);
        }

        const TokenScores scores = *model->Score(batch, targets, temperature);
        EXPECT_TRUE(at::equal(scores.logprobs, at::tensor(drawn))) << vocab;
        const at::Tensor lp = at::log_softmax(logits.to(at::kDouble) / temperature, 1);
        EXPECT_LT(Worst(scores.entropy, -(lp * lp.exp()).sum(1).to(at::kFloat)), 1e-4);
      }
    }
  }
}

TEST(TrainModelTest, WhatTorchThrowsComesBackAsAStatus) {
  const absl::Status status = Backward(at::zeros({2}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace sluice
