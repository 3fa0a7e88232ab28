// Texts, log-probs and other details that a request may ask for with its tokens, and stop texts.
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "common/base/file.h"
#include "common/base/utf8.h"
#include "common/testing/data.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/rollout/core/engine/scoring.h"
#include "tests/services/rollout/tiny_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Token i of the tiny model is byte i of this text: letters, space and period, the three bytes of
// U+2028, the two of "é", and a newline. The last token, 39, is "x39".
constexpr absl::string_view kBytes = "abcdefghijklmnopqrstuvwxyzABCDE .\xE2\x80\xA8\xC3\xA9\n";

std::unique_ptr<Tokenizer> ByteTokenizer() {
  std::string vocab;
  for (size_t i = 0; i < 40; ++i) {
    const std::string token = i < kBytes.size()
                                  ? ByteLevelAlphabet::Get().Spell(kBytes.substr(i, 1))
                                  : "x" + std::to_string(i);
    vocab += (i == 0 ? "" : ", ") + ("\"" + token + "\": ") + std::to_string(i);
  }
  const std::string json =
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], )"
      R"("normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, )"
      R"("use_regex": false},
    "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, )"
      R"("trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, )"
      R"("continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {)" +
      vocab + R"(}, "merges": []}})";

  const std::string path = testing_data::TempPath("tokenizer.json");
  EXPECT_TRUE(WriteFileAtomic(path, json).ok());
  auto tokenizer = Tokenizer::Load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Request AskFor(uint64_t id, uint32_t max_tokens) {
  return {.id = id,
          .prompt = Prompt({1, 2, 3}),
          .seed = 77,
          .sampling = {.max_tokens = max_tokens},
          .trainable = false,
          .text = true};
}

std::vector<TokenEvent> Sample(NativeEngine* engine, const Request& request) {
  std::vector<TokenEvent> events;
  const absl::Status added = engine->AddRequest(request);
  EXPECT_TRUE(added.ok()) << added;
  while (!engine->idle()) {
    const absl::StatusOr<StepEvents> step = engine->Step();
    EXPECT_TRUE(step.ok() && step->failures.empty());
    for (const TokenEvent& event : step->tokens) events.push_back(event);
  }
  return events;
}

std::string Text(const std::vector<TokenEvent>& events) {
  std::string text;
  for (const TokenEvent& event : events) text += event.details->text;
  return text;
}

class EngineDetailsTest : public testing::Test {
 protected:
  EngineDetailsTest() { engine_->UseTokenizer(tokenizer_.get()); }
  std::unique_ptr<Tokenizer> tokenizer_ = ByteTokenizer();
  std::unique_ptr<NativeEngine> engine_ = TinyEngine(1, {.slots = 4});
};

TEST_F(EngineDetailsTest, TextOfAllTokensIsThatOfTheWholeAnswer) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Request request = AskFor(1, 100);
    request.seed = seed;
    const std::vector<TokenEvent> events = Sample(engine_.get(), request);
    EXPECT_EQ(Text(events), tokenizer_->Decode(TokensOf(events), /*skip_special=*/true)) << seed;

    std::string so_far;
    for (const TokenEvent& event : events) {
      so_far += event.details->text;
      EXPECT_TRUE(IsUtf8(so_far)) << "the text ends inside a character";
    }
  }
}

