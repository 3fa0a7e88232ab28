#include "services/trainer/core/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status_text.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;

// The shape of Qwen3-0.6B: 596 million parameters.
ModelConfig LargeConfig() {
  return *ParseModelConfig(
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
      "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
      "tie_word_embeddings": true})",
      "large");
}

uint64_t BytesOf(const MemoryPlan& plan, absl::string_view name) {
  for (const MemoryPlan::Row& row : plan.rows) {
    if (row.name == name) return row.bytes;
  }
  return 0;
}

MemoryPlanInput LargeInput() {
  MemoryPlanInput in;
  in.config = LargeConfig();
  in.dtype = DType::kBF16;
  in.micro_batch_tokens = 2048;
  in.longest = 1024;
  in.most_kept_bytes = int64_t{512} << 20;  // Whatever memory the machine of the test has.
  return in;
}

TEST(MemoryPlanTest, EachPartIsWhatItsTensorsTake) {
  const MemoryPlan plan = PlanMemory(LargeInput());
  constexpr uint64_t kParameters = 596'049'920;
  EXPECT_EQ(BytesOf(plan, "parameters"), 4 * kParameters);
  EXPECT_EQ(BytesOf(plan, "gradients"), 4 * kParameters);
  EXPECT_EQ(BytesOf(plan, "moments"), 8 * kParameters);
  EXPECT_EQ(BytesOf(plan, "reference"), 0u);
  EXPECT_EQ(BytesOf(plan, "published versions"), 6 * 2 * kParameters);
  EXPECT_EQ(BytesOf(plan, "logits"), uint64_t{192} << 20);

  MemoryPlanInput more = LargeInput();
  more.reference = true, more.gradient_buffers = 2, more.dtype = DType::kF32;
  EXPECT_EQ(PlanMemory(more).total() - plan.total(), (4 + 4 + 6 * 2) * kParameters);
  more.deltas = false;
  EXPECT_EQ(BytesOf(PlanMemory(more), "published versions"), 4 * 4 * kParameters);
}

TEST(MemoryPlanTest, ATeacherTakesItsWeightsAndTheBuffersThatCompareItWithThePolicy) {
  const MemoryPlan alone = PlanMemory(LargeInput());
  MemoryPlanInput in = LargeInput();
  in.distill = {.kind = DistillKind::kSampled};
  in.teacher = LargeConfig();
  in.teacher.num_layers *= 2;
  const MemoryPlan sampled = PlanMemory(in);
  const uint64_t parameters = BytesOf(alone, "parameters");
  EXPECT_GT(BytesOf(sampled, "teacher"), parameters);
  EXPECT_LT(BytesOf(sampled, "teacher"), 2 * parameters);
  EXPECT_EQ(BytesOf(sampled, "logits"), BytesOf(alone, "logits"));
  EXPECT_EQ(sampled.total() - alone.total(), BytesOf(sampled, "teacher"));

  in.distill = {.kind = DistillKind::kFull, .top_k = 100};
  const MemoryPlan full = PlanMemory(in);
  EXPECT_EQ(BytesOf(full, "logits"), uint64_t{320} << 20);
  EXPECT_EQ(BytesOf(full, "teacher's pass"), 2048u * (4 * 1024 + 8 * 100));
}

TEST(MemoryPlanTest, ProxExactKeepsOlderVersionsAndAModelThatScoresWithThem) {
  MemoryPlanInput in = LargeInput();
  const MemoryPlan alone = PlanMemory(in);
  in.kept_versions = 5;
  const MemoryPlan exact = PlanMemory(in);
  EXPECT_EQ(BytesOf(exact, "older versions"), (4 + 5 * 2) * BytesOf(alone, "parameters") / 4);
  EXPECT_EQ(exact.total() - alone.total(), BytesOf(exact, "older versions"));
}

TEST(MemoryPlanTest, RanksShareOutTheMomentsAndOnlyRankZeroPublishes) {
  const MemoryPlan alone = PlanMemory(LargeInput());
  for (const int ranks : {2, 4}) {
    MemoryPlanInput in = LargeInput();
    in.ranks = ranks;
    EXPECT_EQ(PlanMemory(in).total(), alone.total()) << "nothing is shared out";
    in.shard = Shard::kOptimizer;
    const MemoryPlan first = PlanMemory(in);
    EXPECT_EQ(BytesOf(first, "moments"), BytesOf(alone, "moments") / ranks);
    EXPECT_EQ(BytesOf(first, "gradients"), BytesOf(alone, "gradients"));
    in.rank = 1;
    EXPECT_EQ(first.total() - PlanMemory(in).total(), BytesOf(alone, "published versions"));
  }
}

