// Several versions in one engine: an answer ends with the version that gave its first token. It is
// compared with that of an engine which never got another version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/splitmix.h"
#include "common/weights/weight_delta.h"
#include "services/rollout/core/engine/native/verify_rotation.h"
#include "tests/common/weights/make_delta.h"
#include "tests/services/rollout/tiny_model.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kContext = 130;

TensorSet Change(const TensorSet& from, SplitMix64* random, bool all) {
  TensorSet to = from;
  for (size_t i = 0; i < to.size(); ++i) {
    const absl::Span<uint32_t> elements = to.as<uint32_t>(i);
    // Bits of the mantissa: distributions differ from the first token on.
    for (uint32_t& x : elements) {
      if (all || random->Below(60) == 0) x ^= static_cast<uint32_t>(1 + random->Below(1 << 22));
    }
  }
  return to;
}

StagedWeights StageWholeSet(const TensorSet& to, PolicyVersion version) {
  return {.version = version,
          .state = FingerprintOf(to),
          .tensors = std::make_shared<const TensorSet>(to)};
}

StagedWeights StageWay(const TensorSet& from, const TensorSet& to, PolicyVersion version) {
  return {.version = version,
          .state = FingerprintOf(to),
          .delta = std::make_shared<const WeightDelta>(MakeDelta(from, to))};
}

bool Accepts(NativeEngine* engine, const StagedWeights& staged) {
  const absl::StatusOr<Activation> activation = engine->ActivateWeights(staged, KvPolicy::kKeep);
  EXPECT_TRUE(activation.ok()) << activation.status();
  return activation.ok() && activation->accepted;
}

Request TrainableAnswer(uint64_t id, uint32_t max_tokens) {
  return {.id = id,
          .prompt = Prompt({3, static_cast<int32_t>(id % 40), 5}),
          .seed = id,
          .sampling = {.max_tokens = max_tokens}};
}

std::vector<TokenEvent> StepEventsOf(NativeEngine* engine) {
  absl::StatusOr<StepEvents> step = engine->Step();
  EXPECT_TRUE(step.ok() && step->failures.empty());
  return step.ok() ? step->tokens : std::vector<TokenEvent>();
}

// What a request gets in an engine that has it alone.
std::vector<TokenEvent> AnswerAlone(NativeEngine* engine, const Request& request) {
  std::vector<TokenEvent> answer;
  EXPECT_TRUE(engine->AddRequest(request).ok());
  while (!engine->idle() && !testing::Test::HasFailure()) {
    for (TokenEvent& event : StepEventsOf(engine)) answer.push_back(std::move(event));
  }
  return answer;
}

struct VersionCounts {
  int answers = 0, over_a_switch = 0, waits = 0, preempted = 0, resumed_on_older = 0, forked = 0;
};

// One engine, and beside it the slow model: the weights of each version, and which of them the
// answers that have not ended began with.
class VersionedRun {
 public:
  VersionedRun(uint64_t seed, VersionCounts* counts)
      : random_(seed), counts_(counts), most_(2 + static_cast<uint32_t>(random_.Below(3))) {
    sets_.push_back(TinyWeights(seed));
    NameNewest({1, 0});
    const uint32_t slots = 2 + static_cast<uint32_t>(random_.Below(6));
    engine_ =
        TinyEngine(seed, {.slots = slots,
                          .adapt = random_.Below(3) == 0,
                          .blocks = 5 + static_cast<uint32_t>(random_.Below(9)),
                          .max_context = kContext,
                          .max_batch_tokens = slots + static_cast<uint32_t>(random_.Below(70)),
                          .aging_steps = 20,
                          .threads = 1 + static_cast<int>(random_.Below(2)),
                          .max_versions = most_});
  }

