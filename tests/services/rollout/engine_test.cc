#include <cmath>
#include <limits>
#include <map>

#include "common/base/failpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/services/rollout/tiny_model.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Events = std::map<uint64_t, std::vector<TokenEvent>>;  // By request.

Request Ask(uint64_t id, std::vector<int32_t> prompt, uint32_t max_tokens, uint32_t member = 0,
            uint64_t group = 0) {
  return {.id = id,
          .group = group,
          .prompt = Prompt(std::move(prompt)),
          .seed = 1234,
          .member = member,
          .sampling = {.max_tokens = max_tokens}};
}

void StepOnce(Engine* engine, Events* events) {
  const absl::StatusOr<StepEvents> step = engine->Step();
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_TRUE(step->failures.empty()) << step->failures[0].status;
  for (const TokenEvent& event : step->tokens) (*events)[event.request].push_back(event);
}

Events RunToEnd(Engine* engine) {
  Events events;
  for (int i = 0; i < 5000 && !engine->idle() && !testing::Test::HasFatalFailure(); ++i)
    StepOnce(engine, &events);
  EXPECT_TRUE(engine->idle());
  return events;
}

// The log-prob of each token of prompt + answer under the weights of `seed`, by a model of its own.
std::vector<double> LogprobsUnder(uint64_t seed, const std::vector<int32_t>& tokens,
                                  double temperature) {
  const std::vector<float> logits = LogitsUnder(seed, tokens);
  const int64_t vocab = TinyConfig().vocab_size;
  std::vector<double> logprobs(tokens.size(), 0);
  for (size_t i = 1; i < tokens.size(); ++i) {
    const float* z = logits.data() + (i - 1) * vocab;
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(z[v] / temperature);
    logprobs[i] = z[tokens[i]] / temperature - std::log(sum);
  }
  return logprobs;
}

TEST(EngineTest, LogprobsAreThoseOfTheDistributionDrawnFrom) {
  auto engine = TinyEngine(1);
  Request request = Ask(1, {5, 6, 7}, 60);
  request.sampling.temperature = 0.8f;
  ASSERT_TRUE(engine->AddRequest(request).ok());
  const std::vector<TokenEvent> events = RunToEnd(engine.get())[1];
  ASSERT_EQ(events.size(), 60u);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);

  std::vector<int32_t> all = {5, 6, 7};
  for (const TokenEvent& event : events) all.push_back(event.token);

  const std::vector<double> logprobs = LogprobsUnder(1, all, 0.8f);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].position, 3 + i);
    EXPECT_EQ(events[i].version, (PolicyVersion{1, 0}));
    EXPECT_NEAR(events[i].logprob, logprobs[3 + i], 1e-4) << i;
  }
}

TEST(EngineTest, LogprobsOfThePromptComeWithTheFirstToken) {
  auto engine = TinyEngine(1, {.slots = 4, .max_batch_tokens = 40});
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 70; ++i) prompt.push_back((i * 7 + 3) % 39);

  ASSERT_TRUE(engine->AddRequest(Ask(9, prompt, 3)).ok());
  const std::vector<TokenEvent> plain = RunToEnd(engine.get())[9];

  for (uint64_t id : {1, 2}) {
    Request request = Ask(id, prompt, 3);
    request.prompt_logprobs = true;
    request.top_logprobs = 2;
    ASSERT_TRUE(engine->AddRequest(request).ok());
  }
  ASSERT_TRUE(engine->AddRequest(Ask(3, prompt, 3)).ok());
  const Events events = RunToEnd(engine.get());

  const std::vector<double> expected = LogprobsUnder(1, prompt, 1);
  for (uint64_t id : {1, 2}) {
    const std::vector<TokenEvent>& answer = events.at(id);
    EXPECT_EQ(TokensOf(answer), TokensOf(plain));
    ASSERT_EQ(answer[0].details->prompt_logprobs.size(), 69u);
    ASSERT_EQ(answer[0].details->prompt_top.size(), 69u);
    for (size_t i = 0; i < 69; ++i) {
      EXPECT_NEAR(answer[0].details->prompt_logprobs[i], expected[i + 1], 1e-4) << i;
      EXPECT_GE(answer[0].details->prompt_top[i][0].logprob, answer[0].details->prompt_logprobs[i]);
    }
    EXPECT_TRUE(answer[1].details->prompt_logprobs.empty());
  }

  EXPECT_EQ(events.at(3)[0].details, nullptr);
}

