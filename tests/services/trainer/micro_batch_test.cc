#include "services/trainer/core/micro_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/splitmix.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;

// A sequence whose first `prompt` tokens are not trained.
Sequence MakeSequence(uint32_t group, std::vector<int32_t> tokens, size_t prompt) {
  Sequence sequence{.group = group, .tokens = std::move(tokens)};
  // Row t - 1 predicts token t. The target after the last token, 99, is never an input.
  for (size_t t = prompt; t < sequence.tokens.size() + 1; ++t) {
    sequence.rows.push_back(static_cast<int32_t>(t) - 1);
    sequence.targets.push_back(t < sequence.tokens.size() ? sequence.tokens[t] : 99);
    sequence.behavior.push_back(-static_cast<float>(t));
  }
  return sequence;
}

TEST(MicroBatchTest, APromptLiesOnceBeforeTheAnswersOfItsGroup) {
  const std::vector<Sequence> sequences = {
      MakeSequence(0, {7, 8, 1, 2}, 2), MakeSequence(0, {7, 8, 3}, 2), MakeSequence(1, {5, 6}, 1)};
  const std::vector<MicroBatch> batches = MakeMicroBatches(sequences, 100);
  ASSERT_EQ(batches.size(), 1u);

  const PackedBatch& packed = batches[0].packed;
  EXPECT_THAT(packed.tokens, ElementsAre(7, 8, 1, 2, 3, 5, 6));
  EXPECT_THAT(packed.positions, ElementsAre(0, 1, 2, 3, 2, 0, 1));
  EXPECT_THAT(packed.cu_seqlens, ElementsAre(0, 2, 4, 5, 7));
  EXPECT_THAT(packed.prefix, ElementsAre(-1, 0, 0, -1));
  // Row 1 predicts the first token of both answers.
  EXPECT_THAT(packed.score_rows, ElementsAre(1, 2, 3, 1, 4, 5, 6));
  EXPECT_THAT(batches[0].targets, ElementsAre(1, 2, 99, 3, 99, 6, 99));
  EXPECT_THAT(batches[0].offsets, ElementsAre(0, 3, 5, 7));
}

TEST(MicroBatchTest, EqualAnswersLieOnce) {
  const std::vector<Sequence> sequences = {MakeSequence(0, {7, 8, 1}, 2),
                                           MakeSequence(0, {7, 8, 1}, 2)};
  const PackedBatch packed = MakeMicroBatches(sequences, 100)[0].packed;
  EXPECT_THAT(packed.tokens, ElementsAre(7, 8, 1));
  EXPECT_THAT(packed.prefix, ElementsAre(-1));
  EXPECT_THAT(packed.score_rows, ElementsAre(1, 2, 1, 2));
}

// `routing` lists the two experts that each token went through.
TEST(MicroBatchTest, ExpertsComeAlongAndTokensOfOtherExpertsAreNotShared) {
  std::vector<Sequence> sequences = {MakeSequence(0, {7, 8, 1}, 2), MakeSequence(0, {7, 8, 3}, 2),
                                     MakeSequence(1, {5, 6}, 1)};
  sequences[0].routing = {0, 1, 2, 3, 4, 5};
  sequences[1].routing = {0, 1, 2, 3, 0, 5};
  sequences[2].routing = {1, 2, 3, 4};

  const PackedBatch shared = MakeMicroBatches(sequences, 100)[0].packed;
  EXPECT_THAT(shared.tokens, ElementsAre(7, 8, 1, 3, 5, 6));
  EXPECT_THAT(shared.routing, ElementsAre(0, 1, 2, 3, 4, 5, 0, 5, 1, 2, 3, 4));

  sequences[1].routing[3] = 4;
  const PackedBatch apart = MakeMicroBatches(sequences, 100)[0].packed;
  EXPECT_THAT(apart.tokens, ElementsAre(7, 8, 1, 8, 3, 5, 6));
  EXPECT_THAT(apart.routing, ElementsAre(0, 1, 2, 3, 4, 5, 2, 4, 0, 5, 1, 2, 3, 4));
}

// However prompts are shared and batches are cut: the tokens before a scored row, back to the start
// of its sequence, are those that the sequence had.
TEST(MicroBatchTest, EveryScoredRowStandsBehindTheTokensOfItsSequence) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<Sequence> sequences;
    for (uint32_t group = 0; group < 12; ++group) {
      std::vector<int32_t> prompt(1 + random.Below(20));
      for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(3));
      for (uint64_t members = 1 + random.Below(6); members > 0; --members) {
        std::vector<int32_t> tokens = prompt;
        for (uint64_t more = random.Below(8); more > 0; --more)
          tokens.push_back(static_cast<int32_t>(random.Below(3)));
        sequences.push_back(MakeSequence(group, tokens, prompt.size()));
      }
    }

    std::vector<std::vector<int64_t>> want, got;  // Tokens up to a scored row, then its target.
    for (const Sequence& sequence : sequences) {
      for (size_t i = 0; i < sequence.rows.size(); ++i) {
        want.emplace_back(sequence.tokens.begin(), sequence.tokens.begin() + sequence.rows[i] + 1)
            .push_back(sequence.targets[i]);
      }
    }

    for (const MicroBatch& batch : MakeMicroBatches(sequences, 64)) {
      const PackedBatch& packed = batch.packed;
      EXPECT_LE(packed.tokens.size(), 64u);

      for (size_t i = 0; i < packed.score_rows.size(); ++i) {
        const int64_t row = packed.score_rows[i];
        const auto b = std::upper_bound(packed.cu_seqlens.begin(), packed.cu_seqlens.end(), row) -
                       packed.cu_seqlens.begin() - 1;
        std::vector<int64_t>& tokens = got.emplace_back();
        // A shared prompt is a sequence of its own, which `prefix` names.
        const int64_t prefix = packed.prefix[b];
        if (prefix >= 0)
          tokens.assign(packed.tokens.begin() + packed.cu_seqlens[prefix],
                        packed.tokens.begin() + packed.cu_seqlens[prefix + 1]);
        tokens.insert(tokens.end(), packed.tokens.begin() + packed.cu_seqlens[b],
                      packed.tokens.begin() + row + 1);
        EXPECT_EQ(packed.positions[row] + 1, static_cast<int64_t>(tokens.size()));
        tokens.push_back(batch.targets[i]);
      }
    }

    EXPECT_THAT(got, testing::UnorderedElementsAreArray(want)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::trainer