TEST_F(EngineDetailsTest, AStopTextCutsTheTextAndTheTokensStandUpToTheOneThatCompletedIt) {
  const std::vector<TokenEvent> whole = Sample(engine_.get(), AskFor(1, 120));
  const std::string text = Text(whole);
  const std::vector<int32_t> all = TokensOf(whole);

  // Try many runs of one to four letters of the answer as the stop text. They span tokens and end
  // the answer early.
  int tried = 0;
  for (size_t at = 0; at + 4 < text.size(); at += 5) {
    for (size_t length = 1; length <= 4; ++length) {
      const std::string stop = text.substr(at, length);
      if (stop.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDE .") != std::string::npos)
        continue;
      ++tried;
      Request request = AskFor(2, 120);
      request.sampling.stop = {"never in it", stop};

      const std::vector<TokenEvent> events = Sample(engine_.get(), request);
      EXPECT_EQ(Text(events), text.substr(0, text.find(stop))) << "stop " << stop;
      EXPECT_EQ(events.back().finish, FinishReason::kStop);
      EXPECT_EQ(events.back().details->stop, 1);

      // Nothing was drawn after the stop text: without the last token, the text lacks it.
      std::vector<int32_t> tokens = TokensOf(events);
      EXPECT_THAT(tokenizer_->Decode(tokens, true), HasSubstr(stop));

      tokens.pop_back();
      EXPECT_EQ(tokenizer_->Decode(tokens, true).find(stop), std::string::npos);
      EXPECT_EQ(tokens, std::vector<int32_t>(all.begin(),
                                             all.begin() + static_cast<ptrdiff_t>(tokens.size())));
    }
  }

  EXPECT_GT(tried, 10);
}

TEST_F(EngineDetailsTest, AResumedAnswerSeesAStopTextThatBeganInItsPrefix) {
  const std::string text = Text(Sample(engine_.get(), AskFor(1, 120)));

  // The stop text is the first pair of lowercase letters after position 20.
  size_t at = 20;
  while (at + 2 < text.size() &&
         !(absl::ascii_islower(text[at]) && absl::ascii_islower(text[at + 1])))
    ++at;

  Request request = AskFor(2, 120);
  request.sampling.stop = {text.substr(at, 2)};
  request.sampled = TokensOf(Sample(engine_.get(), request));
  ASSERT_GT(request.sampled.size(), 2u);
  request.sampled.pop_back();

  const std::vector<TokenEvent> rest = Sample(engine_.get(), request);
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].finish, FinishReason::kStop);
  EXPECT_EQ(Text(rest), "");

  request.sampled.push_back(rest[0].token);
  EXPECT_THAT(engine_->AddRequest(request).message(), HasSubstr("holds the stop text"));
}

TEST_F(EngineDetailsTest, AStopTokenGivesNoTextAndReleasesWhatWasHeld) {
  const std::vector<TokenEvent> whole = Sample(engine_.get(), AskFor(1, 60));
  Request request = AskFor(2, 60);
  request.sampling.stop_ids = {whole[30].token};
  const std::vector<TokenEvent> events = Sample(engine_.get(), request);
  std::vector<int32_t> before = TokensOf(events);
  before.pop_back();

  EXPECT_EQ(events.back().finish, FinishReason::kStop);
  EXPECT_EQ(events.back().details->stop, -1);
  EXPECT_EQ(Text(events), tokenizer_->Decode(before, true));
}

TEST_F(EngineDetailsTest, TextWithoutATokenizerIsRefused) {
  auto engine = TinyEngine(1);
  EXPECT_EQ(engine->AddRequest(AskFor(1, 5)).code(), absl::StatusCode::kFailedPrecondition);

  Request stops = AskFor(1, 5);
  stops.text = false;
  stops.sampling.stop = {"x"};
  EXPECT_EQ(engine->AddRequest(stops).code(), absl::StatusCode::kFailedPrecondition);

  stops.sampling.stop.clear();
  EXPECT_TRUE(engine->AddRequest(stops).ok());
}

