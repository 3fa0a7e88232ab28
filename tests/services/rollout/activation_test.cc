#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/splitmix.h"
#include "common/weights/weight_delta.h"
#include "services/rollout/core/engine/native/verify_rotation.h"
#include "tests/common/weights/make_delta.h"
#include "tests/services/rollout/tiny_model.h"

// Versions that come as deltas, in place and beside, against a slow model: the tensors of the
// version that is to be active.
namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Moves about `count` elements, each by a few places.
TensorSet MoveSome(const TensorSet& from, SplitMix64* random, uint64_t count) {
  TensorSet to = from;
  for (uint64_t i = 0; i < count; ++i) {
    const auto tensor = static_cast<size_t>(random->Below(to.size()));
    const absl::Span<uint32_t> elements = to.as<uint32_t>(tensor);
    elements[random->Below(elements.size())] ^= static_cast<uint32_t>(1 + random->Below(1000));
  }
  return to;
}

TensorSet MoveAll(const TensorSet& from, SplitMix64* random) {
  TensorSet to = from;
  for (size_t i = 0; i < to.size(); ++i) {
    for (uint32_t& x : to.as<uint32_t>(i)) x ^= static_cast<uint32_t>(1 + random->Below(1000));
  }
  return to;
}

StagedWeights StageDelta(WeightDelta delta, const TensorSet& to, PolicyVersion version) {
  return {.version = version,
          .state = FingerprintOf(to),
          .delta = std::make_shared<const WeightDelta>(std::move(delta))};
}
StagedWeights StageDelta(const TensorSet& from, const TensorSet& to, PolicyVersion version) {
  return StageDelta(MakeDelta(from, to), to, version);
}
StagedWeights StageWhole(const TensorSet& to, PolicyVersion version) {
  return {.version = version,
          .state = FingerprintOf(to),
          .tensors = std::make_shared<const TensorSet>(to)};
}

Request RequestOf(uint64_t id, uint32_t max_tokens, float temperature = 1) {
  Request request{.id = id,
                  .prompt = Prompt({3, static_cast<int32_t>(id % 40), 5}),
                  .seed = id,
                  .sampling = {.temperature = temperature, .max_tokens = max_tokens},
                  .trainable = temperature > 0};
  return request;
}

Activation ActivateOrDie(NativeEngine* engine, const StagedWeights& staged,
                         KvPolicy kv = KvPolicy::kKeep) {
  absl::StatusOr<Activation> activation = engine->ActivateWeights(staged, kv);
  EXPECT_TRUE(activation.ok()) << activation.status();
  return activation.ok() ? *activation : Activation();
}

bool Holds(const NativeEngine& engine, const TensorSet& weights) {
  return engine.weights().Unpack()->buffer() == weights.buffer();
}

// The greedy answer to a prompt.
std::vector<int32_t> GreedyAnswer(NativeEngine* engine, uint64_t id) {
  EXPECT_TRUE(engine->AddRequest(RequestOf(id, 12, /*temperature=*/0)).ok());
  std::vector<int32_t> tokens;
  for (int step = 0; step < 1000 && tokens.size() < 12; ++step) {
    const auto events = engine->Step();
    for (const TokenEvent& event : events->tokens) {
      if (event.request == id) tokens.push_back(event.token);
    }
  }
  return tokens;
}

// Each tensor of the delta with one element of its payload changed, in chunks that are valid.
WeightDelta Corrupt(const TensorSet& from, const TensorSet& to, size_t tensor, SplitMix64* random) {
  TensorSet wrong = to;
  const absl::Span<uint32_t> elements = wrong.as<uint32_t>(tensor);
  elements[random->Below(elements.size())] ^= 1u << random->Below(31);
  WeightDelta delta = MakeDelta(from, wrong);
  delta.tensor_states = TensorFingerprints(to);
  return delta;
}

