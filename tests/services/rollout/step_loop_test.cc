#include "services/rollout/core/step_loop/step_loop.h"

#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/weights/make_delta.h"
#include "tests/services/rollout/tiny_model.h"

namespace sluice {
namespace {

// Records what the loop reports.
class Listener : public StepLoop::Sink {
 public:
  void OnStep(StepEvents events) override {
    MutexLock lock(&mu_);
    for (const TokenEvent& event : events.tokens) {
      tokens_[event.request].push_back(event);
      ended_ += event.finish != FinishReason::kNone;
    }
    failures_.insert(failures_.end(), events.failures.begin(), events.failures.end());
    changed_.NotifyAll();
  }

  void OnActivation(const StagedWeights&, const Activation& activation) override {
    MutexLock lock(&mu_);
    activations_.push_back(activation);
    changed_.NotifyAll();
  }

  void OnDamage(const WeightDamage& damage) override {
    MutexLock lock(&mu_);
    damages_.push_back(damage);
    changed_.NotifyAll();
  }

  void OnRoom() override {
    MutexLock lock(&mu_);
    ++rooms_;
    changed_.NotifyAll();
  }

  void OnBroken(absl::Status why) override {
    MutexLock lock(&mu_);
    broken_ = why;
    changed_.NotifyAll();
  }

  void AwaitEnded(int count) {
    MutexLock lock(&mu_);
    while (ended_ < count) changed_.Wait(&mu_);
  }

  void AwaitTokens(uint64_t request, size_t count) {
    MutexLock lock(&mu_);
    while (tokens_[request].size() < count) changed_.Wait(&mu_);
  }

  void AwaitActivations(size_t count) {
    MutexLock lock(&mu_);
    while (activations_.size() < count) changed_.Wait(&mu_);
  }

  void AwaitDamage() {
    MutexLock lock(&mu_);
    while (damages_.empty()) changed_.Wait(&mu_);
  }

  void AwaitRooms(int count) {
    MutexLock lock(&mu_);
    while (rooms_ < count) changed_.Wait(&mu_);
  }

  void AwaitFailures(size_t count) {
    MutexLock lock(&mu_);
    while (failures_.size() < count) changed_.Wait(&mu_);
  }

  void AwaitBroken() {
    MutexLock lock(&mu_);
    while (broken_.ok()) changed_.Wait(&mu_);
  }

  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, std::vector<TokenEvent>> tokens_;
  std::vector<RequestFailure> failures_;
  std::vector<Activation> activations_;
  std::vector<WeightDamage> damages_;
  absl::Status broken_;
  int ended_ = 0, rooms_ = 0;
};

Request Ask(uint64_t id, uint32_t max_tokens) {
  return {
      .id = id, .prompt = Prompt({1, 2, 3}), .seed = id, .sampling = {.max_tokens = max_tokens}};
}

TEST(StepLoopTest, RequestsOfManyThreadsAreAllAnswered) {
  auto engine = TinyEngine(1);
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);

  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 25; ++i) loop.Add({Ask(1 + t * 25 + i, 5)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  listener.AwaitEnded(100);
  loop.Stop();

  EXPECT_EQ(listener.tokens_.size(), 100u);
  EXPECT_EQ(loop.stats().tokens_generated, 500u);
}

TEST(StepLoopTest, WeightsSwitchWhileAnAnswerRuns) {
  auto engine = TinyEngine(1);
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);

  loop.Add({Ask(1, 250)});
  listener.AwaitTokens(1, 1);
  loop.Activate(Stage(2, {1, 1}));
  listener.AwaitActivations(1);
  loop.Add({Ask(2, 3)});
  listener.AwaitEnded(2);
  loop.Stop();

  EXPECT_TRUE(listener.activations_[0].accepted);
  EXPECT_EQ(listener.tokens_[1].front().version, (PolicyVersion{1, 0}));
  for (const TokenEvent& event : listener.tokens_[2])
    EXPECT_EQ(event.version, (PolicyVersion{1, 1}));
}

// Pauses the loop after each step, unless it is told not to.
class Pauser : public Listener {
 public:
  void OnStep(StepEvents events) override {
    if (pauses_) loop_->SetPaused(true);
    Listener::OnStep(std::move(events));
  }

  StepLoop* loop_ = nullptr;
  std::atomic<bool> pauses_ = true;
};

TEST(StepLoopTest, ThereIsRoomForAVersionWhenTheAnswersOfTheOldestHaveEnded) {
  auto engine = TinyEngine(1, {.slots = 8, .max_versions = 2});
  Pauser pauser;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &pauser);
  pauser.loop_ = &loop;

