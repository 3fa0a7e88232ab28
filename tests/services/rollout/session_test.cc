#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/rollout/core/engine/native/native_engine.h"
#include "services/rollout/engine_spec.h"
#include "tests/services/rollout/session_fixture.h"

namespace sluice::rollout {
namespace {

TEST_F(SessionTest, ABatchHoldsTheTokensThatItsSeedsDraw) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/7, /*endless=*/false));
  StartSession("rollout-0");
  Publish(0, kInitSeed);

  const Answers answers = TakeBatch(0);
  ASSERT_EQ(answers.size(), 8u);
  for (const auto& [key, answer] : answers) {
    const Answer expected = Expected(key.first, key.second, PromptText(answer), 7, false);
    EXPECT_EQ(answer.tokens, expected.tokens);
    EXPECT_EQ(answer.logprobs, expected.logprobs);
    EXPECT_EQ(answer.messages, expected.messages);
    EXPECT_EQ(answer.attempt, 1u);
    EXPECT_EQ(answer.finish,
              answer.tokens.back() == 2 ? common::v1::FINISH_STOP : common::v1::FINISH_LENGTH);
  }
}

TEST_F(SessionTest, TheVersionThatServesHasADigestAtEveryMoment) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  std::atomic<Session*> started = nullptr;
  int switches = 0;
  on_serving_ = [&] {  // Runs while a switch is half done, after the first Publish().
    const Session* const session = started;
    const std::optional<PolicyVersion> version = session->serving();
    if (!version.has_value()) return;
    EXPECT_NE(session->digest(*version), "") << version->str();
    ++switches;
  };

  Session* const session = StartSession("rollout-0");
  started = session;
  Publish(0, kInitSeed);
  for (int64_t k = 0; k < 8; ++k) {
    TakeBatch(k);
    Publish(k + 1, kInitSeed + k + 1);
  }

  session->Stop(absl::ZeroDuration());  // The last switch may be under way.
  EXPECT_GT(switches, 0);
}

TEST_F(SessionTest, NewWeightsSampleTheGroupsAdmittedAfterThem) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  StartSession("rollout-0");
  Publish(0, kInitSeed);

  PolicyVersion newest;
  for (int64_t k = 0; k < 8; ++k) {
    for (const auto& [key, answer] : TakeBatch(k)) {
      for (const VersionRun& run : answer.runs) {
        EXPECT_LE(k - run.version.number, 2) << "staleness";
        newest = std::max(newest, run.version);
      }
    }
    Publish(k + 1, kInitSeed + k + 1);
  }

  EXPECT_GE(newest.number, 5);  // Answers of batch 7 are at most two versions old.
}

TEST(EngineSpecTest, AnEngineHoldsTwoVersionsToFinishAnswersUnlessTheJobSaysMore) {
  job::v1::JobSpec spec;
  EXPECT_EQ(EngineSpecOf(spec)->max_versions, 1u);
  spec.mutable_weights()->set_inflight("switch");
  EXPECT_EQ(EngineSpecOf(spec)->max_versions, 1u);
  spec.mutable_weights()->set_inflight("finish");
  EXPECT_EQ(EngineSpecOf(spec)->max_versions, 2u);
  spec.mutable_weights()->set_resident_versions(5);
  EXPECT_EQ(EngineSpecOf(spec)->max_versions, 5u);
}

// With few slots, answers of later steps are under way when a version comes.
class FinishTest : public SessionTest {
 protected:
  void StartFinishing() {
    ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/56, /*endless=*/true));
    spec_.mutable_weights()->set_inflight("finish");
    spec_.mutable_rollout()->mutable_engine()->set_max_running(4);
    started_ = StartSession("rollout-0");
    Publish(0, kInitSeed);
  }

  std::atomic<Session*> started_ = nullptr;
};