TEST(ActivationTest, W03VersionsThatRainInEveryFormNeverShowATornState) {
  int in_place = 0, refused = 0, tokens = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    TensorSet now = TinyWeights(seed);
    std::map<PolicyVersion, TensorSet> published = {{{1, 0}, now}};
    auto engine = TinyEngine(seed, {.slots = 8,
                                    .threads = static_cast<int>(1 + random.Below(3)),
                                    .verify_in_turns = random.Below(2) == 0});
    uint64_t next_request = 1;
    PolicyVersion active{1, 0};

    for (int64_t step = 1; step <= 60; ++step) {
      const PolicyVersion version{1, step};
      StagedWeights staged;
      TensorSet next = now;
      bool wanted = true;  // That it is accepted.
      switch (random.Below(8)) {
        case 0:  // A few elements.
          next = MoveSome(now, &random, 1 + random.Below(100));
          staged = StageDelta(now, next, version), ++in_place;
          break;
        case 1: {  // A path of two.
          const TensorSet between = MoveSome(now, &random, 50);
          next = MoveSome(between, &random, 50);
          WeightDelta path = MakeDelta(now, between);
          for (const SignedChunk& part : MakeDelta(between, next).chunks)
            path.chunks.push_back(part);
          path.tensor_states = TensorFingerprints(next);
          staged = StageDelta(std::move(path), next, version), ++in_place;
          break;
        }
        case 2: {  // Back to an older state.
          next = MoveSome(now, &random, 20);
          WeightDelta back = Backward(MakeDelta(next, now), now, next);
          staged = StageDelta(std::move(back), next, version), ++in_place;
          break;
        }
        case 3:  // All elements.
          next = MoveAll(now, &random);
          staged = StageDelta(now, next, version);
          break;
        case 4:
          next = TinyWeights(random.Next());
          staged = StageWhole(next, version);
          break;
        case 5:  // The weights stay.
          staged = {.version = version, .state = FingerprintOf(now)};
          break;
        case 6: {  // Another payload than the published one.
          next = MoveSome(now, &random, 30);
          const auto tensor = static_cast<size_t>(random.Below(now.size()));
          staged = StageDelta(Corrupt(now, next, tensor, &random), next, version);
          wanted = false;
          break;
        }
        case 7: {  // From a state that the engine does not hold.
          const TensorSet other = MoveSome(now, &random, 3);
          next = MoveSome(other, &random, 30);
          staged = StageDelta(other, next, version);
          wanted = false;
          break;
        }
      }
      if (random.Below(2) == 0) engine->PrepareWeights(&staged);
      const Activation activation = ActivateOrDie(engine.get(), staged);
      ASSERT_EQ(activation.accepted, wanted) << step << ": " << activation.cause;
      ASSERT_FALSE(activation.damage.has_value());
      if (wanted) now = next, active = version;
      refused += !wanted;

      // A checker hashes what the engine holds.
      ASSERT_TRUE(Holds(*engine, now)) << step;
      ASSERT_EQ(engine->fingerprint(), FingerprintOf(now));
      ASSERT_EQ(engine->version(), active);
      if (engine->Stats().running < 6) {
        ASSERT_TRUE(engine->AddRequest(RequestOf(next_request++, 5 + random.Below(20))).ok());
      }
      for (uint64_t i = random.Below(4); i > 0; --i) {
        const auto events = engine->Step();
        ASSERT_TRUE(events.ok());
        for (const TokenEvent& event : events->tokens) ASSERT_EQ(event.version, active);
        tokens += static_cast<int>(events->tokens.size());
      }
    }
  }
  EXPECT_GT(in_place, 100);
  EXPECT_GT(refused, 100);
  EXPECT_GT(tokens, 1000);
}