TEST_F(EngineDetailsTest, TheKeptSetHoldsTheTokenAndItsProbabilitiesSumToOne) {
  Request request = AskFor(1, 60);
  request.text = false;
  request.kept_sets = true;
  request.sampling.top_p = 0.7;
  request.top_logprobs = 20;
  size_t cut = 0;
  for (const TokenEvent& event : Sample(engine_.get(), request)) {
    const TokenDetails& details = *event.details;
    EXPECT_TRUE(std::is_sorted(details.kept.begin(), details.kept.end()));

    if (details.kept.empty()) continue;
    ++cut;
    EXPECT_TRUE(std::find(details.kept.begin(), details.kept.end(), event.token) !=
                details.kept.end());

    double sum = 0;
    for (const TokenLogprob& top : details.top) {
      sum += std::exp(static_cast<double>(top.logprob));
      if (top.token == event.token) {
        EXPECT_EQ(top.logprob, event.logprob);
      }
    }
    if (details.kept.size() <= 20) {
      EXPECT_THAT(details.top, SizeIs(details.kept.size()));
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }

  EXPECT_GT(cut, 50u);
}

TEST_F(EngineDetailsTest, RawLogprobsAreBeforeTemperatureAndCuts) {
  Request plain = AskFor(1, 40);
  plain.text = false;
  const std::vector<TokenEvent> sampled = Sample(engine_.get(), plain);
  EXPECT_EQ(sampled[0].details, nullptr) << "nothing was asked for";

  Request raw = plain;
  raw.sampling.temperature = 0;
  raw.raw_logprobs = true;
  raw.top_logprobs = 3;
  for (const TokenEvent& event : Sample(engine_.get(), raw)) {
    EXPECT_EQ(event.logprob, 0);
    ASSERT_THAT(event.details->top, SizeIs(3));
    EXPECT_EQ(event.details->top[0].token, event.token);
    EXPECT_EQ(event.details->top[0].logprob, event.details->raw_logprob);
    EXPECT_LT(event.details->raw_logprob, 0);
    EXPECT_GE(event.details->top[0].logprob, event.details->top[1].logprob);
  }

  raw.top_logprobs = 21;
  EXPECT_THAT(engine_->AddRequest(raw).message(), HasSubstr("top_logprobs is 21; the limit is 20"));
}

TEST_F(EngineDetailsTest, MinTokensKeepsStopTokensAway) {
  auto engine = TinyEngine(1, {.slots = 2}, {3, 4, 5});
  Request request = AskFor(1, 60);
  request.text = false;
  request.kept_sets = true;
  request.sampling.min_tokens = 30;

  const std::vector<TokenEvent> events = Sample(engine.get(), request);
  ASSERT_GE(events.size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_TRUE(events[i].token < 3 || events[i].token > 5);
    EXPECT_THAT(events[i].details->kept, SizeIs(37));  // All 40 but the three stop tokens.
  }
}

// Draws 100 tokens with the weights of `seed`. `tokens` gets the prompt and these.
std::vector<TokenEvent> Drawn(uint64_t seed, float temperature, std::vector<int32_t>* tokens) {
  Request request = AskFor(1, 100);
  request.text = false;
  request.sampling.temperature = temperature;
  *tokens = *request.prompt;
  const std::vector<TokenEvent> events = Sample(TinyEngine(seed).get(), request);
  for (const TokenEvent& event : events) tokens->push_back(event.token);
  return events;
}

TEST_F(EngineDetailsTest, TokensThatAreGivenScoreInTheBitsOfTheirDraw) {
  for (const float temperature : {1.0f, 0.7f}) {
    std::vector<int32_t> tokens;
    const std::vector<TokenEvent> drawn = Drawn(1, temperature, &tokens);
    ASSERT_TRUE(engine_->AddRequest(AskFor(9, 30)).ok());  // Another request runs beside it.

    Request scoring = MakeScoringRequest(tokens, temperature);
    scoring.id = 2;
    std::vector<TokenEvent> scored = Sample(engine_.get(), scoring);
    std::erase_if(scored, [](const TokenEvent& event) { return event.request != 2; });
    ASSERT_THAT(scored, SizeIs(1)) << "nothing is drawn";
    EXPECT_EQ(scored[0].token, tokens.back());
    EXPECT_EQ(scored[0].finish, FinishReason::kLength);

    const std::vector<float> scores = ReadScores(scored[0]);
    ASSERT_THAT(scores, SizeIs(tokens.size() - 1));
    // Score i is that of token i + 1, and the prompt has three tokens.
    for (size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(scores[2 + i], drawn[i].logprob) << i;
  }
}

TEST_F(EngineDetailsTest, ScoresAreOfOneVersionThoughWeightsSwitchedMeanwhile) {
  std::vector<int32_t> tokens;
  const std::vector<TokenEvent> drawn = Drawn(2, 1, &tokens);
  Request scoring = MakeScoringRequest(tokens, 1);
  ASSERT_TRUE(engine_->AddRequest(scoring).ok());
  ASSERT_TRUE(engine_->Step().ok());  // Computes a part of it with the old weights.
  ASSERT_TRUE(engine_->ActivateWeights(Stage(2, {1, 1}), KvPolicy::kKeep)->accepted);

  std::vector<TokenEvent> scored;
  while (!engine_->idle()) {
    const absl::StatusOr<StepEvents> step = engine_->Step();
    scored.insert(scored.end(), step->tokens.begin(), step->tokens.end());
  }

  ASSERT_THAT(scored, SizeIs(1));
  EXPECT_EQ(scored[0].version, (PolicyVersion{1, 1}));

  const std::vector<float> scores = ReadScores(scored[0]);
  for (size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(scores[2 + i], drawn[i].logprob) << i;
}

TEST_F(EngineDetailsTest, AContextThatIsFullCanBeScoredAndATokenOutsideTheVocabularyCannot) {
  EXPECT_THAT(
      ReadScores(Sample(engine_.get(), MakeScoringRequest(std::vector<int32_t>(256, 3), 1))[0]),
      SizeIs(255));
  EXPECT_THAT(ReadScores(Sample(engine_.get(), MakeScoringRequest({3, 4}, 1))[0]), SizeIs(1));
  EXPECT_THAT(engine_->AddRequest(MakeScoringRequest(std::vector<int32_t>(257, 3), 1)).message(),
              HasSubstr("exceed the context of 256"));
  EXPECT_THAT(engine_->AddRequest(MakeScoringRequest({3, 40}, 1)).message(),
              HasSubstr("token 40 is given"));
}

ModelConfig TinyExperts() {
  ModelConfig config = TinyConfig();
  config.architecture = "Qwen3MoeForCausalLM";
  config.num_experts = 6, config.experts_per_token = 2, config.expert_size = 16;
  return config;
}

std::unique_ptr<NativeEngine> ExpertsEngine(int threads) {
  return *NativeEngine::Create(TinyExperts(), *InitWeights(TinyExperts(), 3), {1, 0}, {},
                               {.slots = 4, .threads = threads});
}

TEST(EngineRoutingTest, EachTokenComesWithTheExpertsOfTheRowItWasDrawnFrom) {
  const Request request = {.id = 1,
                           .prompt = Prompt({1, 2, 3}),
                           .seed = 77,
                           .sampling = {.max_tokens = 20},
                           .routing = true};
  const auto engine = ExpertsEngine(1), other = ExpertsEngine(2);
  EXPECT_TRUE(engine->caps().routing);

  const std::vector<TokenEvent> events = Sample(engine.get(), request);
  ASSERT_THAT(events, SizeIs(20));
  std::set<std::vector<uint16_t>> seen;
  for (const TokenEvent& event : events) {
    const std::vector<uint16_t>& routing = event.details->routing;
    ASSERT_THAT(routing, SizeIs(2 * 2));  // Two layers, two experts per token.
    EXPECT_TRUE(routing[0] < routing[1] && routing[1] < 6 && routing[2] < routing[3] &&
                routing[3] < 6);
    seen.insert(routing);
  }

  EXPECT_GT(seen.size(), 1u);

  // Resumed on another engine, beside another request, it draws the same tokens by the same
  // experts.
  Request rest = request;
  for (size_t i = 0; i < 9; ++i) rest.sampled.push_back(events[i].token);
  ASSERT_TRUE(
      other
          ->AddRequest(
              {.id = 2, .prompt = Prompt({5, 6}), .seed = 3, .sampling = {.max_tokens = 30}})
          .ok());
  std::vector<TokenEvent> again = Sample(other.get(), rest);
  std::erase_if(again, [](const TokenEvent& event) { return event.request != 1; });

  ASSERT_THAT(again, SizeIs(11));
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].token, events[9 + i].token);
    EXPECT_EQ(again[i].details->routing, events[9 + i].details->routing);
  }
  EXPECT_FALSE(TinyEngine(1, {.slots = 4})->caps().routing);
}

}  // namespace
}  // namespace sluice