  void Play(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      if (random_.Below(5) == 0) AddGroup();
      if (random_.Below(12) == 0) Activate();
      if (random_.Below(25) == 0) AbortOne();
      if (random_.Below(25) == 0) ResumeOne();
      Step();
    }
    while (!engine_->idle() && !testing::Test::HasFailure()) Step();
    ASSERT_EQ(engine_->Stats().versions, 1u) << "memory falls back with the last answer";
    ASSERT_EQ(engine_->scheduler().blocks().active(), 0u);
    counts_->preempted += static_cast<int>(engine_->Stats().preemptions);
    counts_->forked += static_cast<int>(engine_->Stats().prompt_tokens_forked);
    for (const auto& [id, answer] : answers_) ASSERT_NO_FATAL_FAILURE(CheckAnswer(answer));
  }

 private:
  struct Answer {
    Request request;
    std::vector<TokenEvent> events;
    int set = -1;  // The weights that it began with; -1: no token yet.
    bool ended = false;
  };

  // Sets of weights that must be there.
  std::set<int> Held() const {
    std::set<int> held = {set_of_.at(engine_->version())};
    for (const auto& [id, answer] : answers_) {
      if (!answer.ended && answer.set >= 0) held.insert(answer.set);
    }
    return held;
  }

  void AddGroup() {
    constexpr size_t kLengths[] = {1, 2, 31, 32, 33, 64, 65};
    std::vector<int32_t> tokens(kLengths[random_.Below(7)]);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 39);
    const auto prompt = Prompt(std::move(tokens));
    const uint64_t group = next_id_;
    const uint64_t members = 1 + random_.Below(4);
    const bool trainable = random_.Below(5) > 0;
    for (uint64_t m = 0; m < members; ++m) {
      Request request{.id = next_id_++,
                      .group = group,
                      .prompt = prompt,
                      .seed = group,
                      .member = static_cast<uint32_t>(m),
                      .sampling = {.max_tokens = 1 + static_cast<uint32_t>(random_.Below(50))},
                      .trainable = trainable};
      Add({.request = request});
    }
  }

  void Add(Answer answer) {
    const uint64_t id = answer.request.id;
    ASSERT_TRUE(engine_->AddRequest(answer.request).ok());
    answers_.emplace(id, std::move(answer));
  }

  Answer* AnyRunning() {
    std::vector<Answer*> running;
    for (auto& [id, answer] : answers_) {
      if (!answer.ended && answer.request.trainable && !answer.events.empty())
        running.push_back(&answer);
    }
    return running.empty() ? nullptr : running[random_.Below(running.size())];
  }

  Answer* AbortOne() {
    Answer* const answer = AnyRunning();
    if (answer == nullptr) return nullptr;
    engine_->Abort(answer->request.id, AbortReason::kCancelled);
    answer->ended = true;
    return answer;
  }

  // An answer is taken away and comes back as that of an earlier attempt.
  void ResumeOne() {
    const Answer* const answer = AbortOne();
    if (answer == nullptr) return;
    Answer again{.request = answer->request};
    again.request.id = next_id_++;
    again.request.group = 0;
    again.request.order = RequestClass::kResumed;
    for (const TokenEvent& event : answer->events) again.request.sampled.push_back(event.token);
    again.request.sampled_under = answer->events.back().version;
    // A version that got another number is not known by the old one any more.
    if (Held().contains(answer->set) && name_of_.at(answer->set) == again.request.sampled_under) {
      again.set = answer->set;
      counts_->resumed_on_older += answer->set != set_of_.at(engine_->version());
    }
    Add(std::move(again));
  }

  void Activate() {
    const PolicyVersion version{1, ++number_};
    const TensorSet& now = sets_.back();
    const uint64_t way = random_.Below(5);
    if (way == 0) {  // The weights stay, and the version is another.
      ASSERT_TRUE(Accepts(engine_.get(), {.version = version, .state = FingerprintOf(now)}));
      return NameNewest(version);
    }

    TensorSet next = Change(now, &random_, /*all=*/way == 1);
    StagedWeights staged = way == 2 ? StageWholeSet(next, version) : StageWay(now, next, version);
    const bool wrong = way == 3 && random_.Below(2) == 0;
    if (wrong) staged.state.f[0] ^= 1;
    const bool room = Held().size() < most_;
    ASSERT_EQ(engine_->Stats().room_for_version, room);
    if (room && random_.Below(2) == 0) engine_->PrepareWeights(&staged);
    ASSERT_EQ(Accepts(engine_.get(), staged), room && !wrong);
    counts_->waits += !room;
    if (!room || wrong) return;
    sets_.push_back(std::move(next));
    NameNewest(version);
  }

  void NameNewest(PolicyVersion version) {
    const int set = static_cast<int>(sets_.size()) - 1;
    set_of_[version] = set;
    name_of_[set] = version;
  }

  void Step() {
    const PolicyVersion active = engine_->version();
    for (TokenEvent& event : StepEventsOf(engine_.get())) {
      Answer& answer = answers_.at(event.request);
      const int set = set_of_.at(event.version);
      if (!answer.request.trainable) {
        ASSERT_EQ(event.version, active) << "other requests go on with the new version";
      } else if (answer.set < 0) {
        ASSERT_EQ(event.version, active) << "an answer begins with the newest version";
        answer.set = set;
      }
      ASSERT_TRUE(!answer.request.trainable || answer.set == set);
      counts_->over_a_switch += answer.request.trainable && event.version != active;
      answer.ended = event.finish != FinishReason::kNone;
      answer.events.push_back(std::move(event));
    }
    ASSERT_EQ(engine_->Stats().versions, Held().size());
    ASSERT_LE(engine_->Stats().versions, most_);
    ASSERT_EQ(engine_->weights().Unpack()->buffer(), sets_.back().buffer());
  }

  void CheckAnswer(const Answer& answer) {
    if (answer.set < 0 || answer.events.empty()) return;
    auto& alone = alone_[answer.set];
    if (alone == nullptr) {
      alone = *NativeEngine::Create(TinyConfig(), sets_[static_cast<size_t>(answer.set)], {1, 0},
                                    {}, {.slots = 1, .max_context = kContext});
    }
    const std::vector<TokenEvent> expected = AnswerAlone(alone.get(), answer.request);
    ASSERT_LE(answer.events.size(), expected.size());
    for (size_t i = 0; i < answer.events.size(); ++i) {
      ASSERT_EQ(answer.events[i].token, expected[i].token) << answer.request.id;
      ASSERT_EQ(answer.events[i].logprob, expected[i].logprob) << answer.request.id;
      ASSERT_EQ(answer.events[i].position, expected[i].position);
    }
    ++counts_->answers;
  }

  SplitMix64 random_;
  VersionCounts* const counts_;
  const uint32_t most_;
  std::unique_ptr<NativeEngine> engine_;
  std::vector<TensorSet> sets_;           // Of weights; the last is the active one.
  std::map<PolicyVersion, int> set_of_;   // Versions without a change have the same.
  std::map<int, PolicyVersion> name_of_;  // The last version of a set.
  std::map<uint64_t, Answer> answers_;    // By request.
  std::map<int, std::unique_ptr<NativeEngine>> alone_;
  uint64_t next_id_ = 1;
  int64_t number_ = 0;
};

