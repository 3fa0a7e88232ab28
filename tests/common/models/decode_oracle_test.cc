// DecodeModel against a decoder that is written the obvious way. Both must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/models/adapter.h"
#include "common/models/decode_model.h"
#include "common/testing/data.h"
#include "tests/common/models/adapter_files.h"
#include "tests/common/models/decoded_sequence.h"
#include "tests/common/models/plain_model.h"

namespace sluice {
namespace {

using Row = DecodeModel::Row;
using Sequence = DecodedSequence;

constexpr int kContext = 96;
constexpr int kBlocksEach = kContext / DecodeModel::kBlockTokens;

struct Case {
  std::string name;
  ModelConfig config;
  bool adapted = false;
};

// The weights are more than 2 MiB in either type, so few rows are shared by all threads and many
// rows are dealt to the threads. No width is a multiple of a panel.
ModelConfig DenseConfig() {
  ModelConfig config;
  config.vocab_size = 4100, config.hidden_size = 151, config.intermediate_size = 333;
  config.num_layers = 2, config.num_heads = 6, config.num_kv_heads = 2, config.head_dim = 20;
  config.max_context = kContext;
  config.initializer_range = 0.2;
  return config;
}

ModelConfig MoeConfig() {
  ModelConfig config = DenseConfig();
  config.num_experts = 7, config.experts_per_token = 3, config.expert_size = 37;
  config.norm_topk_prob = true;
  return config;
}

// The weights fit in a core's cache, so each thread always takes rows of its own.
ModelConfig Shrink(ModelConfig config) {
  config.vocab_size = 64, config.hidden_size = 48, config.intermediate_size = 80;
  config.sliding_window = 9, config.tie_word_embeddings = true;
  return config;
}

std::vector<Case> Cases() {
  ModelConfig biased = DenseConfig();
  biased.qkv_bias = biased.o_bias = biased.mlp_bias = biased.qk_norm = true;
  return {{"dense", DenseConfig()},
          {"dense, small", Shrink(DenseConfig())},
          {"dense with biases and norms of heads", biased},
          {"dense with an adapter", DenseConfig(), true},
          {"experts", MoeConfig()},
          {"experts, small", Shrink(MoeConfig())}};
}

// Weights whose norms and biases are random too: InitWeights() makes all norms 1.
TensorSet MakeWeights(const ModelConfig& config, DType dtype) {
  const TensorSet init = *InitWeights(config, 7, DType::kF32);
  TensorSet wide = init;
  SplitMix64 random(9);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (wide.spec(i).shape.size() > 1) continue;
    for (float& x : wide.as<float>(i)) x += static_cast<float>(random.Uniform() - 0.5);
  }
  TensorSet weights = *TensorSet::Create(config.Parameters(dtype));
  SLUICE_CHECK(ConvertTensors(wide, &weights).ok());
  return weights;
}

// Sequences of several lengths. The blocks of their tables are out of order.
std::vector<Sequence> MakeSequences(const ModelConfig& config, const Adapter* adapter) {
  SplitMix64 random(3);
  const std::vector<size_t> lengths = {96, 1, 33, 64, 12, 50, 70, 5};
  std::vector<Sequence> sequences(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    Sequence& s = sequences[i];
    s.tokens.resize(lengths[i]);
    for (int32_t& token : s.tokens)
      token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(config.vocab_size)));
    s.prompt = 1 + lengths[i] * 2 / 3;
    if (i % 2 == 0) s.adapter = adapter;
    for (int b = 0; b < kBlocksEach; ++b)
      s.blocks.push_back(static_cast<int32_t>((kBlocksEach - 1 - b) * lengths.size() + i));
    s.logits.resize(lengths[i] * config.vocab_size);
    s.routing.resize(lengths[i] * config.num_layers * config.experts_per_token);
  }
  return sequences;
}

template <typename T>
void ComputePlainly(const ModelConfig& config, const TensorSet& weights,
                    std::vector<Sequence>* sequences) {
  for (Sequence& s : *sequences) {
    PlainModel<T> model(config, &weights);
    for (size_t p = 0; p < s.tokens.size(); ++p) {
      const std::vector<float> logits = model.Next(s.tokens[p], s.adapter);
      std::copy(logits.begin(), logits.end(), &s.logits[p * logits.size()]);
      std::copy(model.routing().begin(), model.routing().end(),
                s.routing.begin() + static_cast<ptrdiff_t>(p * model.routing().size()));
    }
  }
}

// Computes the prompts in chunks of up to `chunk` tokens and what follows token by token; a step
// takes the next rows of all sequences.
void ComputeInSteps(DecodeModel* model, size_t chunk, std::vector<Sequence>* sequences) {
  while (true) {
    std::vector<Row> rows;
    for (size_t i = 0; i < sequences->size(); ++i) {
      const Sequence& s = (*sequences)[i];
      const size_t end = s.done < s.prompt ? std::min(s.done + chunk, s.prompt) : s.done + 1;
      for (size_t p = s.done; p < std::min(end, s.tokens.size()); ++p)
        rows.push_back(NextRow(*sequences, i, p));
    }
    if (rows.empty()) return;

    Step(model, rows, sequences);
  }
}

template <typename T>
void ExpectThePlainBits(const Case& c, DType dtype, const Adapter* adapter) {
  const TensorSet weights = MakeWeights(c.config, dtype);
  std::vector<Sequence> sequences = MakeSequences(c.config, adapter), wanted = sequences;
  ComputePlainly<T>(c.config, weights, &wanted);

  const int blocks = static_cast<int>(sequences.size()) * kBlocksEach;
  const std::vector<std::pair<int, size_t>> threads_and_chunks = {
      {1, 96}, {1, 1}, {2, 7}, {3, 7}, {3, 96}};
  for (const auto& [threads, chunk] : threads_and_chunks) {
    SCOPED_TRACE(testing::Message() << c.name << ", " << DTypeName(dtype) << ", " << threads
                                    << " threads, chunks of " << chunk);
    const auto model = DecodeModel::Create(
        c.config, &weights, {.blocks = blocks, .max_context = kContext, .threads = threads});
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<Sequence> got = sequences;
    ComputeInSteps(model->get(), chunk, &got);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(got, wanted));
  }
}

TEST(DecodeOracleTest, StepsChunksAndThreadsGiveTheBitsOfAPlainDecoder) {
  const std::string dir = testing_data::TempPath("decode_oracle");
  WriteAdapter(dir, AdapterConfig(3, 6, kAllAdapterModules),
               AdapterTensors(DenseConfig(), 3, kAllAdapterModules, 5));
  const auto adapter = Adapter::Read(dir, DenseConfig());
  ASSERT_TRUE(adapter.ok()) << adapter.status();

  for (const Case& c : Cases()) {
    const Adapter* of_some = c.adapted ? adapter->get() : nullptr;
    ExpectThePlainBits<float>(c, DType::kF32, of_some);
    ExpectThePlainBits<uint16_t>(c, DType::kBF16, of_some);
  }
}

}  // namespace
}  // namespace sluice