TEST(EngineTest, ATokenDependsNeitherOnTheBatchNorOnChunks) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  auto alone = TinyEngine(1);
  ASSERT_TRUE(alone->AddRequest(Ask(1, prompt, 40, 3)).ok());
  const std::vector<TokenEvent> expected = RunToEnd(alone.get())[1];

  for (const NativeEngine::Options& options :
       {NativeEngine::Options{.slots = 16, .max_batch_tokens = 16},
        NativeEngine::Options{.slots = 3, .max_batch_tokens = 3},
        NativeEngine::Options{.slots = 16, .threads = 2}}) {
    auto engine = TinyEngine(1, options);

    // The members share a prompt, and other requests run beside them.
    for (uint32_t member = 0; member < 12; ++member) {
      ASSERT_TRUE(engine->AddRequest(Ask(1 + member, prompt, 40, member, 77)).ok());
      ASSERT_TRUE(engine
                      ->AddRequest(
                          Ask(100 + member, {9, static_cast<int32_t>(member)}, 10 + member, member))
                      .ok());
    }
    const Events events = RunToEnd(engine.get());

    const std::vector<TokenEvent>& member = events.at(1 + 3);
    ASSERT_EQ(TokensOf(member), TokensOf(expected));
    for (size_t i = 0; i < member.size(); ++i)
      EXPECT_EQ(member[i].logprob, expected[i].logprob) << "in bits, token " << i;
    EXPECT_GT(engine->Stats().prompt_tokens_forked, 0u);
  }
}

TEST(EngineTest, AResumedAnswerGoesOnAsIfNeverInterrupted) {
  auto whole = TinyEngine(1);
  ASSERT_TRUE(whole->AddRequest(Ask(1, {3, 1, 4}, 50)).ok());
  const std::vector<TokenEvent> expected = RunToEnd(whole.get())[1];

  for (size_t cut : {size_t{1}, size_t{17}, size_t{49}}) {
    auto engine = TinyEngine(1);
    Request request = Ask(1, {3, 1, 4}, 50);
    request.sampled = TokensOf({expected.begin(), expected.begin() + cut});
    request.order = RequestClass::kResumed;
    ASSERT_TRUE(engine->AddRequest(request).ok());

    const std::vector<TokenEvent> rest = RunToEnd(engine.get())[1];
    ASSERT_EQ(rest.size(), expected.size() - cut);
    for (size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i].position, 3 + cut + i);
      EXPECT_EQ(rest[i].token, expected[cut + i].token);
      EXPECT_EQ(rest[i].logprob, expected[cut + i].logprob);
    }
  }
}

TEST(EngineTest, EachStampNamesTheWeightsThatProducedItsTokenAtWhateverStepTheySwitch) {
  constexpr uint32_t kTokens = 25;
  for (uint32_t at = 0; at <= kTokens; ++at) {
    auto engine = TinyEngine(1);
    ASSERT_TRUE(engine->AddRequest(Ask(1, {5, 6}, kTokens)).ok());

    Events events;
    for (uint32_t step = 0; !engine->idle(); ++step) {
      if (step == at) {
        const absl::StatusOr<Activation> activation =
            engine->ActivateWeights(Stage(2, {1, 1}), KvPolicy::kRecompute);
        ASSERT_TRUE(activation.ok() && activation->accepted) << activation->cause;
      }
      StepOnce(engine.get(), &events);
    }

    std::vector<int32_t> all = {5, 6};
    for (const TokenEvent& event : events[1]) all.push_back(event.token);
    ASSERT_EQ(all.size(), 2 + kTokens);
    const std::vector<double> before = LogprobsUnder(1, all, 1), after = LogprobsUnder(2, all, 1);
    for (uint32_t i = 0; i < kTokens; ++i) {
      const TokenEvent& event = events[1][i];
      ASSERT_EQ(event.version, (PolicyVersion{1, i < at ? 0 : 1}))
          << "switched before step " << at << ", token " << i;
      ASSERT_NEAR(event.logprob, (i < at ? before : after)[2 + i], 1e-4)
          << "switched before step " << at << ", token " << i;
    }
  }
}