TEST_F(FinishTest, EachAnswerIsOfOneVersionWhileTheEngineHoldsTwo) {
  std::atomic<uint32_t> most = 0;
  on_serving_ = [&] {
    if (const Session* const session = started_)
      most = std::max<uint32_t>(most, session->stats().versions);
  };
  ASSERT_NO_FATAL_FAILURE(StartFinishing());

  PolicyVersion newest;
  // On a busy machine a version may come between two answers, and not while one is under way.
  for (int64_t k = 0; k < 10 || (most < 2 && k < 100); ++k) {
    for (const auto& [key, answer] : TakeBatch(k)) {
      for (const VersionRun& run : answer.runs) {
        EXPECT_EQ(run.version, answer.runs.front().version);
        EXPECT_LE(k - run.version.number, 2) << "staleness";
        newest = std::max(newest, run.version);
      }
    }
    Publish(k + 1, kInitSeed + k + 1);
  }
  started_.load()->Stop(absl::ZeroDuration());  // The last switch may be under way.
  EXPECT_EQ(most, 2u);
  EXPECT_GE(newest.number, 5);
}

TEST_F(FinishTest, AVersionWithoutRoomIsNamedAndKeepsNoSessionFromItsEnd) {
  std::promise<int64_t> holds_two;
  std::promise<void> go_on;
  std::atomic<bool> told = false;
  on_serving_ = [&] {  // On the step thread, which goes no further.
    const Session* const session = started_;
    if (session == nullptr || session->stats().versions < 2 || told) return;
    holds_two.set_value(session->stats().version.number);
    told = true;
    go_on.get_future().wait();
  };
  ASSERT_NO_FATAL_FAILURE(StartFinishing());

  std::future<int64_t> version = holds_two.get_future();
  for (int64_t k = 0; version.wait_for(std::chrono::seconds(0)) != std::future_status::ready; ++k) {
    ASSERT_LT(k, 500) << "no answer was ever under way when a version came";
    TakeBatch(k);
    Publish(k + 1, kInitSeed + k + 1);
    while (!told && started_.load()->serving() != PolicyVersion{1, k + 1})
      std::this_thread::yield();
  }

  // The queue hears nothing of this one.
  const PolicyVersion next{1, version.get() + 1};
  ASSERT_TRUE(publisher_->Publish(Weights(99), next, "").ok());
  std::string cause;
  while (cause.empty()) {
    for (const common::v1::WaitEdge& edge : started_.load()->Explain()) {
      if (edge.on().id() == next.str()) cause = edge.cause();
    }
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::StrContains(cause, "holds 2 (weights.resident_versions)")) << cause;

  std::thread stops([&] { started_.load()->Stop(absl::ZeroDuration()); });
  go_on.set_value();
  stops.join();
}

// How many tokens of each answer the dead worker stored: none, one, some, all but one, all.
class ResumeTest : public SessionTest, public testing::WithParamInterface<uint32_t> {};

TEST_P(ResumeTest, WhatADeadWorkerHadStoredGoesOnElsewhereTokenForToken) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob(/*max_response=*/56, /*endless=*/true, "{\"digits\": \"4821\"}\n"));
  Publish(0, kInitSeed);
  ASSERT_NO_FATAL_FAILURE(DieAfter(GetParam(), "4821", 56));
  StartSession("rollout-1");

  size_t went_on = 0;
  // A new group may be finished, and be in a batch, before a resumed one.
  for (int64_t k = 0; k < 3 && went_on < 8; ++k) {
    for (const auto& [key, answer] : TakeBatch(k)) {
      const Answer expected = Expected(key.first, key.second, "4821", 56, true);
      EXPECT_EQ(answer.tokens, expected.tokens);
      EXPECT_EQ(answer.logprobs, expected.logprobs);
      EXPECT_EQ(answer.messages, expected.messages);
      went_on += answer.attempt == 2;
    }
  }

  EXPECT_EQ(went_on, 8u);
}

INSTANTIATE_TEST_SUITE_P(Prefixes, ResumeTest, testing::Values(0, 1, 20, 55, 56));