TEST(ActivationTest, W15AGreedyAnswerAfterUpdatesIsThatOfAFreshEngine) {
  for (const bool experts : {false, true}) {
    ModelConfig config = TinyConfig();
    if (experts) config.num_experts = 4, config.experts_per_token = 2, config.expert_size = 16;
    SplitMix64 random(5);
    TensorSet now = *InitWeights(config, 1);
    auto engine = *NativeEngine::Create(config, now, {1, 0}, {}, {.slots = 8});
    for (int64_t update = 1; update <= 20; ++update) {
      GreedyAnswer(engine.get(), 1000 + static_cast<uint64_t>(update));
      const TensorSet next = update % 5 == 0 ? MoveAll(now, &random) : MoveSome(now, &random, 100);
      ASSERT_TRUE(ActivateOrDie(engine.get(), StageDelta(now, next, {1, update})).accepted);
      now = next;
      auto fresh = *NativeEngine::Create(config, now, {1, update}, {}, {.slots = 8});
      EXPECT_EQ(GreedyAnswer(engine.get(), 7), GreedyAnswer(fresh.get(), 7)) << update;
    }
  }
}

// A replica is one process. Its ranks are threads: each computes a part of each product, and
// applies a part of each delta. One thread alone is the model.
TEST(ActivationTest, W04AllThreadsOfAStepComputeWithOneStateOfTheWeights) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SplitMix64 random(seed);
    TensorSet now = TinyWeights(seed);
    std::vector<std::unique_ptr<NativeEngine>> engines;
    for (const int threads : {1, 2, 3, 5})
      engines.push_back(TinyEngine(seed, {.slots = 8, .threads = threads}));
    uint64_t next_request = 1;
    for (int64_t step = 1; step <= 60; ++step) {
      const bool updates = random.Below(2) == 0;
      const TensorSet next = random.Below(5) == 0 ? MoveAll(now, &random)
                                                  : MoveSome(now, &random, 1 + random.Below(300));
      const bool adds = engines[0]->Stats().running < 6;
      const uint32_t tokens = 5 + static_cast<uint32_t>(random.Below(20));
      std::optional<StepEvents> alone;
      for (const auto& engine : engines) {
        if (updates) {
          ASSERT_TRUE(ActivateOrDie(engine.get(), StageDelta(now, next, {1, step})).accepted);
        }
        ASSERT_TRUE(Holds(*engine, updates ? next : now));
        if (adds) {
          ASSERT_TRUE(engine->AddRequest(RequestOf(next_request, tokens)).ok());
        }
        const absl::StatusOr<StepEvents> events = engine->Step();
        ASSERT_TRUE(events.ok());
        if (!alone.has_value()) alone = *events;
        ASSERT_EQ(events->tokens.size(), alone->tokens.size());
        for (size_t i = 0; i < alone->tokens.size(); ++i) {
          const TokenEvent &token = events->tokens[i], &expected = alone->tokens[i];
          ASSERT_EQ(token.request, expected.request);
          ASSERT_EQ(token.token, expected.token) << "step " << step;
          ASSERT_EQ(token.logprob, expected.logprob) << "step " << step;
          ASSERT_EQ(token.version, expected.version);
        }
      }
      next_request += adds;
      if (updates) now = next;
    }
  }
}

TEST(ActivationTest, W13AWrongElementOfAPayloadIsFoundInItsTensorAndUndone) {
  SplitMix64 random(3);
  const TensorSet old = TinyWeights(1);
  auto engine = TinyEngine(1);
  for (size_t tensor = 0; tensor < old.size(); ++tensor) {
    const TensorSet next = MoveSome(old, &random, 40);
    const StagedWeights staged = StageDelta(Corrupt(old, next, tensor, &random), next, {1, 1});

    const Activation refused = ActivateOrDie(engine.get(), staged);
    EXPECT_FALSE(refused.accepted);
    EXPECT_FALSE(refused.damage.has_value());
    EXPECT_THAT(refused.blame, ElementsAre(old.spec(tensor).name));
    EXPECT_THAT(refused.cause, HasSubstr("it was undone"));
    EXPECT_TRUE(Holds(*engine, old));
    EXPECT_EQ(engine->version(), (PolicyVersion{1, 0}));
  }
  const TensorSet next = MoveSome(old, &random, 40);
  EXPECT_TRUE(ActivateOrDie(engine.get(), StageDelta(old, next, {1, 2})).accepted);
}