  // Starts an answer, and replaces its version.
  const auto replace_under = [&](int64_t number) {
    EXPECT_TRUE(loop.stats().room_for_version);
    EXPECT_EQ(loop.stats().versions, 1u);
    const auto id = static_cast<uint64_t>(number);
    loop.Add({Ask(id, 100)});
    loop.SetPaused(false);
    pauser.AwaitTokens(id, 1);
    loop.Activate(Stage(id + 1, {1, number}));
    pauser.AwaitActivations(id);
    EXPECT_EQ(loop.stats().versions, 2u);
    EXPECT_EQ(loop.stats().oldest_answers, 1u);
    EXPECT_FALSE(loop.stats().room_for_version);
  };

  replace_under(1);
  loop.Abort(1, AbortReason::kCancelled);
  pauser.AwaitRooms(1);

  replace_under(2);
  pauser.pauses_ = false;
  loop.SetPaused(false);
  pauser.AwaitRooms(2);
  pauser.AwaitEnded(1);
  {
    MutexLock lock(&pauser.mu_);
    for (const TokenEvent& token : pauser.tokens_[2])
      EXPECT_EQ(token.version, (PolicyVersion{1, 1}));
  }

  pauser.pauses_ = true;
  replace_under(3);
  loop.Stop();
  MutexLock lock(&pauser.mu_);
  EXPECT_EQ(pauser.rooms_, 2) << "once each time, and not for a loop that has ended";
}

// An activation reads an eighth of the weights again, in which the bit is not.
TEST(StepLoopTest, AnIdleEngineReadsTheRestOfItsWeightsAndStandsIfTheyAreDamaged) {
  auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = true});
  TensorSet next = TinyWeights(1);
  next.as<uint32_t>(0)[5] ^= 1;
  engine->FlipBit();
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);

  loop.Activate({.version = {1, 1},
                 .state = FingerprintOf(next),
                 .delta = std::make_shared<const WeightDelta>(MakeDelta(TinyWeights(1), next))});
  listener.AwaitActivations(1);
  listener.AwaitDamage();
  loop.Add({Ask(1, 5)});
  loop.Activate(Stage(2, {1, 2}));
  listener.AwaitEnded(1);
  loop.Stop();

  EXPECT_TRUE(listener.activations_[0].accepted);
  EXPECT_EQ(listener.damages_[0].tensors,
            std::vector<std::string>{"model.layers.0.self_attn.q_proj.weight"});
  for (const TokenEvent& event : listener.tokens_[1])
    EXPECT_EQ(event.version, (PolicyVersion{1, 2})) << "it stood until whole weights came";
}

TEST(StepLoopTest, WeightsAreReadAgainWhileAnAnswerRunsAndWhenNothingDoes) {
  auto engine = TinyEngine(1);
  const Fingerprint held = engine->fingerprint();
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);
  const auto check = [&] {
    std::promise<absl::StatusOr<WeightsCheck>> found;
    loop.CheckWeights(
        [&](absl::StatusOr<WeightsCheck> check) { found.set_value(std::move(check)); });
    return found.get_future().get();
  };

  for (const bool sampling : {false, true}) {
    if (sampling) {
      loop.Add({Ask(1, 40)});
      listener.AwaitTokens(1, 1);
    }
    const absl::StatusOr<WeightsCheck> found = check();
    ASSERT_EQ(found.status(), absl::OkStatus());
    EXPECT_EQ(found->found, held);
    EXPECT_EQ(found->expected, held);
    EXPECT_TRUE(found->tensors.empty());
  }
  loop.Stop();
  EXPECT_TRUE(absl::IsUnavailable(check().status()));
}

TEST(StepLoopTest, DamageThatACheckFindsStopsTheSamplingAndIsToldOnce) {
  auto engine = TinyEngine(1, {.slots = 8, .verify_in_turns = true});
  engine->FlipBit();
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);
  for (int time = 0; time < 2; ++time) {
    std::promise<absl::StatusOr<WeightsCheck>> found;
    loop.CheckWeights(
        [&](absl::StatusOr<WeightsCheck> check) { found.set_value(std::move(check)); });
    const absl::StatusOr<WeightsCheck> check = found.get_future().get();
    ASSERT_EQ(check.status(), absl::OkStatus());
    EXPECT_EQ(check->tensors, std::vector<std::string>{"model.layers.0.self_attn.q_proj.weight"});
    MutexLock lock(&listener.mu_);
    ASSERT_EQ(listener.damages_.size(), 1u);
    EXPECT_EQ(listener.damages_[0].tensors, check->tensors);
  }

  loop.Add({Ask(1, 5)});
  loop.Activate(Stage(2, {1, 1}));
  listener.AwaitEnded(1);
  loop.Stop();
  for (const TokenEvent& event : listener.tokens_[1])
    EXPECT_EQ(event.version, (PolicyVersion{1, 1})) << "it stood until whole weights came";
}

