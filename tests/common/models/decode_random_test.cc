// Steps of many sequences, in any order, cut anywhere and with any number of threads, must give the
// same bits as one thread that computes each sequence alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/models/adapter.h"
#include "common/models/decode_model.h"
#include "common/testing/data.h"
#include "tests/common/models/adapter_files.h"
#include "tests/common/models/decoded_sequence.h"

namespace sluice {
namespace {

using Row = DecodeModel::Row;
using Sequence = DecodedSequence;

constexpr int kMaxTokens = 96, kBlocksEach = kMaxTokens / DecodeModel::kBlockTokens;

std::unique_ptr<DecodeModel> Make(const ModelConfig& config, const TensorSet* weights,
                                  int sequences, int threads) {
  auto model = DecodeModel::Create(
      config, weights,
      {.blocks = sequences * kBlocksEach, .max_context = kMaxTokens, .threads = threads});
  SLUICE_CHECK_MSG(model.ok(), model.status().ToString());
  return *std::move(model);
}

std::vector<Sequence> RandomSequences(const ModelConfig& config, size_t count,
                                      const Adapter* adapter, SplitMix64* random) {
  std::vector<Sequence> sequences(count);
  std::vector<int32_t> blocks(count * kBlocksEach);
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<int32_t>(i);
    std::swap(blocks[i], blocks[random->Below(i + 1)]);
  }

  const size_t experts = static_cast<size_t>(config.num_layers * config.experts_per_token);
  for (size_t i = 0; i < count; ++i) {
    Sequence& s = sequences[i];
    s.tokens.resize(1 + random->Below(random->Below(4) == 0 ? kMaxTokens : 12));
    for (int32_t& token : s.tokens)
      token = static_cast<int32_t>(random->Below(static_cast<uint64_t>(config.vocab_size)));
    s.blocks.assign(blocks.begin() + static_cast<ptrdiff_t>(i * kBlocksEach),
                    blocks.begin() + static_cast<ptrdiff_t>((i + 1) * kBlocksEach));
    if (random->Below(2) == 0) s.adapter = adapter;
    s.logits.resize(s.tokens.size() * static_cast<size_t>(config.vocab_size));
    s.routing.resize(s.tokens.size() * experts);
  }
  return sequences;
}

// Returns the next rows of each sequence: mostly one, sometimes a longer piece or none. The pieces
// follow each other, or their rows are mixed.
std::vector<Row> RandomRows(const std::vector<Sequence>& sequences, SplitMix64* random) {
  std::vector<std::vector<Row>> pieces;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    const size_t count = random->Below(8) == 0 ? random->Below(60) : random->Below(8) == 0 ? 0 : 1;
    std::vector<Row>& piece = pieces.emplace_back();
    for (size_t p = s.done; p < std::min(s.done + count, s.tokens.size()); ++p)
      piece.push_back(NextRow(sequences, i, p));
  }

  std::vector<Row> rows;
  const bool mixed = random->Below(3) == 0;
  while (!pieces.empty()) {
    const size_t i = random->Below(pieces.size());
    const size_t take = mixed ? std::min<size_t>(1, pieces[i].size()) : pieces[i].size();
    rows.insert(rows.end(), pieces[i].begin(), pieces[i].begin() + static_cast<ptrdiff_t>(take));
    pieces[i].erase(pieces[i].begin(), pieces[i].begin() + static_cast<ptrdiff_t>(take));
    if (pieces[i].empty()) pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(i));
  }
  return rows;
}

void TryAll(const ModelConfig& config, const Adapter* adapter) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TensorSet weights = *InitWeights(config, 7, dtype);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << ", seed " << seed);
      SplitMix64 random(seed);
      const size_t count = 1 + random.Below(64);
      std::vector<Sequence> wanted = RandomSequences(config, count, adapter, &random), got = wanted;
      const auto alone = Make(config, &weights, static_cast<int>(count), 1);
      for (size_t i = 0; i < count; ++i) {
        std::vector<Row> rows;
        for (size_t p = 0; p < wanted[i].tokens.size(); ++p) rows.push_back(NextRow(wanted, i, p));
        Step(alone.get(), rows, &wanted);
      }

      const auto model =
          Make(config, &weights, static_cast<int>(count), 2 + static_cast<int>(random.Below(5)));
      const auto rest = [](const Sequence& s) { return s.done < s.tokens.size(); };
      for (int step = 0; step < 1000 && std::any_of(got.begin(), got.end(), rest); ++step)
        Step(model.get(), RandomRows(got, &random), &got);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(got, wanted));
    }
  }
}

// The packed weights are more than 2 MiB in either type, and no width is a multiple of a panel.
ModelConfig LargeConfig() {
  ModelConfig config;
  config.vocab_size = 4100, config.hidden_size = 151, config.intermediate_size = 333,
  config.num_layers = 2;
  config.num_heads = 6, config.num_kv_heads = 2, config.head_dim = 20, config.max_context = 320;
  config.initializer_range = 0.2;
  return config;
}

ModelConfig SmallConfig() {
  ModelConfig config = LargeConfig();
  config.vocab_size = 64, config.hidden_size = 48, config.intermediate_size = 80,
  config.sliding_window = 9, config.tie_word_embeddings = true;
  return config;
}

TEST(DecodeRandomTest, ThreadsOrderAndCutsChangeNoBit) {
  TryAll(LargeConfig(), nullptr);
  TryAll(SmallConfig(), nullptr);
}

TEST(DecodeRandomTest, ThreadsOrderAndCutsChangeNoBitOfAModelWithBiases) {
  ModelConfig config = LargeConfig();
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  TryAll(config, nullptr);
}

TEST(DecodeRandomTest, ThreadsOrderAndCutsChangeNoBitOfAModelWithExperts) {
  for (ModelConfig config : {LargeConfig(), SmallConfig()}) {
    config.num_experts = 7, config.experts_per_token = 3, config.expert_size = 37;
    TryAll(config, nullptr);
  }
}

TEST(DecodeRandomTest, ThreadsOrderAndCutsChangeNoBitIfSomeSequencesHaveAnAdapter) {
  const std::string dir = testing_data::TempPath("decode_random");
  const ModelConfig large = LargeConfig();
  WriteAdapter(dir, AdapterConfig(3, 6, kAllAdapterModules),
               AdapterTensors(large, 3, kAllAdapterModules, 5));
  const auto adapter = Adapter::Read(dir, large);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  TryAll(large, adapter->get());
}

}  // namespace
}  // namespace sluice