TEST_F(SessionTest, TwoWorkersShareAJobAndAStoppedOnesAnswersGoOnAtTheOther) {
  ASSERT_NO_FATAL_FAILURE(StartJob(56, true, "{\"digits\": \"4821\"}\n"));
  StartSession("rollout-0");
  StartSession("rollout-1");
  Publish(0, kInitSeed);

  for (int64_t k = 0; k < 3; ++k) {
    if (k == 1) sessions_.erase(sessions_.begin());  // Stops rollout-0.
    for (const auto& [key, answer] : TakeBatch(k)) {
      const Answer expected = Expected(key.first, key.second, "4821", 56, true);
      EXPECT_EQ(answer.tokens, expected.tokens);
      EXPECT_EQ(answer.logprobs, expected.logprobs);
    }
  }
}

TEST_F(SessionTest, AnAnswerCrowdedOutTwiceIsGivenBackAndGoesOnInTheSameBits) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/40, /*endless=*/true));

  // The fifth step with tokens reports that an answer was preempted for the second time. The
  // session gives it back only if the job has other workers.
  ASSERT_TRUE(ArmFailpoint("rollout.step.crowded", "error", 5).ok());
  StartSession("rollout-0")->SetHasOtherWorkers(true);
  Publish(0, kInitSeed);

  size_t went_on = 0;
  for (int64_t k = 0; k < 3; ++k) {
    for (const auto& [key, answer] : TakeBatch(k)) {
      const Answer expected = Expected(key.first, key.second, PromptText(answer), 40, true);
      EXPECT_EQ(answer.tokens, expected.tokens)
          << "group " << key.first << ", member " << key.second;
      EXPECT_EQ(answer.logprobs, expected.logprobs);
      went_on += answer.attempt > 1;
    }
  }

  EXPECT_EQ(went_on, 1u);
}

TEST_F(SessionTest, ARefusedVersionIsFetchedAgainAndServes) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  ASSERT_TRUE(ArmFailpoint("rollout.activate.bitflip", "error", 1).ok());
  StartSession("rollout-0");
  // These are not the weights that the engine starts with, so it loads them, with a bit flipped.
  Publish(0, kInitSeed + 1);

  const Answers answers = TakeBatch(0);
  EXPECT_EQ(answers.size(), 8u);
  EXPECT_EQ(sessions_[0]->refused_versions(), 1);
}

// Each version changes one number, so it is applied in place. With one of them a bit flips in
// another tensor; the engine finds it at once or within eight activations.
TEST_F(SessionTest, WeightsThatWereDamagedInMemoryAreReplacedByAWholeVersion) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  StartSession("rollout-0");
  TensorSet weights = Weights(kInitSeed);
  Publish(0, weights);
  TakeBatch(0);

  ASSERT_TRUE(ArmFailpoint("rollout.activate.bitflip", "error", 1).ok());
  const auto damaged = [&] {
    return absl::StrContains(
        registry_.Text(),
        "sluice_weights_verify_failures_total{job_id=\"session\",stage=\"rest\"} 1");
  };
  int64_t version = 1;
  for (; version < 20 && !damaged(); ++version) {
    weights.as<uint32_t>(0)[static_cast<size_t>(version)] ^= 1;
    Publish(version, weights);
    EXPECT_EQ(TakeBatch(version).size(), 8u);
  }
  EXPECT_TRUE(damaged());

  // Batches of versions that were loaded afterwards.
  for (const int64_t last = version + 4; version < last; ++version) {
    weights.as<uint32_t>(0)[static_cast<size_t>(version)] ^= 1;
    Publish(version, weights);
    EXPECT_EQ(TakeBatch(version).size(), 8u);
  }
  EXPECT_EQ(sessions_[0]->health(), absl::OkStatus());
}

