#include "common/models/decode_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "tests/common/models/reference.h"

namespace sluice {
namespace {

using Row = DecodeModel::Row;

// Returns block tables for `sequences` sequences of a whole context. Sequence i has the blocks i,
// i + sequences, i + 2 sequences, ..
std::vector<std::vector<int32_t>> Tables(const ModelConfig& config, size_t sequences) {
  std::vector<std::vector<int32_t>> tables(sequences);
  for (size_t i = 0; i < sequences; ++i) {
    for (int64_t p = 0; p < config.max_context; p += DecodeModel::kBlockTokens) {
      tables[i].push_back(static_cast<int32_t>(i + tables[i].size() * sequences));
    }
  }
  return tables;
}

void Step(DecodeModel* model, const std::vector<Row>& rows,
          const std::vector<std::vector<int32_t>>& tables, float* logits) {
  const std::vector<absl::Span<const int32_t>> spans(tables.begin(), tables.end());
  model->Step(rows, spans, logits);
}

std::unique_ptr<DecodeModel> Make(const ModelConfig& config, const TensorSet* weights,
                                  int sequences, int threads = 1) {
  const int context = static_cast<int>(config.max_context),
            blocks = sequences * static_cast<int>(Tables(config, 1)[0].size());
  auto model = DecodeModel::Create(config, weights,
                                   {.blocks = blocks, .max_context = context, .threads = threads});
  SLUICE_CHECK_MSG(model.ok(), model.status().ToString());
  return *std::move(model);
}

// Runs sequences through a model, in steps that the test chooses, and collects their logits.
class Collector {
 public:
  Collector(DecodeModel* model, const std::vector<std::vector<int32_t>>& tokens)
      : model_(*model),
        tokens_(tokens),
        tables_(Tables(model->config(), tokens.size())),
        done_(tokens.size()) {
    for (const auto& sequence : tokens)
      logits_.emplace_back(sequence.size() * model->config().vocab_size);
  }

  // Makes one step with the next counts[b] tokens of each sequence b. The rows of the sequences
  // alternate.
  void Step(const std::vector<int64_t>& counts) {
    const int64_t vocab = model_.config().vocab_size;
    std::vector<Row> rows;
    for (int64_t t = 0; t < *std::max_element(counts.begin(), counts.end()); ++t) {
      for (size_t b = 0; b < tokens_.size(); ++b) {
        const int64_t p = done_[b] + t;
        if (t < counts[b] && p < Length(b))
          rows.push_back({static_cast<int32_t>(b), static_cast<int32_t>(p), tokens_[b][p], true});
      }
    }
    std::vector<float> out(rows.size() * vocab);
    sluice::Step(&model_, rows, tables_, out.data());
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy_n(&out[r * vocab], vocab, &logits_[rows[r].table][rows[r].position * vocab]);
      done_[rows[r].table] = std::max<int64_t>(done_[rows[r].table], rows[r].position + 1);
    }
  }

  bool Done() const {
    for (size_t b = 0; b < tokens_.size(); ++b) {
      if (done_[b] < Length(b)) return false;
    }
    return true;
  }
  int64_t Length(size_t b) const { return static_cast<int64_t>(tokens_[b].size()); }
  const std::vector<std::vector<float>>& logits() const { return logits_; }