TEST(EngineTest, RunningRequestsGoOnOverASwitchThatKeepsTheirKeysAndValues) {
  auto engine = TinyEngine(1, {.slots = 4, .max_batch_tokens = 4});
  for (uint64_t id = 1; id <= 6; ++id)
    ASSERT_TRUE(engine->AddRequest(Ask(id, {1, 2, 3, 4, 5, 6}, 20, id, id % 2)).ok());

  Events events;
  for (int64_t step = 1; !engine->idle(); ++step) {
    StepOnce(engine.get(), &events);
    if (step % 5 == 0) {
      ASSERT_TRUE(engine->ActivateWeights(Stage(step, {1, step}), KvPolicy::kKeep)->accepted);
    }
  }

  for (uint64_t id = 1; id <= 6; ++id) {
    ASSERT_EQ(events[id].size(), 20u);
    for (size_t i = 1; i < 20; ++i) {
      EXPECT_EQ(events[id][i].position, events[id][i - 1].position + 1);
      EXPECT_GE(events[id][i].version, events[id][i - 1].version);
    }
  }
}

TEST(EngineTest, ABitFlippedInThePackedWeightsKeepsTheOldVersionAndTheNextTryRecovers) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  auto engine = TinyEngine(1);
  auto untouched = TinyEngine(1);
  for (Engine* e : {static_cast<Engine*>(engine.get()), static_cast<Engine*>(untouched.get())}) {
    ASSERT_TRUE(e->AddRequest(Ask(1, {5, 6}, 30)).ok());
  }

  Events events, expected;
  for (int i = 0; i < 10; ++i) {
    StepOnce(engine.get(), &events);
    StepOnce(untouched.get(), &expected);
  }

  ASSERT_TRUE(ArmFailpoint("rollout.activate.bitflip", "error", 1).ok());
  const StagedWeights staged = Stage(2, {1, 1});

  const absl::StatusOr<Activation> refused = engine->ActivateWeights(staged, KvPolicy::kKeep);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_FALSE(refused->accepted);
  EXPECT_EQ(refused->version, (PolicyVersion{1, 0}));
  EXPECT_THAT(refused->blame, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_THAT(refused->cause, HasSubstr(staged.state.hex()));

  for (int i = 0; i < 10; ++i) {
    StepOnce(engine.get(), &events);
    StepOnce(untouched.get(), &expected);
  }

  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(events[1][i].token, expected[1][i].token);
    EXPECT_EQ(events[1][i].logprob, expected[1][i].logprob);
    EXPECT_EQ(events[1][i].version, (PolicyVersion{1, 0}));
  }

  ASSERT_TRUE(engine->ActivateWeights(staged, KvPolicy::kKeep)->accepted);
  EXPECT_EQ(engine->fingerprint(), staged.state);
  StepOnce(engine.get(), &events);
  EXPECT_EQ(events[1].back().version, (PolicyVersion{1, 1}));
}

TEST(EngineTest, StagedBytesThatAreNotThePublishedOnesAreRefused) {
  auto engine = TinyEngine(1);
  StagedWeights staged = Stage(2, {1, 1});
  staged.state.f[0] ^= 1;

  const absl::StatusOr<Activation> refused = engine->ActivateWeights(staged, KvPolicy::kKeep);
  ASSERT_TRUE(refused.ok());
  EXPECT_FALSE(refused->accepted);
  EXPECT_TRUE(refused->blame.empty());
  EXPECT_EQ(engine->fingerprint(), FingerprintOf(TinyWeights(1)));
  EXPECT_EQ(FingerprintOf(*engine->weights().Unpack()), engine->fingerprint());
}