TEST(StepLoopTest, APausedLoopTakesWeightsButSamplesNothingUntilItGoesOn) {
  auto engine = TinyEngine(1);
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);
  loop.SetPaused(true);
  loop.Add({Ask(1, 20)});
  loop.Activate(Stage(2, {1, 1}));
  listener.AwaitActivations(1);
  {
    MutexLock lock(&listener.mu_);
    EXPECT_TRUE(listener.tokens_.empty());
  }

  loop.SetPaused(false);
  listener.AwaitEnded(1);
  MutexLock lock(&listener.mu_);
  EXPECT_EQ(listener.tokens_.at(1).size(), 20u);
  for (const TokenEvent& token : listener.tokens_.at(1))
    EXPECT_EQ(token.version, (PolicyVersion{1, 1}));
}

TEST(StepLoopTest, ARefusedRequestComesBackAsAFailureAndAnAbortedOneNotAtAll) {
  auto engine = TinyEngine(1);
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);

  loop.Add({Ask(1, 10'000), Ask(2, 5)});
  {
    // The loop waits in the listener after its next step, so request 3 cannot end before its abort.
    MutexLock lock(&listener.mu_);
    loop.Add({Ask(3, 250)});
    loop.Abort(3, AbortReason::kCancelled);
  }
  listener.AwaitFailures(1);
  listener.AwaitEnded(1);

  // Request 3 began before request 4 and is as long, so it would end first.
  loop.Add({Ask(4, 250)});
  listener.AwaitEnded(2);
  loop.Stop();

  ASSERT_EQ(listener.failures_.size(), 1u) << "request 3 was aborted, which is no failure";
  EXPECT_EQ(listener.failures_[0].request, 1u);
  EXPECT_EQ(listener.failures_[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(listener.tokens_[3].size(), 250u) << "request 3 went on to its end";
}

// Records how many cores the trainer on this machine has each time a step reports its tokens.
class CoresWatcher : public Listener {
 public:
  explicit CoresWatcher(CoreShare* trainer) : trainer_(trainer) {}
  void OnStep(StepEvents events) override {
    seen_.insert(trainer_->threads());
    Listener::OnStep(std::move(events));
  }

  std::set<int> seen_;  // Belongs to the step thread until the loop has stopped.

 private:
  CoreShare* const trainer_;
};

TEST(StepLoopTest, CoresAreLentWhileThereIsNothingToDo) {
  const std::string path = ::testing::TempDir() + "/step-loop-cores-" + std::to_string(getpid());
  ASSERT_TRUE(WriteCorePlan(path, {2, {{"rollout-0", 1}, {"trainer-0", 1}}}).ok());
  const auto rollout = *CoreShare::Open(path, "rollout-0"),
             trainer = *CoreShare::Open(path, "trainer-0");
  unlink(path.c_str());
  const CoreShare::Busy training(trainer.get());
  CoresWatcher watcher(trainer.get());

  auto engine = TinyEngine(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, rollout.get(), &watcher);

  for (int round = 1; round <= 3; ++round) {
    // Wait until the loop has nothing to do and has lent its core.
    while (trainer->threads() != 2) std::this_thread::yield();
    loop.Add({Ask(round, 20)});
    watcher.AwaitEnded(round);
  }

  loop.Stop();
  EXPECT_EQ(watcher.seen_, std::set<int>{1});
  EXPECT_EQ(trainer->threads(), 2);
}

TEST(StepLoopTest, AnEngineGivenAnotherModelsWeightsIsBroken) {
  auto engine = TinyEngine(1);
  Listener listener;
  CoreShare cores(1);
  StepLoop loop(engine.get(), KvPolicy::kKeep, &cores, &listener);

  ModelConfig other = TinyConfig();
  other.vocab_size = 41;
  StagedWeights staged;
  staged.version = {1, 1};
  staged.tensors = std::make_shared<const TensorSet>(*InitWeights(other, 1));
  staged.state = FingerprintOf(*staged.tensors);

  loop.Activate(std::move(staged));
  listener.AwaitBroken();

  EXPECT_EQ(listener.broken_.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