 private:
  DecodeModel& model_;
  const std::vector<std::vector<int32_t>>& tokens_;
  const std::vector<std::vector<int32_t>> tables_;
  std::vector<int64_t> done_;
  std::vector<std::vector<float>> logits_;  // By sequence: [length, V].
};

std::vector<std::vector<float>> Prefill(DecodeModel* model,
                                        const std::vector<std::vector<int32_t>>& tokens) {
  Collector c(model, tokens);
  c.Step(std::vector<int64_t>(tokens.size(), 1 << 20));
  return c.logits();
}

std::vector<std::vector<float>> TokenByToken(DecodeModel* model,
                                             const std::vector<std::vector<int32_t>>& tokens) {
  Collector c(model, tokens);
  while (!c.Done()) c.Step(std::vector<int64_t>(tokens.size(), 1));
  return c.logits();
}

// Makes steps of random pieces. One step may have single tokens of some sequences, longer pieces of
// others, and nothing of the rest.
std::vector<std::vector<float>> StepInRandomPieces(DecodeModel* model,
                                                   const std::vector<std::vector<int32_t>>& tokens,
                                                   uint64_t seed) {
  Collector c(model, tokens);
  SplitMix64 random(seed);
  while (!c.Done()) {
    std::vector<int64_t> counts;
    for (size_t b = 0; b < tokens.size(); ++b)
      counts.push_back(random.Below(3) == 0 ? random.Below(20) : random.Below(2));
    c.Step(counts);
  }
  return c.logits();
}

// Expects that the model computes the same fingerprints from its packed weights as a trainer from
// the tensors that it publishes.
void ExpectFingerprintsOf(const ModelConfig& config, const TensorSet& weights, int threads) {
  const auto model = Make(config, &weights, 1, threads);
  EXPECT_EQ(model->Fingerprints(), TensorFingerprints(weights)) << threads << " threads";
}

double LogProb(const float* logits, int64_t vocab, int32_t token) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - max);
  return logits[token] - max - std::log(sum);
}

class DecodeReferenceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SLUICE_NEEDS_TEST_DATA("models"); }
};

TEST_P(DecodeReferenceTest, PrefillGivesTheReferenceLogitsAndLogProbs) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences want = m.Sequences();
  const auto model = Make(m.dir.config, &m.weights, static_cast<int>(want.tokens.size()));
  const auto got = Prefill(model.get(), want.tokens);
  const int64_t vocab = m.dir.config.vocab_size;

  double worst_logit = 0, worst_logprob = 0;
  for (size_t b = 0; b < got.size(); ++b) {
    const int64_t length = static_cast<int64_t>(want.tokens[b].size());
    for (int64_t i = 0; i < length * vocab; ++i) {
      worst_logit = std::max<double>(
          worst_logit, std::abs(got[b][i] - want.logits[b * want.longest * vocab + i]));
    }
    for (int64_t t = 0; t + 1 < length; ++t) {
      const double lp = LogProb(&got[b][t * vocab], vocab, want.tokens[b][t + 1]);
      worst_logprob =
          std::max(worst_logprob, std::abs(lp - want.logprobs[b * (want.longest - 1) + t]));
    }
  }

  EXPECT_LT(worst_logit, 1e-4);
  EXPECT_LT(worst_logprob, 1e-4);
}

TEST_P(DecodeReferenceTest, CuttingIntoStepsAndThreadsChangesNoBit) {
  const ReferenceModel m(GetParam());
  const ReferenceSequences want = m.Sequences();
  const int sequences = static_cast<int>(want.tokens.size());
  const auto whole = Prefill(Make(m.dir.config, &m.weights, sequences).get(), want.tokens);

  EXPECT_EQ(TokenByToken(Make(m.dir.config, &m.weights, sequences).get(), want.tokens), whole);
  EXPECT_EQ(Prefill(Make(m.dir.config, &m.weights, sequences, 3).get(), want.tokens), whole);

  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(StepInRandomPieces(Make(m.dir.config, &m.weights, sequences, 1 + seed % 3).get(),
                                 want.tokens, seed),
              whole)
        << "seed " << seed;
  }
}

TEST_P(DecodeReferenceTest, TheFingerprintsOfThePackedWeightsAreThoseOfTheTensors) {
  const ReferenceModel m(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    TensorSet weights = *TensorSet::Create(m.dir.config.Parameters(dtype));
    ASSERT_EQ(ConvertTensors(m.weights, &weights), absl::OkStatus());
    ExpectFingerprintsOf(m.dir.config, weights, 1);
  }
}

