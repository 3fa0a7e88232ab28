// Tokens and log-probs depend only on the prefix, the weights, the sampling parameters and the key.
// They are the same in bits whatever else runs, and however prompts are split, shared, found in the
// cache or computed again.
#include <map>
#include <vector>

#include "common/base/splitmix.h"
#include "common/models/adapter.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/models/adapter_files.h"
#include "tests/services/rollout/tiny_model.h"

namespace sluice {
namespace {

using Events = std::map<uint64_t, std::vector<TokenEvent>>;  // By request.

void StepAndCollect(NativeEngine* engine, Events* events) {
  const absl::StatusOr<StepEvents> step = engine->Step();
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_TRUE(step->failures.empty()) << step->failures[0].status;
  for (const TokenEvent& event : step->tokens) {
    std::vector<TokenEvent>& so_far = (*events)[event.request];
    if (!so_far.empty()) {
      ASSERT_EQ(event.position, so_far.back().position + 1);
    }
    so_far.push_back(event);
  }
}

// Returns what a request gets if it runs alone in an engine with room for everything.
std::vector<TokenEvent> Undisturbed(NativeEngine* engine, const Request& request) {
  Events events;
  EXPECT_TRUE(engine->AddRequest(request).ok());
  while (!engine->idle() && !testing::Test::HasFatalFailure()) StepAndCollect(engine, &events);
  return events[request.id];
}

// Draws one of few kinds of prompts, so that many share a prefix. Their lengths lie around the ends
// of blocks.
std::shared_ptr<const std::vector<int32_t>> AnyPrompt(SplitMix64* random) {
  constexpr size_t kLengths[] = {1, 2, 20, 31, 32, 33, 63, 64, 65, 90};
  std::vector<int32_t> tokens(kLengths[random->Below(10)]);
  const auto kind = static_cast<int32_t>(random->Below(2));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * 7 + static_cast<size_t>(kind)) % 39);
  // No other position has token 39, so these prompts differ from the others in the last token only.
  if (random->Below(3) == 0) tokens.back() = 39;
  return Prompt(std::move(tokens));
}

struct Counts {
  uint64_t cases = 0, preempted = 0, forked = 0, cached = 0, resumed = 0;
};

// Runs some ten requests in a small engine, with aborts, late arrivals, and prefixes that were
// sampled elsewhere. `quiet` gives the expected answers.
void RunOne(uint64_t seed, NativeEngine* quiet, Counts* counts) {
  SplitMix64 random(seed);
  const uint32_t slots = 1 + static_cast<uint32_t>(random.Below(6));
  auto engine = TinyEngine(1, {.slots = slots,
                               .adapt = random.Below(3) == 0,
                               .blocks = 5 + static_cast<uint32_t>(random.Below(8)),
                               .max_context = 130,
                               .max_batch_tokens = slots + static_cast<uint32_t>(random.Below(70)),
                               .aging_steps = 20,
                               .threads = 1 + static_cast<int>(random.Below(2))});

  std::vector<Request> coming;
  Events expected, events;
  for (uint64_t id = 1; coming.size() < 10;) {
    const auto prompt = AnyPrompt(&random);
    const uint64_t group = random.Below(2) == 0 ? id : 0;
    const uint32_t members = group == 0 ? 1 : 2 + static_cast<uint32_t>(random.Below(4));
    for (uint32_t m = 0; m < members; ++m, ++id) {
      Request request{.id = id,
                      .group = group,
                      .prompt = prompt,
                      .seed = 100 + seed % 7,
                      .member = m,
                      .sampling = {.temperature = 0.7f + 0.1f * random.Below(5),
                                   .max_tokens = 1 + static_cast<uint32_t>(random.Below(40))},
                      .target_step = static_cast<int64_t>(random.Below(3)),
                      .trainable = false};

      // A trainable request may have neither of these.
      if (random.Below(4) == 0) request.sampling.top_p = 0.8;
      if (random.Below(4) == 0) request.sampling.top_k = 7;
      expected[id] = Undisturbed(quiet, request);

      // Part of the answer was sampled by another worker.
      if (random.Below(4) == 0 && expected[id].size() > 1) {
        const size_t cut = 1 + random.Below(expected[id].size() - 1);
        for (size_t i = 0; i < cut; ++i) request.sampled.push_back(expected[id][i].token);
        expected[id].erase(expected[id].begin(),
                           expected[id].begin() + static_cast<ptrdiff_t>(cut));
        request.order = RequestClass::kResumed;
        ++counts->resumed;
      }
      coming.push_back(std::move(request));
    }
  }

  size_t next = 0;
  for (int step = 0; step < 5000 && (next < coming.size() || !engine->idle()) &&
                     !testing::Test::HasFatalFailure();
       ++step) {
    while (next < coming.size() && random.Below(3) > 0) {
      const absl::Status added = engine->AddRequest(coming[next++]);
      ASSERT_TRUE(added.ok()) << added;
    }

    if (random.Below(60) == 0 && next > 0) {
      const uint64_t id = coming[random.Below(next)].id;
      engine->Abort(id, AbortReason::kCancelled);
      // What it has got so far stays.
      if (events[id].size() < expected[id].size()) expected[id].resize(events[id].size());
    }
    StepAndCollect(engine.get(), &events);
  }

  ASSERT_TRUE(engine->idle());
  ASSERT_EQ(engine->scheduler().blocks().active(), 0u);

  for (const Request& request : coming) {
    const std::vector<TokenEvent>&got = events[request.id], &wanted = expected[request.id];
    ASSERT_EQ(got.size(), wanted.size()) << "request " << request.id;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].token, wanted[i].token) << "request " << request.id << ", token " << i;
      ASSERT_EQ(got[i].logprob, wanted[i].logprob)
          << "in bits; request " << request.id << ", token " << i;
      ASSERT_EQ(got[i].position, wanted[i].position);
    }
    ++counts->cases;
  }

  const EngineStats stats = engine->Stats();
  counts->preempted += stats.preemptions;
  counts->forked += stats.prompt_tokens_forked;
  counts->cached += stats.prompt_tokens_cached;
}