TEST(VersionsTest, EachAnswerIsInBitsThatOfAnEngineWhichNeverGotAnotherVersion) {
  VersionCounts counts;
  for (uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    VersionedRun(seed, &counts).Play(150);
  }
  EXPECT_GT(counts.answers, 1000);
  EXPECT_GT(counts.over_a_switch, 1000) << "tokens of an older version";
  EXPECT_GT(counts.waits, 50);
  EXPECT_GT(counts.preempted, 30);
  EXPECT_GT(counts.forked, 1000);
  EXPECT_GT(counts.resumed_on_older, 5);
}

TEST(VersionsTest, EachStepGivesATokenToTheAnswersOfEveryVersion) {
  auto engine = TinyEngine(1, {.slots = 12, .max_versions = 3});
  for (uint64_t id = 1; id <= 12; ++id) {
    ASSERT_TRUE(engine->AddRequest(TrainableAnswer(id, 30)).ok());
    if (id % 4 != 0) continue;
    ASSERT_EQ(StepEventsOf(engine.get()).size(), id);
    if (id < 12) {
      ASSERT_TRUE(Accepts(engine.get(), Stage(id, {1, static_cast<int64_t>(id)})));
    }
  }
  EXPECT_EQ(engine->Stats().versions, 3u);
  EXPECT_FALSE(engine->Stats().room_for_version);
  EXPECT_EQ(engine->Stats().oldest_version, (PolicyVersion{1, 0}));
  EXPECT_EQ(engine->Stats().oldest_answers, 4u);

  for (int step = 0; step < 20; ++step) {
    std::map<PolicyVersion, int> tokens;
    for (const TokenEvent& event : StepEventsOf(engine.get())) ++tokens[event.version];
    EXPECT_EQ(tokens, (std::map<PolicyVersion, int>{{{1, 0}, 4}, {{1, 4}, 4}, {{1, 8}, 4}}));
  }
}

TEST(VersionsTest, TheExpertsOfATokenAreThoseOfItsVersion) {
  ModelConfig config = TinyConfig();
  config.num_experts = 4, config.experts_per_token = 2, config.expert_size = 16;
  const auto make = [&](uint64_t seed) {
    return *NativeEngine::Create(config, *InitWeights(config, seed), {1, 0}, {},
                                 {.slots = 4, .max_versions = 2});
  };
  const auto ask = [](uint64_t id) {
    Request request = TrainableAnswer(id, 12);
    request.routing = true;
    return request;
  };

  auto engine = make(1);
  std::map<uint64_t, std::vector<TokenEvent>> events;
  ASSERT_TRUE(engine->AddRequest(ask(1)).ok());
  for (int step = 0; step < 13; ++step) {
    if (step == 3) {
      ASSERT_TRUE(Accepts(engine.get(), StageWholeSet(*InitWeights(config, 2), {1, 1})));
      ASSERT_TRUE(engine->AddRequest(ask(2)).ok());
    }
    for (TokenEvent& event : StepEventsOf(engine.get()))
      events[event.request].push_back(std::move(event));
  }
  for (const uint64_t id : {1, 2}) {
    const std::vector<TokenEvent> alone = AnswerAlone(make(id).get(), ask(id));
    ASSERT_GE(events[id].size(), 10u);
    for (size_t i = 0; i < events[id].size(); ++i)
      EXPECT_EQ(events[id][i].details->routing, alone[i].details->routing) << id << ", " << i;
  }
}