TEST_P(DecodeReferenceTest, GreedyContinuationsAreTheReference) {
  const ReferenceModel m(GetParam());
  const ReferenceGreedy want = m.Greedy();
  const auto model = Make(m.dir.config, &m.weights, static_cast<int>(want.prompts.size()));
  const int64_t vocab = m.dir.config.vocab_size;
  std::vector<std::vector<int32_t>> got(want.prompts.size());
  std::vector<Row> rows;
  for (size_t b = 0; b < want.prompts.size(); ++b) {
    for (size_t t = 0; t < want.prompts[b].size(); ++t) {
      rows.push_back({static_cast<int32_t>(b), static_cast<int32_t>(t), want.prompts[b][t],
                      t + 1 == want.prompts[b].size()});
    }
  }

  std::vector<float> logits(want.prompts.size() * vocab);
  while (got[0].size() < want.continuations[0].size()) {
    Step(model.get(), rows, Tables(m.dir.config, got.size()), logits.data());
    rows.clear();
    for (size_t b = 0; b < got.size(); ++b) {
      const float* row = &logits[b * vocab];
      got[b].push_back(static_cast<int32_t>(std::max_element(row, row + vocab) - row));
      rows.push_back({static_cast<int32_t>(b),
                      static_cast<int32_t>(want.prompts[b].size() + got[b].size() - 1),
                      got[b].back(), true});
    }
  }

  EXPECT_EQ(got, want.continuations);
}

TEST(DecodeBf16Test, ErrorsAgainstFp32AreWellBelowThoseOfTransformers) {
  SLUICE_NEEDS_TEST_DATA("models");
  const ReferenceModel m("qwen3-tiny-bf16-sharded");
  const TensorSet weights = *ReadWeights(m.dir, DType::kBF16);
  const ReferenceSequences want = m.Sequences();
  const auto model = Make(m.dir.config, &weights, static_cast<int>(want.tokens.size()));

  const auto got = Prefill(model.get(), want.tokens);
  EXPECT_EQ(TokenByToken(Make(m.dir.config, &weights, static_cast<int>(want.tokens.size())).get(),
                         want.tokens),
            got);

  const int64_t vocab = m.dir.config.vocab_size;
  double sum = 0, worst = 0, peer_sum = 0, peer_worst = 0;
  int64_t count = 0;
  for (size_t b = 0; b < got.size(); ++b) {
    for (size_t t = 0; t + 1 < want.tokens[b].size(); ++t, ++count) {
      const int64_t at = b * (want.longest - 1) + t;
      const double error =
          std::abs(LogProb(&got[b][t * vocab], vocab, want.tokens[b][t + 1]) - want.logprobs[at]);
      const double peer = std::abs(m.floats("bf16.logprobs")[at] - want.logprobs[at]);
      sum += error, worst = std::max(worst, error), peer_sum += peer,
                    peer_worst = std::max(peer_worst, peer);
    }
  }

  // With these random weights the distributions are sharp: the mean error of transformers is 0.024.
  EXPECT_LE(sum, 0.5 * peer_sum);
  EXPECT_LE(worst, 0.5 * peer_worst);
  EXPECT_LE(sum / static_cast<double>(count), 0.01);
  EXPECT_LE(worst, 0.15);
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeReferenceTest, testing::ValuesIn(ReferenceModelNames()),
                         [](const auto& info) { return TestName(info.param); });

// The shape of the model in the example job.
ModelConfig SmallConfig() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 64, )"
      R"("intermediate_size": 192,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, )"
      R"("head_dim": 16, "max_position_embeddings": 64,
      "tie_word_embeddings": true})",
      "small");
}

std::vector<int32_t> RandomTokens(uint64_t seed, size_t n) {
  SplitMix64 random(seed);
  std::vector<int32_t> out(n);
  for (int32_t& token : out) token = static_cast<int32_t>(random.Below(64));
  return out;
}