TEST(EngineRandomTest, AThousandAnswersAreTheSameInBitsWhateverHappensAroundThem) {
  Counts counts;
  auto quiet = TinyEngine(1, {.slots = 1});
  for (uint64_t seed = 1; seed <= 100 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunOne(seed, quiet.get(), &counts);
  }

  EXPECT_GE(counts.cases, 1000u);
  EXPECT_GT(counts.preempted, 20u);
  EXPECT_GT(counts.forked, 1000u);
  EXPECT_GT(counts.cached, 1000u);
  EXPECT_GT(counts.resumed, 100u);
}

// The logits after each of `tokens`. The keys and values of the first `old` positions come from
// weights 1, the others from weights 2.
std::vector<std::vector<float>> LogitsOver(size_t old, const std::vector<int32_t>& tokens) {
  const ModelConfig config = TinyConfig();
  const TensorSet weights = TinyWeights(1), next = TinyWeights(2);
  auto model =
      *DecodeModel::Create(config, &weights, {.blocks = 8, .max_context = 256, .threads = 1});
  const std::vector<int32_t> blocks = {0, 1, 2, 3, 4, 5, 6, 7};
  const absl::Span<const int32_t> table = blocks;
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == old) {
      std::unique_ptr<DecodeWeights> packed = *model->Pack(next);
      model->SwapWeights(&packed);
    }
    logits.emplace_back(config.vocab_size);
    const DecodeModel::Row row{
        .table = 0, .position = static_cast<int32_t>(i), .token = tokens[i], .want_logits = true};
    model->Step({&row, 1}, {&table, 1}, logits.back().data());
  }
  return logits;
}

// Switches to other weights before step `at`, while a prompt of three chunks and two forks of it
// run. Each token must be, in bits, the draw from the logits of the version in its stamp, over keys
// and values of the versions that computed them.
void SwitchAt(uint32_t at, KvPolicy kv) {
  constexpr uint32_t kPrompt = 40, kChunk = 16;
  const auto answer = [](uint64_t id) { return id == 1 ? 200u : 20u; };
  auto engine = TinyEngine(1, {.slots = 4, .max_context = 256, .max_batch_tokens = kChunk});

  std::vector<int32_t> prompt(kPrompt);
  for (uint32_t i = 0; i < kPrompt; ++i) prompt[i] = static_cast<int32_t>(i % 39);
  for (uint64_t id : {1, 2, 3}) {
    ASSERT_TRUE(engine
                    ->AddRequest({.id = id,
                                  .group = 9,
                                  .prompt = Prompt(prompt),
                                  .seed = 5,
                                  .member = static_cast<uint32_t>(id),
                                  .sampling = {.max_tokens = answer(id)}})
                    .ok());
  }

  Events events;
  std::map<uint64_t, size_t> computed;  // Positions of each request before the switch.
  for (uint32_t step = 0; !engine->idle() && !testing::Test::HasFatalFailure(); ++step) {
    if (step == at) {
      const absl::StatusOr<Activation> activation = engine->ActivateWeights(Stage(2, {1, 1}), kv);
      ASSERT_TRUE(activation.ok() && activation->accepted) << activation->cause;
      // The token drawn last is not computed yet.
      for (uint64_t id : {1, 2, 3})
        computed[id] = events[id].empty() ? 0 : kPrompt + events[id].size() - 1;
      // Until its first token, request 1 computes a chunk of the prompt in each step.
      if (events[1].empty()) computed[1] = kChunk * at;
    }
    StepAndCollect(engine.get(), &events);
  }

  for (uint64_t id : {1, 2, 3}) {
    std::vector<int32_t> all = prompt;
    for (const TokenEvent& event : events[id]) all.push_back(event.token);
    ASSERT_EQ(all.size(), kPrompt + answer(id));

    const auto before = LogitsOver(all.size(), all),
               after = LogitsOver(kv == KvPolicy::kKeep ? computed[id] : 0, all);
    for (const TokenEvent& event : events[id]) {
      const bool old = event.version == PolicyVersion{1, 0};
      EXPECT_EQ(old, event.position <= computed[id] && computed[id] >= kPrompt)
          << "each stamp is the version of its step";
      SampleDraw draw;
      const SampleRow row{.logits = (old ? before : after)[event.position - 1].data(),
                          .key = 5,
                          .position = event.position,
                          .member = static_cast<uint32_t>(id)};
      SampleCpu(&row, 1, TinyConfig().vocab_size, &draw);
      ASSERT_EQ(draw.token, event.token)
          << "switched before step " << at << ", request " << id << ", position " << event.position;
      ASSERT_EQ(draw.logprob, event.logprob)
          << "switched before step " << at << ", request " << id << ", position " << event.position;
    }
  }
}