TEST(VersionsTest, ABitThatFlipsInAnOlderVersionIsFoundAndAllAnswersGoOnWithAWholeOne) {
  for (const bool asked : {false, true}) {
    SplitMix64 random(4);
    TensorSet now = TinyWeights(1);
    auto engine = TinyEngine(1, {.slots = 40, .max_versions = 16, .verify_in_turns = true});
    for (int64_t update = 1; update <= 2; ++update) {
      ASSERT_TRUE(engine->AddRequest(TrainableAnswer(static_cast<uint64_t>(update), 200)).ok());
      StepEventsOf(engine.get());
      const TensorSet next = Change(now, &random, false);
      ASSERT_TRUE(Accepts(engine.get(), StageWay(now, next, {1, update})));
      now = next;
    }
    ASSERT_EQ(engine->Stats().versions, 3u);
    engine->FlipBitOfOldest();

    std::optional<WeightDamage> damage;
    if (asked) {
      const WeightsCheck check = engine->CheckWeights(&damage);
      EXPECT_EQ(check.version, (PolicyVersion{1, 0}));
      EXPECT_EQ(check.expected, FingerprintOf(TinyWeights(1)));
      EXPECT_THAT(check.tensors, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
    }
    for (int64_t update = 3; update < 3 + VerifyRotation::kGroups && !damage.has_value();
         ++update) {
      StepEventsOf(engine.get());
      const TensorSet next = Change(now, &random, false);
      const auto activation =
          engine->ActivateWeights(StageWay(now, next, {1, update}), KvPolicy::kKeep);
      damage = activation->damage;
      now = next;
    }
    ASSERT_TRUE(damage.has_value());
    EXPECT_THAT(damage->cause, HasSubstr("not those of version 1:0"));
    EXPECT_THAT(damage->tensors, ElementsAre("model.layers.0.self_attn.q_proj.weight"));
    EXPECT_TRUE(engine->damaged());
    EXPECT_EQ(engine->Stats().versions, 1u) << "the whole version that comes needs their memory";

    ASSERT_TRUE(Accepts(engine.get(), Stage(9, {1, 99})));
    EXPECT_FALSE(engine->damaged());
    EXPECT_EQ(engine->Stats().versions, 1u);
    const std::vector<TokenEvent> tokens = StepEventsOf(engine.get());
    ASSERT_EQ(tokens.size(), 2u);
    for (const TokenEvent& token : tokens) EXPECT_EQ(token.version, (PolicyVersion{1, 99}));
  }
}

TEST(VersionsTest, RowsThatAreNotFiniteNameTheVersionThatGaveThem) {
  TensorSet bad = TinyWeights(1);
  for (size_t i = 0; i < bad.size(); ++i) {
    if (bad.spec(i).name == "model.norm.weight") bad.as<float>(i)[0] = NAN;
  }
  auto engine = TinyEngine(1, {.slots = 4, .max_versions = 2});
  ASSERT_TRUE(engine->AddRequest(TrainableAnswer(1, 20)).ok());
  StepEventsOf(engine.get());
  ASSERT_TRUE(Accepts(engine.get(), StageWholeSet(bad, {1, 1})));
  ASSERT_TRUE(engine->AddRequest(TrainableAnswer(2, 20)).ok());

  const absl::StatusOr<StepEvents> step = engine->Step();
  ASSERT_TRUE(step.ok());
  ASSERT_EQ(step->failures.size(), 1u);
  EXPECT_EQ(step->failures[0].request, 2u);
  EXPECT_EQ(step->failures[0].version, (PolicyVersion{1, 1}));
  ASSERT_EQ(step->tokens.size(), 1u);
  EXPECT_EQ(step->tokens[0].version, (PolicyVersion{1, 0}));
}

TEST(VersionsTest, MoreVersionsThanTheMachineHasMemoryForAreRefusedAtTheStart) {
  const auto engine = NativeEngine::Create(TinyConfig(), TinyWeights(1), {1, 0}, {},
                                           {.slots = 2, .max_versions = 4'000'000'000});
  EXPECT_TRUE(absl::IsResourceExhausted(engine.status()));
  EXPECT_THAT(engine.status().message(), HasSubstr("lower weights.resident_versions"));
}

}  // namespace
}  // namespace sluice