TEST(DecodeModelTest, AForkSharesFullBlocksAndGoesOnInACopyOfTheLast) {
  const TensorSet weights = *InitWeights(SmallConfig(), 7);
  const auto model = Make(SmallConfig(), &weights, 4);
  for (const size_t prompt : {1, 15, 31, 32, 33, 63}) {
    const std::vector<int32_t> tokens = RandomTokens(prompt, prompt + 1);
    std::vector<float> own(tokens.size() * 64), forked(64);
    std::vector<Row> rows;
    for (size_t t = 0; t < tokens.size(); ++t)
      rows.push_back({0, static_cast<int32_t>(t), tokens[t], true});
    Step(model.get(), rows, {{5, 2}}, own.data());

    // The fork writes behind the prompt, in block 7. A block of 32 tokens that the prompt fills is
    // shared, and one that it begins is copied.
    std::vector<int32_t> table = prompt < 32 ? std::vector<int32_t>{7} : std::vector<int32_t>{5, 7};
    if (prompt % 32 != 0) model->CopyBlock(prompt < 32 ? 5 : 2, 7);
    Step(model.get(), {{0, static_cast<int32_t>(prompt), tokens.back(), true}}, {table},
         forked.data());

    EXPECT_EQ(std::memcmp(forked.data(), &own[prompt * 64], 64 * sizeof(float)), 0) << prompt;
  }
}

TEST(DecodeModelTest, ABlockServesTheNextSequenceWithoutATraceOfTheLast) {
  const TensorSet weights = *InitWeights(SmallConfig(), 7);
  const auto fresh = Make(SmallConfig(), &weights, 1), used = Make(SmallConfig(), &weights, 1);
  Prefill(used.get(), {RandomTokens(1, 60)});
  EXPECT_EQ(Prefill(used.get(), {RandomTokens(2, 20)}),
            Prefill(fresh.get(), {RandomTokens(2, 20)}));
}

TEST(DecodeModelTest, ChangedWeightsAreUsedFromTheNextStep) {
  const TensorSet first = *InitWeights(SmallConfig(), 1), second = *InitWeights(SmallConfig(), 2);
  const auto model = Make(SmallConfig(), &first, 1);
  const std::vector<std::vector<int32_t>> tokens = {RandomTokens(3, 9)};
  EXPECT_EQ(Prefill(model.get(), tokens), Prefill(Make(SmallConfig(), &first, 1).get(), tokens));
  std::unique_ptr<DecodeWeights> packed = *model->Pack(second);
  model->SwapWeights(&packed);
  EXPECT_EQ(Prefill(model.get(), tokens), Prefill(Make(SmallConfig(), &second, 1).get(), tokens));
}

TEST(DecodeModelTest, HalfPrecisionWeightsAreWidenedExactly) {
  const TensorSet narrow = *InitWeights(SmallConfig(), 5, DType::kF16);
  TensorSet wide = *TensorSet::Create(SmallConfig().Parameters(DType::kF32));
  ASSERT_TRUE(ConvertTensors(narrow, &wide).ok());
  const std::vector<std::vector<int32_t>> tokens = {RandomTokens(3, 9)};
  EXPECT_EQ(Prefill(Make(SmallConfig(), &narrow, 1).get(), tokens),
            Prefill(Make(SmallConfig(), &wide, 1).get(), tokens));
}

// The weights are too large for a core's cache, so few rows are shared by all threads. No width is
// a multiple of a panel.
ModelConfig LargeConfig() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 2500, "hidden_size": 150, )"
      R"("intermediate_size": 333,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, )"
      R"("head_dim": 20, "max_position_embeddings": 320,
      "tie_word_embeddings": false})",
      "large");
}

TEST(DecodeModelTest, ThreadsAndCutsIntoStepsChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TensorSet weights = *InitWeights(LargeConfig(), 7, dtype);
    // With these lengths, the threads work together and then apart.
    for (const std::vector<size_t>& lengths :
         {std::vector<size_t>{290, 140, 31}, {150, 140, 145}}) {
      std::vector<std::vector<int32_t>> tokens;
      for (const size_t length : lengths) tokens.push_back(RandomTokens(length, length));
      const auto whole = Prefill(Make(LargeConfig(), &weights, 3).get(), tokens);

      EXPECT_EQ(Prefill(Make(LargeConfig(), &weights, 3, 3).get(), tokens), whole);
      EXPECT_EQ(StepInRandomPieces(Make(LargeConfig(), &weights, 3, 2).get(), tokens, 5), whole);
    }
  }
}