// The two tests below switch before each step while all requests run, and then, while only the
// answer of 200 tokens runs on, before each seventh step up to its last.
TEST(EngineRandomTest, WithRecomputeEachTokenIsThatOfItsStampAloneAtWhateverStepWeightsSwitch) {
  for (uint32_t at = 0; at <= 201 && !HasFatalFailure(); at += at < 30 ? 1 : 7)
    SwitchAt(at, KvPolicy::kRecompute);
}

TEST(EngineRandomTest, WithKeepEachTokenIsDrawnUnderItsStampOverTheKeysAndValuesThatItKept) {
  for (uint32_t at = 0; at <= 201 && !HasFatalFailure(); at += at < 30 ? 1 : 7)
    SwitchAt(at, KvPolicy::kKeep);
}

TEST(EngineRandomTest, ManyUpdatesAbortNothingAndNoPrefixIsFoundAcrossThem) {
  auto engine = TinyEngine(1, {.slots = 16, .max_context = 256, .max_batch_tokens = 64});
  for (uint64_t id = 1; id <= 64; ++id) {
    std::vector<int32_t> prompt(40, static_cast<int32_t>(id / 8));
    ASSERT_TRUE(engine
                    ->AddRequest({.id = id,
                                  .group = 1 + id / 8,
                                  .prompt = Prompt(prompt),
                                  .seed = id / 8,
                                  .member = static_cast<uint32_t>(id % 8),
                                  .sampling = {.max_tokens = 150}})
                    .ok());
  }

  Events events;
  int64_t version = 0;
  for (uint32_t step = 1; !engine->idle() && step < 2000 && !HasFatalFailure(); ++step) {
    const uint64_t cached = engine->Stats().prompt_tokens_cached,
                   forked = engine->Stats().prompt_tokens_forked;
    StepAndCollect(engine.get(), &events);
    for (const auto& [id, tokens] : events) {
      if (tokens.size() < 150) {
        ASSERT_EQ(tokens.back().version.number, version)
            << "every request got its token, under the version that is loaded";
      }
    }

    if (step % 20 == 1 && step > 1) {  // The first step after an update.
      EXPECT_EQ(engine->Stats().prompt_tokens_cached, cached);
      EXPECT_EQ(engine->Stats().prompt_tokens_forked, forked);
    }

    if (step % 20 == 0) {
      ++version;
      ASSERT_TRUE(engine
                      ->ActivateWeights(Stage(static_cast<uint64_t>(2 + version % 5), {1, version}),
                                        KvPolicy::kKeep)
                      ->accepted);
    }
  }

  ASSERT_EQ(events.size(), 64u);
  for (const auto& [id, tokens] : events) EXPECT_EQ(tokens.size(), 150u) << id;
}