TEST(EngineTest, AVersionOfEqualWeightsIsARelabel) {
  auto engine = TinyEngine(1);
  StagedWeights staged;
  staged.version = {2, 5};
  staged.state = engine->fingerprint();
  ASSERT_TRUE(engine->ActivateWeights(staged, KvPolicy::kKeep)->accepted);
  EXPECT_EQ(engine->version(), (PolicyVersion{2, 5}));

  staged.version = {2, 6};
  staged.state.f[1] ^= 4;
  EXPECT_FALSE(engine->ActivateWeights(staged, KvPolicy::kKeep)->accepted);
  EXPECT_EQ(engine->version(), (PolicyVersion{2, 5}));
}

TEST(EngineTest, StopTokensAreReportedAndEndTheAnswer) {
  auto probe = TinyEngine(1);
  ASSERT_TRUE(probe->AddRequest(Ask(1, {5}, 30)).ok());
  const std::vector<int32_t> tokens = TokensOf(RunToEnd(probe.get())[1]);
  const int32_t stop = tokens[7];
  const size_t first = std::find(tokens.begin(), tokens.end(), stop) - tokens.begin();

  auto engine = TinyEngine(1, {.slots = 8}, {stop});
  Request by_request = Ask(2, {5}, 30), ignoring = Ask(3, {5}, 30);
  by_request.sampling.stop_ids = {tokens[3]};
  by_request.sampling.ignore_eos = true;
  ignoring.sampling.ignore_eos = true;
  for (const Request& request : {Ask(1, {5}, 30), by_request, ignoring})
    ASSERT_TRUE(engine->AddRequest(request).ok());

  const Events events = RunToEnd(engine.get());
  EXPECT_EQ(events.at(1).size(), first + 1);
  EXPECT_EQ(events.at(1).back().token, stop);
  EXPECT_EQ(events.at(1).back().finish, FinishReason::kStop);
  EXPECT_EQ(events.at(2).back().token, tokens[3]);
  EXPECT_EQ(events.at(3).size(), 30u);
}

TEST(EngineTest, GreedyTakesTheMostLikelyTokenWithLogprobZero) {
  auto engine = TinyEngine(1);
  Request request = Ask(1, {5, 6, 7}, 10);
  request.sampling.temperature = 0;
  EXPECT_EQ(engine->AddRequest(request).code(), absl::StatusCode::kInvalidArgument) << "trainable";

  request.trainable = false;
  ASSERT_TRUE(engine->AddRequest(request).ok());
  const Events events = RunToEnd(engine.get());
  for (const TokenEvent& event : events.at(1)) EXPECT_EQ(event.logprob, 0);
}