// Chunks of a hostile trainer that all change the same elements.
TEST(ActivationTest, ChunksThatOverlapAreAddedUp) {
  SplitMix64 random(3);
  const TensorSet old = TinyWeights(1), next = MoveSome(old, &random, 40);
  WeightDelta delta = MakeDelta(old, next);
  const std::vector<SignedChunk> once = delta.chunks;
  for (const int sign : {+1, -1}) {
    for (SignedChunk part : once) {
      part.sign = sign;
      delta.chunks.push_back(std::move(part));
    }
  }
  auto engine = TinyEngine(1, {.slots = 8, .threads = 3});
  EXPECT_TRUE(ActivateOrDie(engine.get(), StageDelta(std::move(delta), next, {1, 1})).accepted);
  EXPECT_TRUE(Holds(*engine, next));
}

TEST(ActivationTest, W05ABitThatFlipsAtRestIsFoundWithinEightActivations) {
  for (const bool in_turns : {true, false}) {
    SplitMix64 random(4);
    TensorSet now = TinyWeights(1);
    auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = in_turns});
    ASSERT_TRUE(engine->AddRequest(RequestOf(1, 200)).ok());
    for (int64_t update = 1; update <= 3; ++update) {
      const TensorSet next = MoveSome(now, &random, 10);
      ASSERT_TRUE(engine->Step().ok());
      ASSERT_TRUE(ActivateOrDie(engine.get(), StageDelta(now, next, {1, update})).accepted);
      now = next;
    }

    engine->FlipBit();
    std::optional<WeightDamage> damage;
    int64_t update = 4;
    for (; update < 4 + VerifyRotation::kGroups && !damage.has_value(); ++update) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine->Step().ok());
      const TensorSet next = MoveSome(now, &random, 10);
      damage = ActivateOrDie(engine.get(), StageDelta(now, next, {1, update})).damage;
      now = next;
    }
    ASSERT_TRUE(damage.has_value());
    EXPECT_THAT(damage->tensors, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
    EXPECT_GE(damage->suspect_tokens, 2u * static_cast<uint64_t>(update - 4));
    EXPECT_LE(damage->suspect_tokens, 2u * static_cast<uint64_t>(update - 4) + 3);
    EXPECT_TRUE(engine->damaged());
    std::optional<WeightDamage> again;
    const WeightsCheck check = engine->CheckWeights(&again);
    EXPECT_EQ(check.version, (PolicyVersion{1, update - 1})) << "that of the expected state";
    EXPECT_EQ(check.expected, FingerprintOf(now));
    EXPECT_EQ(check.tensors, damage->tensors);
    EXPECT_FALSE(again.has_value()) << "it is known already";

    // Only a whole version helps. The answer goes on under it, over keys and values of its own.
    const TensorSet next = MoveSome(now, &random, 10);
    EXPECT_FALSE(ActivateOrDie(engine.get(), StageDelta(now, next, {1, 90})).accepted);
    EXPECT_FALSE(
        ActivateOrDie(engine.get(), {.version = {1, 91}, .state = engine->fingerprint()}).accepted);
    ASSERT_TRUE(ActivateOrDie(engine.get(), StageWhole(next, {1, 92})).accepted);
    EXPECT_FALSE(engine->damaged());
    EXPECT_TRUE(Holds(*engine, next));
    const auto events = engine->Step();
    ASSERT_EQ(events->tokens.size(), 1u);
    EXPECT_EQ(events->tokens[0].version, (PolicyVersion{1, 92}));
    EXPECT_GT(events->rows, 1u) << "keys and values were computed again";
  }
}

TEST(ActivationTest, ABitThatFlipsBeforeAnUndoneDeltaIsFoundByIt) {
  SplitMix64 random(4);
  const TensorSet old = TinyWeights(1), next = MoveSome(old, &random, 40);
  auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = true});
  engine->FlipBit();
  const Activation refused =
      ActivateOrDie(engine.get(), StageDelta(Corrupt(old, next, 0, &random), next, {1, 1}));
  EXPECT_FALSE(refused.accepted);
  ASSERT_TRUE(refused.damage.has_value());
  EXPECT_THAT(refused.damage->tensors, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
}