// The trainer is gone, so nothing replaces the damaged weights.
TEST_F(SessionTest, AnEngineWithDamagedWeightsIsNotVerifiedAtTheQueueAndAsksForNoWork) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  Session* const session = StartSession("rollout-0");
  on_serving_ = [&] {  // Runs on the step thread, so no step is under way.
    session->SetWeightsSource("");
    dynamic_cast<NativeEngine&>(const_cast<Engine&>(session->engine())).FlipBit();
  };
  Publish(0, kInitSeed);
  // All answers that may be sampled with version 0, so that the next call for work is parked.
  for (int64_t k = 0; k < 3; ++k) ASSERT_EQ(TakeBatch(k).size(), 8u);
  const auto await_edge = [&](const auto& predicate) {
    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (Clock::Real()->Monotonic() < until) {
      const auto edges = queue_->Explain(kJob);
      if (std::any_of(edges.begin(), edges.end(), predicate)) return true;
      std::this_thread::yield();
    }
    return false;
  };
  ASSERT_TRUE(
      await_edge([](const common::v1::WaitEdge& edge) { return edge.waiter().id() == "Admit"; }));

  std::promise<absl::StatusOr<WeightsCheck>> found;
  session->CheckWeights(
      [&](absl::StatusOr<WeightsCheck> check) { found.set_value(std::move(check)); });
  const absl::StatusOr<WeightsCheck> check = found.get_future().get();
  ASSERT_EQ(check.status(), absl::OkStatus());
  EXPECT_EQ(check->tensors.size(), 1u);
  EXPECT_FALSE(session->health().ok());

  EXPECT_TRUE(await_edge([](const common::v1::WaitEdge& edge) {
    return absl::StrContains(edge.cause(), "1:0 unverified");
  })) << "the parked call is not granted";
  for (const common::v1::WaitEdge& edge : session->Explain())
    EXPECT_THAT(edge.cause(), testing::Not(testing::HasSubstr("that the trainer published")));
}

class RescoreTest : public SessionTest {
 protected:
  // The number of answers that were scored again with a gap of at most `le` nats.
  int64_t Rescored(absl::string_view le) {
    const std::string text = registry_.Text();
    const std::string name =
        absl::StrCat("sluice_rollout_rescore_gap_nats_bucket{job_id=\"session\",le=\"", le, "\"} ");
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + name.size());
  }

  // Waits until the answers of two steps were scored again. Some of a third step may be too.
  void AwaitRescored() {
    TakeBatch(0);
    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (Rescored("+Inf") < 16 && Clock::Real()->Monotonic() < until) std::this_thread::yield();
    ASSERT_GE(Rescored("+Inf"), 16);
  }
};

TEST_F(RescoreTest, WhatWasSealedIsComputedAgainInTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/40, /*endless=*/true));
  Publish(0, kInitSeed);
  StartSession("rollout-0", /*rescore_one_in=*/1);
  ASSERT_NO_FATAL_FAILURE(AwaitRescored());
  sessions_.front()->Stop(absl::ZeroDuration());
  EXPECT_EQ(Rescored("0"), Rescored("+Inf"));
}

TEST_F(RescoreTest, ACorruptBlockOfKeysAndValuesIsFound) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/40, /*endless=*/true));
  model_.config.initializer_range = 0.5;  // Makes log-probs depend much on attention.
  Publish(0, kInitSeed);
  ASSERT_TRUE(ArmFailpoint("rollout.kv.corrupt", "error", 5).ok());

  testing::internal::CaptureStderr();
  StartSession("rollout-0", /*rescore_one_in=*/1);
  ASSERT_NO_FATAL_FAILURE(AwaitRescored());
  sessions_.front()->Stop(absl::ZeroDuration());

  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Rescored("+Inf") - Rescored("0.02"), 1);
  EXPECT_EQ(Rescored("0.02"), Rescored("0")) << "all others are in the same bits";
  for (const char* part : {"\"rescore_gap\"", "\"group\":\"1:", "\"version\":\"1:0\""})
    EXPECT_THAT(logged, testing::HasSubstr(part));
}