// A pass has the table of 151,936 rows, the last norm and one layer of 28 at once.
TEST(MemoryPlanTest, WhatRanksShareOutIsInMemoryWhileAPassIsInItsLayer) {
  const MemoryPlan alone = PlanMemory(LargeInput());
  MemoryPlanInput in = LargeInput();
  in.ranks = 4;
  in.shard = Shard::kGradients;
  const MemoryPlan plan = PlanMemory(in);
  constexpr uint64_t kTable = 151'936 * 1024, kAll = 596'049'920, kNorm = 1024,
                     kLayer = (kAll - kTable - kNorm) / 28;
  EXPECT_EQ(BytesOf(plan, "moments"), BytesOf(alone, "moments") / 4);
  EXPECT_EQ(BytesOf(plan, "gradients"), 4 * (kAll / 4 + kTable + kNorm + kLayer));
  EXPECT_EQ(BytesOf(plan, "parameters"), BytesOf(alone, "parameters"));

  in.shard = Shard::kParameters;
  in.average = true;
  const MemoryPlan all = PlanMemory(in);
  EXPECT_EQ(BytesOf(all, "gradients"), BytesOf(plan, "gradients"));
  EXPECT_EQ(BytesOf(all, "parameters"), BytesOf(plan, "gradients"));
  EXPECT_EQ(BytesOf(all, "average"), kAll);
}

TEST(MemoryPlanTest, RanksThatShareALongSequenceKeepTheirPartsOfIt) {
  MemoryPlanInput in = LargeInput();
  in.recompute = Recompute::kLayer;
  in.micro_batch_tokens = 1024;
  in.longest = 65536;
  in.ranks = 8;
  const uint64_t alone = BytesOf(PlanMemory(in), "activations");
  in.context = true;
  const uint64_t shared = BytesOf(PlanMemory(in), "activations");
  // The inputs of 28 layers of width 1024: an eighth, and half as much more if the parts are few.
  EXPECT_EQ(alone - shared, uint64_t{4} * 28 * 1024 * (65536 - (8192 + 4096)));
  in.ranks = 1;
  EXPECT_EQ(BytesOf(PlanMemory(in), "activations"), alone);
}

TEST(MemoryPlanTest, ACriticTakesAModelWithGradientsAndMoments) {
  for (const bool tied : {true, false}) {
    MemoryPlanInput in = LargeInput();
    in.config.tie_word_embeddings = tied;
    const uint64_t without = PlanMemory(in).total();
    in.critic = true;
    // Whether the policy has a head of its own or not, the critic has one output.
    constexpr uint64_t kParameters = 596'049'920 + 1024 + 1;
    EXPECT_EQ(BytesOf(PlanMemory(in), "critic"), 16 * kParameters);
    EXPECT_EQ(PlanMemory(in).total() - without, 16 * kParameters);
    in.ranks = 2;
    in.shard = Shard::kOptimizer;
    EXPECT_EQ(BytesOf(PlanMemory(in), "critic"), 12 * kParameters);
  }
}

TEST(MemoryPlanTest, MomentsInBf16TakeHalfOfThoseInFp32) {
  MemoryPlanInput in = LargeInput();
  in.critic = true;
  const MemoryPlan whole = PlanMemory(in);
  in.moments = DType::kBF16;
  const MemoryPlan half = PlanMemory(in);
  EXPECT_EQ(2 * BytesOf(half, "moments"), BytesOf(whole, "moments"));
  EXPECT_EQ(4 * BytesOf(half, "critic"), 3 * BytesOf(whole, "critic"));
  EXPECT_EQ(whole.total() - half.total(), uint64_t{4} * (2 * 596'049'920 + 1024 + 1));
}

TEST(MemoryPlanTest, ActivationsFallWhenTheyAreComputedAgainAndGrowWithTheLongestSequence) {
  MemoryPlanInput in = LargeInput();
  const uint64_t automatic = BytesOf(PlanMemory(in), "activations");
  in.recompute = Recompute::kNone;
  EXPECT_GT(BytesOf(PlanMemory(in), "activations"), 5 * automatic);
  in.recompute = Recompute::kLayer;
  EXPECT_EQ(BytesOf(PlanMemory(in), "activations"), automatic);
  in.longest = in.micro_batch_tokens = 4096;
  EXPECT_EQ(BytesOf(PlanMemory(in), "activations"), 2 * automatic);
}