TEST(EngineTest, OneTokenAndAPromptAtTheLimitFit) {
  auto engine = TinyEngine(1, {.slots = 2, .max_context = 16});
  ASSERT_TRUE(engine->AddRequest(Ask(1, std::vector<int32_t>(15, 3), 1)).ok());
  ASSERT_TRUE(engine->AddRequest(Ask(2, {3}, 15)).ok());
  EXPECT_THAT(engine->AddRequest(Ask(3, std::vector<int32_t>(16, 3), 1)).message(),
              HasSubstr("exceed the context of 16"));
  EXPECT_THAT(engine->AddRequest(Ask(4, {3}, 0)).message(), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(engine->AddRequest(Ask(5, {}, 1)).message(), HasSubstr("no tokens"));
  EXPECT_THAT(engine->AddRequest(Ask(6, {40}, 1)).message(),
              HasSubstr("outside the vocabulary of 40"));
  EXPECT_EQ(engine->AddRequest(Ask(2, {3}, 1)).code(), absl::StatusCode::kAlreadyExists);

  const Events events = RunToEnd(engine.get());
  EXPECT_EQ(events.at(1).size(), 1u);
  EXPECT_EQ(events.at(2).size(), 15u);
}

TEST(EngineTest, RulesThatCannotBeReplayedAreRefusedByName) {
  const SamplingParams good{.max_tokens = 5};
  EXPECT_TRUE(CheckSampling(good, true).ok());
  SamplingParams bad = good;
  bad.top_p = 0.9;
  EXPECT_THAT(CheckSampling(bad, true).message(), HasSubstr("top_p"));

  bad = good;
  bad.top_k = 5;
  EXPECT_THAT(CheckSampling(bad, true).message(), HasSubstr("top_k"));

  bad = good;
  bad.min_p = 0.1;
  EXPECT_THAT(CheckSampling(bad, true).message(), HasSubstr("min_p"));

  bad = good;
  bad.stop = {"END"};
  EXPECT_THAT(CheckSampling(bad, true).message(), HasSubstr("sampling.stop"));

  bad = good;
  bad.min_tokens = 2;
  EXPECT_THAT(CheckSampling(bad, true).message(), HasSubstr("min_tokens"));
  EXPECT_TRUE(CheckSampling(bad, false).ok());

  bad.stop = {"END"};
  EXPECT_THAT(CheckSampling(bad, false).message(), HasSubstr("min_tokens"));

  for (const double wrong : {-0.1, 1.1, std::nan("")}) {
    bad = good;
    bad.top_p = wrong;
    EXPECT_THAT(CheckSampling(bad, false).message(), HasSubstr("top_p"));
    bad = good;
    bad.min_p = wrong;
    EXPECT_THAT(CheckSampling(bad, false).message(), HasSubstr("min_p"));
  }

  bad = good;
  bad.temperature = 1e-7f;
  EXPECT_THAT(CheckSampling(bad, false).message(), HasSubstr("temperature"));
}

TEST(EngineTest, AnAbortedRequestSaysNothingMoreAndFreesItsSlot) {
  auto engine = TinyEngine(1, {.slots = 1});
  ASSERT_TRUE(engine->AddRequest(Ask(1, {1}, 100)).ok());
  ASSERT_TRUE(engine->AddRequest(Ask(2, {2}, 3)).ok());

  Events events;
  for (int i = 0; i < 4; ++i) StepOnce(engine.get(), &events);
  engine->Abort(1, AbortReason::kLeaseLost);
  engine->Abort(99, AbortReason::kLeaseLost);
  while (!engine->idle()) StepOnce(engine.get(), &events);

  EXPECT_EQ(events[1].size(), 4u);
  EXPECT_EQ(events[2].size(), 3u);
}

TEST(EngineTest, LogitsThatAreNotFiniteFailOnlyTheirRequest) {
  // Token 9's embedding is broken. The output head is untied, because each row would meet the
  // broken number there.
  ModelConfig config = TinyConfig();
  config.tie_word_embeddings = false;
  TensorSet untied = *InitWeights(config, 1);
  untied.as<float>(untied.Find("model.embed_tokens.weight"))[9 * config.hidden_size] =
      std::numeric_limits<float>::quiet_NaN();
  auto engine = *NativeEngine::Create(config, std::move(untied), {1, 0}, {}, {.slots = 4});
  ASSERT_TRUE(engine->AddRequest(Ask(1, {9}, 5)).ok());
  Request good = Ask(2, {5}, 1);
  ASSERT_TRUE(engine->AddRequest(good).ok());

  const absl::StatusOr<StepEvents> step = engine->Step();
  ASSERT_TRUE(step.ok());
  ASSERT_EQ(step->failures.size(), 1u);
  EXPECT_EQ(step->failures[0].request, 1u);
  EXPECT_EQ(step->failures[0].status.code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(step->tokens.size(), 1u);
  EXPECT_EQ(step->tokens[0].request, 2u);
  EXPECT_EQ(engine->Stats().nonfinite_rows, 1u);
  EXPECT_TRUE(engine->idle());
}

}  // namespace
}  // namespace sluice