// Requests with one prompt and with one adapter, another or none run in one batch. Each answer is
// that of an engine that has it alone, and no request finds a prefix of another adapter.
TEST(EngineRandomTest, EachRequestSamplesWithItsAdapterAloneAndFindsNoPrefixOfAnother) {
  const std::string dir = testing_data::TempPath("engine_adapters/");
  std::vector<std::shared_ptr<const Adapter>> adapters = {nullptr};
  for (uint64_t seed : {1, 2}) {
    const std::string path = dir + std::to_string(seed);
    WriteAdapter(path, AdapterConfig(4, 8, kAllAdapterModules),
                 AdapterTensors(TinyConfig(), 4, kAllAdapterModules, seed));
    adapters.push_back(*Adapter::Read(path, TinyConfig()));
  }
  std::filesystem::remove_all(dir);

  std::vector<int32_t> prompt(70);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 39);
  const auto request_of = [&](uint64_t id) {
    return Request{.id = id,
                   .prompt = Prompt(prompt),
                   .seed = 5,
                   .sampling = {.max_tokens = 40},
                   .trainable = false,
                   .adapter = adapters[id % 3]};
  };

  auto engine = TinyEngine(1, {.slots = 3, .max_context = 128, .max_batch_tokens = 50});
  Events events, again;
  for (uint64_t id : {0, 1, 2}) ASSERT_TRUE(engine->AddRequest(request_of(id)).ok());
  while (!engine->idle() && !HasFatalFailure()) StepAndCollect(engine.get(), &events);

  EXPECT_EQ(engine->Stats().prompt_tokens_cached, 0u);

  for (uint64_t id : {0, 1, 2}) {
    auto alone = TinyEngine(1, {.slots = 1, .max_context = 128});
    const std::vector<TokenEvent> expected = Undisturbed(alone.get(), request_of(id));
    ASSERT_EQ(events[id].size(), 40u);
    for (size_t i = 0; i < 40; ++i) {
      ASSERT_EQ(events[id][i].token, expected[i].token) << "adapter " << id << ", token " << i;
      ASSERT_EQ(events[id][i].logprob, expected[i].logprob);
    }
  }

  EXPECT_NE(events[0][0].logprob, events[1][0].logprob);
  EXPECT_NE(events[1][0].logprob, events[2][0].logprob);

  for (uint64_t id : {3, 4, 5}) ASSERT_TRUE(engine->AddRequest(request_of(id)).ok());
  while (!engine->idle() && !HasFatalFailure()) StepAndCollect(engine.get(), &again);
  EXPECT_EQ(engine->Stats().prompt_tokens_cached, 3 * 64u)
      << "each finds what its own kind has computed";
  EXPECT_EQ(again[4].back().logprob, events[1].back().logprob);

  Request trained = request_of(7);
  trained.trainable = true;
  EXPECT_FALSE(engine->AddRequest(trained).ok());

  Request member = request_of(8);
  member.group = 3;
  ASSERT_TRUE(engine->AddRequest(member).ok());
  member.id = 9, member.adapter = nullptr;
  EXPECT_FALSE(engine->AddRequest(member).ok()) << "members of a group have one adapter";
}

TEST(EngineRandomTest,
     UnderAnUpdateEachTwentyStepsSixtyFourAnswersAreDrawnInBitsFromTheVersionsOfTheirStamps) {
  constexpr int64_t kVersions = 5;
  const auto seed_of = [](int64_t number) {
    return static_cast<uint64_t>(number == 0 ? 1 : 2 + number % kVersions);
  };
  auto engine = TinyEngine(1, {.slots = 64, .max_context = 256, .max_batch_tokens = 512});
  const auto prompt_of = [](uint64_t id) {
    return std::vector<int32_t>(10 + id % 30, static_cast<int32_t>(id % 39));
  };

  for (uint64_t id = 1; id <= 64; ++id) {
    ASSERT_TRUE(engine
                    ->AddRequest({.id = id,
                                  .prompt = Prompt(prompt_of(id)),
                                  .seed = 3,
                                  .member = static_cast<uint32_t>(id),
                                  .sampling = {.max_tokens = 100}})
                    .ok());
  }

  Events events;
  int64_t version = 0;
  for (uint32_t step = 1; !engine->idle() && step < 2000 && !HasFatalFailure(); ++step) {
    StepAndCollect(engine.get(), &events);
    if (step % 20 != 0) continue;
    ++version;
    ASSERT_TRUE(engine->ActivateWeights(Stage(seed_of(version), {1, version}), KvPolicy::kRecompute)
                    ->accepted);
  }

  EXPECT_GE(version, 4);
  ASSERT_EQ(events.size(), 64u);

  for (const auto& [id, tokens] : events) {
    ASSERT_EQ(tokens.size(), 100u) << "none was aborted";
    std::vector<int32_t> all = prompt_of(id);
    for (const TokenEvent& event : tokens) all.push_back(event.token);
    std::map<int64_t, std::vector<float>> logits;
    for (const TokenEvent& event : tokens) {
      std::vector<float>& under = logits[event.version.number];
      if (under.empty()) under = LogitsUnder(seed_of(event.version.number), all);
      const TokenScore score =
          ScoreCpu(&under[(event.position - 1) * static_cast<size_t>(TinyConfig().vocab_size)],
                   TinyConfig().vocab_size, 1, event.token);
      ASSERT_EQ(score.logprob, event.logprob) << "request " << id << ", position " << event.position
                                              << ", version " << event.version.str();
    }

    EXPECT_GE(logits.size(), 4u);
  }
}

}  // namespace
}  // namespace sluice