// Of a longer sequence the layers' inputs grow, and what is carried between its parts: keys, values
// and a layer's output, in two of these cases with gradients, and the gradient of the input.
TEST(MemoryPlanTest, ASequenceAboveTheMicroBatchIsPlannedInParts) {
  MemoryPlanInput in = LargeInput();
  in.recompute = Recompute::kLayer;
  const auto activations = [&](uint32_t longest) {
    in.longest = longest;
    return BytesOf(PlanMemory(in), "activations");
  };
  // Two ranges of queries in a part of 2048, as many as there are query heads of a KV head.
  constexpr uint64_t kInputs = 28 * 1024 * 4, kCarried = 4 * ((4 + 2 * 9) * 8 * 128 + 5 * 1024);
  EXPECT_EQ(activations(16384) - activations(2048), (16384 - 2048) * kInputs + 16384 * kCarried);
  EXPECT_EQ(activations(32768) - activations(16384), 16384 * (kInputs + kCarried));

  // So smaller micro-batches help even if one sequence is longer than them.
  const uint64_t whole = PlanMemory(in).total();
  EXPECT_LT(FitMicroBatch(in, whole - (uint64_t{256} << 20)), in.micro_batch_tokens);
}

// A micro-batch just below the limit keeps all, and can take more than a full one that does not.
TEST(MemoryPlanTest, AutomaticRecomputationIsPlannedForTheMicroBatchThatTakesMost) {
  MemoryPlanInput in = LargeInput();
  in.longest = 1;
  const uint64_t kept = static_cast<uint64_t>(KeptBytesPerToken(in.config));
  for (const uint64_t most : {kept - 1, 100 * kept, 700 * kept + 1, 5000 * kept}) {
    in.most_kept_bytes = static_cast<int64_t>(most);
    for (const uint32_t tokens : {1u, 99u, 100u, 101u, 700u, 2048u, 6000u}) {
      uint64_t worst = 0;
      for (uint32_t some = 1; some <= tokens; ++some) {
        MemoryPlanInput one = in;
        one.micro_batch_tokens = some;
        one.recompute = some * kept > most ? Recompute::kLayer : Recompute::kNone;
        worst = std::max(worst, BytesOf(PlanMemory(one), "activations"));
      }
      in.micro_batch_tokens = tokens;
      EXPECT_EQ(BytesOf(PlanMemory(in), "activations"), worst) << most << " " << tokens;
    }
  }
}

TEST(MemoryPlanTest, MicroBatchesGetFewerTokensUntilThePlanFits) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer, Recompute::kAuto}) {
    MemoryPlanInput in = LargeInput();
    in.recompute = recompute;
    in.micro_batch_tokens = 16384;
    const uint64_t whole = PlanMemory(in).total();
    EXPECT_EQ(FitMicroBatch(in, whole), 16384u);

    MemoryPlanInput least = in;
    least.micro_batch_tokens = recompute == Recompute::kNone ? in.longest : 256;
    for (const double share : {0.99, 0.5, 0.02}) {
      const uint64_t available =
          PlanMemory(least).total() +
          static_cast<uint64_t>(share * double(whole - PlanMemory(least).total()));
      MemoryPlanInput fitted = in;
      fitted.micro_batch_tokens = FitMicroBatch(in, available);
      EXPECT_LT(fitted.micro_batch_tokens, 16384u);
      EXPECT_LE(PlanMemory(fitted).total(), available);
      // The next larger number that was tried does not fit.
      fitted.micro_batch_tokens += fitted.micro_batch_tokens / 15 + 2;
      EXPECT_GT(PlanMemory(fitted).total(), available) << share;
    }
    EXPECT_EQ(FitMicroBatch(in, PlanMemory(least).total() - 1), 16384u)
        << "no limit makes the longest sequence fit";
  }
}

TEST(MemoryPlanTest, ARankMayUseWhatTheJobSaysButNotMoreThanTheMachineHas) {
  MemoryPlanInput in;
  EXPECT_EQ(AvailableMemory(in, 1000), 1000u);
  in.memory = 600;
  EXPECT_EQ(AvailableMemory(in, 1000), 600u);
  in.memory = 2000;
  EXPECT_EQ(AvailableMemory(in, 1000), 1000u);
}

TEST(MemoryPlanTest, AJobThatCannotFitIsRefusedWithItsNumbersAndWhatLowersThem) {
  const MemoryPlan plan = PlanMemory(LargeInput());
  EXPECT_EQ(CheckFits(plan, plan.total()), absl::OkStatus());
  const absl::Status status = CheckFits(plan, uint64_t{8} << 30);
  EXPECT_EQ(ReasonOf(status), "TRAINER_MEMORY");
  EXPECT_THAT(std::string(status.message()), HasSubstr("may use 8.00 GiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameters 2.22 GiB"));
  EXPECT_THAT(StatusText(status), HasSubstr("trainer.batching.micro_batch_tokens"));
}

}  // namespace
}  // namespace sluice::trainer