TEST(DecodeModelTest, ThreadsThatComeAndGoBetweenStepsChangeNoBit) {
  for (const ModelConfig& config : {LargeConfig(), SmallConfig()}) {
    const TensorSet weights = *InitWeights(config, 7);
    const size_t most = static_cast<size_t>(std::min<int64_t>(config.max_context, 150)) - 1;
    std::vector<std::vector<int32_t>> tokens = {RandomTokens(most, 1), RandomTokens(most / 2, 2),
                                                RandomTokens(most, 3)};
    for (std::vector<int32_t>& sequence : tokens) {
      for (int32_t& token : sequence) token %= static_cast<int32_t>(config.vocab_size);
    }
    const auto whole = Prefill(Make(config, &weights, 3).get(), tokens);

    const auto model = Make(config, &weights, 3);
    Collector c(model.get(), tokens);
    for (int i = 0; !c.Done(); ++i) {
      model->SetThreads(1 + i * 5 % 4);
      c.Step({40, 7, 20});
    }
    EXPECT_EQ(c.logits(), whole);
  }
}

TEST(DecodeModelTest, WidthsThatNoPanelDividesComeBackAsTheyWere) {
  ModelConfig odd = LargeConfig();
  odd.hidden_size = 151;
  for (const ModelConfig& config : {SmallConfig(), LargeConfig(), odd}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const TensorSet weights = *InitWeights(config, 7, dtype);
      for (const int threads : {1, 3}) ExpectFingerprintsOf(config, weights, threads);
    }
  }
}

TEST(DecodeModelTest, ThreadsThatShareTheRowsDrawWhatOneCallDraws) {
  const TensorSet weights = *InitWeights(LargeConfig(), 7);
  const int64_t vocab = LargeConfig().vocab_size;
  for (const int count : {1, 6, 7, 64}) {
    SplitMix64 random(static_cast<uint64_t>(count));
    std::vector<float> logits(count * vocab);
    for (float& x : logits) x = static_cast<float>(random.Below(1000)) / 50;

    std::vector<SampleRow> rows;
    for (int i = 0; i < count; ++i)
      rows.push_back({.logits = &logits[i * vocab],
                      .key = 5,
                      .member = static_cast<uint32_t>(i),
                      .top_k = i % 3 * 20});

    std::vector<SampleDraw> want(count);
    SampleCpu(rows.data(), count, vocab, want.data());
    for (const int threads : {1, 2, 3}) {
      std::vector<SampleDraw> got(count);
      Make(LargeConfig(), &weights, 1, threads)->Draw(rows, got.data());
      EXPECT_EQ(got, want) << count << " rows, " << threads << " threads";
    }
  }
}

TEST(DecodeModelTest, CreateRefusesWeightsOfAnotherShapeAndOptionsOutOfRange) {
  ModelConfig other = SmallConfig();
  other.intermediate_size = 128;
  const TensorSet weights = *InitWeights(SmallConfig(), 1);

  const absl::Status shape =
      DecodeModel::Create(other, &weights, {.blocks = 1, .max_context = 8}).status();

  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()),
              testing::HasSubstr(
                  "mlp.down_proj.weight is F32 [64, 192], but the model needs F32 [64, 128]"));
  EXPECT_FALSE(DecodeModel::Create(SmallConfig(), &weights, {.blocks = 0, .max_context = 8}).ok());
  EXPECT_FALSE(DecodeModel::Create(SmallConfig(), &weights, {.blocks = 1, .max_context = 65}).ok());
}

}  // namespace
}  // namespace sluice