TEST(ActivationTest, ABitThatFlipsBeforeADenseDeltaIsFoundByIt) {
  SplitMix64 random(4);
  const TensorSet old = TinyWeights(1), next = MoveAll(old, &random);
  auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = true});
  engine->FlipBit();
  const Activation refused = ActivateOrDie(engine.get(), StageDelta(old, next, {1, 1}));
  EXPECT_FALSE(refused.accepted);
  EXPECT_THAT(refused.blame, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
  ASSERT_TRUE(refused.damage.has_value());
  EXPECT_TRUE(engine->damaged());
  const Activation again = ActivateOrDie(engine.get(), StageDelta(old, next, {1, 1}));
  EXPECT_FALSE(again.accepted);
  EXPECT_FALSE(again.damage.has_value()) << "it is told once";
}

TEST(ActivationTest, ADamagedEngineFindsNoKeysAndValuesFromBefore) {
  const TensorSet weights = TinyWeights(1);
  auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = true});
  // Its prompt fills a block, which is indexed under the fingerprint of the weights.
  Request request = RequestOf(1, 2, /*temperature=*/0);
  request.prompt = Prompt(std::vector<int32_t>(40, 9));
  engine->FlipBit();
  ASSERT_TRUE(engine->AddRequest(request).ok());
  while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
  std::optional<WeightDamage> damage;
  for (int part = 0; part < VerifyRotation::kGroups && !damage.has_value(); ++part)
    damage = engine->VerifyPart();
  ASSERT_TRUE(damage.has_value());

  ASSERT_TRUE(ActivateOrDie(engine.get(), StageWhole(weights, {1, 0})).accepted);
  ASSERT_TRUE(engine->AddRequest(request).ok());
  while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->Stats().prompt_tokens_cached, 0u);
}

// With bf16 or mixed weights the forms in which a tensor is held differ.
TEST(ActivationTest, DeltasOfEachNumberTypeAreTakenInPlace) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SplitMix64 random(6);
    TensorSet now = *InitWeights(TinyConfig(), 1, dtype);
    auto engine = *NativeEngine::Create(TinyConfig(), now, {1, 0}, {}, {.slots = 2});
    for (int64_t update = 1; update <= 10; ++update) {
      TensorSet next = now;
      for (size_t i = 0; i < next.size(); ++i) {
        const auto at = random.Below(static_cast<uint64_t>(next.elements(i)));
        next.data(i)[at * DTypeBytes(dtype)] ^= std::byte{1};
      }
      ASSERT_TRUE(ActivateOrDie(engine.get(), StageDelta(now, next, {1, update})).accepted);
      now = next;
      EXPECT_TRUE(Holds(*engine, now)) << DTypeName(dtype) << ", update " << update;
    }
  }
}

TEST(VerifyRotationTest, EightTurnsReadEachTensorOnceInPartsOfAboutEqualSize) {
  const std::vector<int64_t> bytes = {800, 100, 100, 100, 100, 400, 400, 300, 500, 800, 50, 750};
  VerifyRotation rotation(bytes);
  EXPECT_TRUE(rotation.complete());
  rotation.Restart();
  std::map<int64_t, int> reads;
  for (int turn = 0; turn < VerifyRotation::kGroups; ++turn) {
    EXPECT_FALSE(rotation.complete());
    int64_t size = 0;
    for (const int64_t tensor : rotation.next()) {
      ++reads[tensor];
      size += bytes[static_cast<size_t>(tensor)];
    }
    EXPECT_LE(size, 800) << turn;
    rotation.Pass(static_cast<uint64_t>(10 + turn));
  }
  EXPECT_TRUE(rotation.complete());
  EXPECT_EQ(reads.size(), bytes.size());
  for (const auto& [tensor, count] : reads) EXPECT_EQ(count, 1) << tensor;
  EXPECT_EQ(rotation.right_at(0), 10u);
}

}  // namespace
}  // namespace sluice