TEST_F(SessionTest, KeysOfTheConfigThatAreNotActedOnAreLoggedOnce) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  const std::string dir = testing_data::TempPath("session_model");
  std::filesystem::copy(kModel, dir);
  std::string config = *ReadFile(dir + "/config.json");
  config.insert(config.find('{') + 1, R"("auto_map": {"AutoModelForCausalLM": "modeling.Model"},)");
  ASSERT_TRUE(WriteFileAtomic(dir + "/config.json", config).ok());
  spec_.mutable_model()->mutable_init()->set_config(dir);

  testing::internal::CaptureStderr();
  StartSession("rollout-0");

  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      logged,
      testing::ContainsRegex(
          "\"model_keys_ignored\",\"model\":\"[^\"]*session_model[^\"]*\",\"keys\":\"auto_map\""));
  EXPECT_EQ(logged.find("model_keys_ignored"), logged.rfind("model_keys_ignored"));
}

TEST_F(SessionTest, PromptsThatAreTooLongAreDroppedAndTheOthersGoOn) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob(7, false, "{\"digits\": \"123456789\"}\n{\"digits\": \"77\"}\n"));
  StartSession("rollout-0");
  Publish(0, kInitSeed);
  for (const auto& [key, answer] : TakeBatch(0)) EXPECT_EQ(PromptText(answer), "77");

  queue::v1::StatsRequest request;
  request.mutable_call()->mutable_job()->set_job(kJob);
  request.mutable_call()->mutable_job()->set_worker("controller");
  queue::v1::StatsResponse stats;
  const absl::Status status = rpc::Call(*Channel(), request, &stats);
  ASSERT_TRUE(status.ok()) << status;
  const int64_t dropped = stats.ledger().dropped().at("prompt_too_long");
  EXPECT_GT(dropped, 0);
  // The worker counts answers, as the queue does, and does so before it tells the queue.
  EXPECT_GE(Metrics(&registry_, "session").dropped.value(), dropped);
}

TEST_F(SessionTest, ADrainedWorkerSealsWhatEndsAndLeavesNothingHalfSent) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  Session* const session = StartSession("rollout-0");
  Publish(0, kInitSeed);
  TakeBatch(0);
  session->Stop(absl::Seconds(30));
  sessions_.clear();
  EXPECT_EQ(TakeBatch(1).size(), 8u);  // They were sealed before the worker ended.
}

TEST_F(SessionTest, ASessionWhoseStreamHasFailedCanBeDrained) {
#ifndef SLUICE_FAILPOINTS
  GTEST_SKIP() << "failpoints are not compiled in";
#endif
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  std::promise<void> failed;
  std::once_flag once;
  on_failed_ = [&](absl::Status) { std::call_once(once, [&] { failed.set_value(); }); };
  ASSERT_TRUE(ArmFailpoint("rollout.seal.before", "error", 1).ok());
  Session* const session = StartSession("rollout-0");
  Publish(0, kInitSeed);
  failed.get_future().wait();

  // No answer will ever be sealed, so the drain must not wait for one.
  session->Stop(absl::Hours(1));
}

TEST_F(SessionTest, WhatThisBuildLacksIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  const auto refusal = [&] { return std::string(ReadSpec(spec_, 1).status().message()); };

  spec_.mutable_rollout()->mutable_sampling()->set_top_p(0.9);
  EXPECT_THAT(refusal(), testing::HasSubstr("rollout.sampling.top_p: "));

  spec_.mutable_rollout()->mutable_sampling()->set_top_p(1);
  spec_.mutable_rollout()->mutable_environment()->set_name("calculator");
  EXPECT_THAT(refusal(),
              testing::HasSubstr("rollout.environment.name: environments are not in this build"));

  spec_.mutable_rollout()->clear_environment();
  EXPECT_TRUE(ReadSpec(spec_, 1).ok());
}

}  // namespace
}  // namespace sluice::rollout
