#include "services/trainer/evaluator.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/daemon/waits.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "sluice/engine/v1/engine.grpc.pb.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Service = engine::v1::EngineService;

// A rollout daemon's Evaluate call over gRPC. The test gives the answers.
class Rollout : public Service::WithCallbackMethod_Evaluate<Service::Service> {
 public:
  using Stream = rpc::WriteStream<engine::v1::EvaluateResponse>;

  Rollout() {
    grpc::Service* services[] = {this};
    server_ = *rpc::Server::Start({}, services);
  }

  ~Rollout() override {
    for (const std::shared_ptr<Stream>& call : calls_)
      call->End(absl::UnavailableError("the test ends"));
    server_->Drain(absl::Seconds(1));
  }

  const std::string& address() const { return server_->address(); }

  // Waits for call n, counted from 0.
  engine::v1::EvaluateRequest AwaitCall(size_t n) {
    MutexLock lock(&mu_);
    while (requests_.size() <= n) changed_.Wait(&mu_);
    return requests_[n];
  }

  size_t calls() {
    MutexLock lock(&mu_);
    return requests_.size();
  }

  // Ends call n with a result of 10 rows, half of them truncated.
  void Answer(size_t n, double reward, std::vector<uint32_t> generations = {4'000'000'000}) {
    engine::v1::EvaluateResponse response;
    engine::v1::EvaluationResult& result = *response.mutable_result();
    result.set_rows(10);
    result.set_answers(10);
    result.set_truncated(5);
    result.set_reward(reward);
    (*result.mutable_pass())[1] = reward / 2;
    result.mutable_reward_interval()->set_low(reward - 0.1);
    result.mutable_reward_interval()->set_high(reward + 0.1);
    (*result.mutable_pass_interval())[1].set_high(0.75);
    result.mutable_generations()->Add(generations.begin(), generations.end());
    CallAt(n)->Send(std::move(response));
    End(n, absl::OkStatus());
  }

  void End(size_t n, absl::Status status) { CallAt(n)->End(std::move(status)); }

 private:
  grpc::ServerWriteReactor<engine::v1::EvaluateResponse>* Evaluate(
      grpc::CallbackServerContext*, const engine::v1::EvaluateRequest* request) override {
    const auto stream = rpc::MakeStream<Stream>();
    stream->Send({});  // A heartbeat is a message without a result.
    MutexLock lock(&mu_);
    calls_.push_back(stream);
    requests_.push_back(*request);
    changed_.NotifyAll();
    return stream.get();
  }

  std::shared_ptr<Stream> CallAt(size_t n) {
    MutexLock lock(&mu_);
    return calls_.at(n);
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::shared_ptr<Stream>> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<engine::v1::EvaluateRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<rpc::Server> server_;
};

class EvaluatorTest : public ::testing::Test {
 protected:
  ~EvaluatorTest() override { cancel_.Trigger(); }

  // Makes the evaluator of a trainer that continues from `version`.
  Evaluator& Make(int64_t version = 0, std::vector<std::string> datasets = {"heldout"}) {
    EvaluationLog log(dir_);
    EXPECT_TRUE(log.Load(version).ok());

    Evaluator::Options options{.job = std::string(32, 'a'),
                               .job_name = "test",
                               .worker = "trainer-0",
                               .incarnation = 3,
                               .dir = dir_,
                               .datasets = std::move(datasets),
                               .version = version};

    Evaluator::Hooks hooks;
    hooks.on_event = [this](common::v1::Severity, absl::string_view code,
                            absl::string_view message) {
      MutexLock lock(&mu_);
      events_.push_back(absl::StrCat(code, ": ", message));
    };

    evaluator_ = std::make_unique<Evaluator>(std::move(options), std::move(log), &publisher_,
                                             &waits_, &cancel_, std::move(hooks));
    evaluator_->SetRollouts({rollout_.address()});
    return *evaluator_;
  }

  PublishedVersion Publish(int64_t number, uint64_t seed) {
    return *publisher_.Publish(*InitWeights(model_.config, seed), {3, number}, "");
  }

  std::vector<std::string> events() {
    MutexLock lock(&mu_);
    return events_;
  }

  const std::string dir_ = FreshDir();
  const ModelDir model_ = TinyModelDir();
  Rollout rollout_;
  WeightPublisher publisher_{{.job = std::string(32, 'a'), .retain_versions = 1}, Clock::Real()};
  daemon::Waits waits_{"trainer-0"};
  rpc::Cancel cancel_;
  Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Evaluator> evaluator_;
};

TEST_F(EvaluatorTest, AVersionStaysPinnedUntilItsEvaluationHasEnded) {
  Evaluator& evaluator = Make();
  const PublishedVersion version = Publish(50, 1);
  evaluator.Start(version);

  const engine::v1::EvaluateRequest request = rollout_.AwaitCall(0);
  EXPECT_EQ(rpc::FromProto(request.version()), (PolicyVersion{3, 50}));
  EXPECT_EQ(request.manifest(), version.manifest);
  EXPECT_EQ(request.dataset(), "heldout");

  // The publisher retains one version by itself, so it has version 50 because that is pinned.
  for (int64_t number = 51; number < 60; ++number) Publish(number, static_cast<uint64_t>(number));
  EXPECT_TRUE(evaluator.running().has_value());
  EXPECT_NE(publisher_.FindObject(version.manifest), nullptr);
  EXPECT_THAT(evaluator.TakeValues(55), IsEmpty());

  rollout_.Answer(0, 0.8);
  evaluator.Await();
  EXPECT_FALSE(evaluator.running().has_value());
  EXPECT_EQ(publisher_.FindObject(version.manifest), nullptr);

  const std::map<std::string, double> values = evaluator.TakeValues(56);
  EXPECT_EQ(values.at("eval/heldout/reward"), 0.8);
  EXPECT_EQ(values.at("eval/heldout/pass@1"), 0.4);
  EXPECT_EQ(values.at("eval/heldout/truncated"), 0.5);
  EXPECT_EQ(values.at("eval/heldout/reward_low"), 0.8 - 0.1);
  EXPECT_EQ(values.at("eval/heldout/reward_high"), 0.8 + 0.1);
  EXPECT_EQ(values.at("eval/heldout/pass@1_low"), 0);
  EXPECT_EQ(values.at("eval/heldout/pass@1_high"), 0.75);
  EXPECT_EQ(values.at("eval/heldout/generation"), 4e9);
  EXPECT_EQ(values.at("eval/version"), 50);
  EXPECT_EQ(values.at("eval/score"), 0.8);
  EXPECT_THAT(evaluator.TakeValues(57), IsEmpty()) << "a report carries them once";
  EXPECT_THAT(
      events(),
      ElementsAre(
          "evaluation: version 50: heldout 0.8000 [0.7000, 0.9000] (pass@1 0.4000, 10 rows, 50.0% "
          "truncated); the best so far"));
}

TEST_F(EvaluatorTest, AnswersThatDifferentRewardsHaveScoredAreReported) {
  Evaluator& evaluator = Make();
  evaluator.Start(Publish(50, 1));
  rollout_.AwaitCall(0);
  rollout_.Answer(0, 0.5, {7, 9});
  evaluator.Await();

  ASSERT_EQ(events().size(), 2u);
  EXPECT_THAT(events()[0], HasSubstr("eval_mixed_rewards: evaluation of version 50 on heldout: 2 "
                                     "generations of the rewards scored it"));
  EXPECT_FALSE(evaluator.TakeValues(51).contains("eval/heldout/generation"));
}

TEST_F(EvaluatorTest, TheScoreIsTheMeanOverTheDatasets) {
  Evaluator& evaluator = Make(0, {"sums", "words"});
  evaluator.Start(Publish(50, 1));
  EXPECT_EQ(rollout_.AwaitCall(0).dataset(), "sums");
  rollout_.Answer(0, 0.2);
  EXPECT_EQ(rollout_.AwaitCall(1).dataset(), "words");

  rollout_.Answer(1, 0.6);
  evaluator.Await();
  EXPECT_DOUBLE_EQ(evaluator.totals().best, 0.4);
  EXPECT_EQ(evaluator.totals().best_checkpoint, dir_ + "/step-50");
}

TEST_F(EvaluatorTest, WhatARolloutThatDiesLeavesIsAskedAgain) {
  Evaluator& evaluator = Make();
  evaluator.Start(Publish(50, 1));
  const engine::v1::EvaluateRequest first = rollout_.AwaitCall(0);
  rollout_.End(0, absl::UnavailableError("killed"));
  const engine::v1::EvaluateRequest second = rollout_.AwaitCall(1);
  EXPECT_EQ(first.manifest(), second.manifest());

  rollout_.Answer(1, 0.5);
  evaluator.Await();
  EXPECT_EQ(evaluator.totals().versions, 1);
  ASSERT_EQ(events().size(), 2u);
  EXPECT_THAT(events()[0],
              HasSubstr("eval_again: evaluation of version 50 on heldout is begun again: "));
}

TEST_F(EvaluatorTest, ARolloutThatLeavesTheJobIsWaitedForNoLonger) {
  Evaluator& evaluator = Make();
  evaluator.Start(Publish(50, 1));
  rollout_.AwaitCall(0);  // It never answers.

  Rollout other;
  evaluator.SetRollouts({other.address()});
  other.AwaitCall(0);
  other.Answer(0, 0.5);
  evaluator.Await();

  EXPECT_EQ(evaluator.totals().last, 0.5);
  EXPECT_THAT(events()[0],
              HasSubstr(absl::StrCat("the rollout at ", rollout_.address(), " has left the job")));
}

TEST_F(EvaluatorTest, AFirstEvaluationThatCannotBeDoneIsAnError) {
  Evaluator& evaluator = Make();
  evaluator.Start(Publish(0, 1));
  rollout_.AwaitCall(0);
  rollout_.End(0, absl::InvalidArgumentError("no row fits"));
  evaluator.Await();
  EXPECT_THAT(evaluator.status().message(),
              HasSubstr("the first evaluation, of version 0, failed"));
}

TEST_F(EvaluatorTest, ALaterEvaluationThatCannotBeDoneIsAnEvent) {
  Evaluator& evaluator = Make();
  evaluator.Start(Publish(0, 1));
  rollout_.AwaitCall(0);
  rollout_.Answer(0, 0.5);
  evaluator.Await();

  evaluator.Start(Publish(50, 2));
  rollout_.AwaitCall(1);
  rollout_.End(1, absl::NotFoundError("no file"));
  evaluator.Await();

  EXPECT_TRUE(evaluator.status().ok());
  EXPECT_EQ(evaluator.totals().versions, 1);
  EXPECT_THAT(events().back(), HasSubstr("eval_failed: version 50 could not be evaluated: "));
}

TEST_F(EvaluatorTest, WeightsThatWereEvaluatedAreNotAskedForAgainAndTheirValuesAreTold) {
  const PublishedVersion version = Publish(50, 1);
  {
    Evaluator& before = Make();
    before.Start(version);
    rollout_.AwaitCall(0);
    rollout_.Answer(0, 0.5);
    before.Await();
    // Thirteen values of the dataset, eval/version and eval/score.
    EXPECT_EQ(before.TakeValues(52).size(), 15u);

    cancel_.Trigger();
    evaluator_.reset();
  }
  EvaluationLog log(dir_);  // The trainer went back to version 40, and comes to 50 again.
  ASSERT_TRUE(log.Load(40).ok());

  rpc::Cancel cancel;
  Evaluator again({.job_name = "test",
                   .worker = "trainer-0",
                   .dir = dir_,
                   .datasets = {"heldout"},
                   .version = 40},
                  std::move(log), &publisher_, &waits_, &cancel,
                  {.on_event = [](auto, auto, auto) {}});
  EXPECT_EQ(again.totals().versions, 0);

  again.Start(version);
  again.Await();
  EXPECT_EQ(rollout_.calls(), 1u);
  EXPECT_EQ(again.totals().versions, 1);
  EXPECT_EQ(again.TakeValues(51).at("eval/score"), 0.5);

  cancel.Trigger();
}

TEST_F(EvaluatorTest, ValuesWhoseStepReportIsAfterTheCheckpointAreToldOnceMore) {
  EvaluationLog log(dir_);
  ASSERT_TRUE(log.Load(0).ok());
  ASSERT_TRUE(
      log.Add({.version = {2, 50}, .state = "aa", .score = 0.5, .values = {{"eval/score", 0.5}}})
          .ok());
  ASSERT_TRUE(log.SetReported(50, 63).ok());
  EXPECT_EQ(Make(/*version=*/60).TakeValues(60).at("eval/score"), 0.5);
}

TEST_F(EvaluatorTest, ValuesWhoseStepReportIsBeforeTheCheckpointAreNotToldAgain) {
  EvaluationLog log(dir_);
  ASSERT_TRUE(log.Load(0).ok());
  ASSERT_TRUE(
      log.Add({.version = {2, 50}, .state = "aa", .score = 0.5, .values = {{"eval/score", 0.5}}})
          .ok());
  ASSERT_TRUE(log.SetReported(50, 53).ok());
  EXPECT_THAT(Make(/*version=*/60).TakeValues(60), IsEmpty());
}

TEST_F(EvaluatorTest, WhatTheTrainerEvaluatesItselfIsKeptAndNotEvaluatedAgain) {
  Evaluator& evaluator = Make();
  const PublishedVersion version = Publish(50, 1);
  int calls = 0;
  const auto evaluate = [&]() -> absl::StatusOr<Evaluation> {
    ++calls;
    return Evaluation{.score = 1.5,
                      .values = {{"eval/heldout/loss", 1.5}, {"eval/heldout/rows", 8}}};
  };
  evaluator.Record(version, evaluate);
  EXPECT_THAT(events(), ElementsAre(HasSubstr("version 50: heldout loss 1.5000 (8 rows)")));
  const std::map<std::string, double> values = evaluator.TakeValues(50);
  EXPECT_EQ(values.at("eval/heldout/loss"), 1.5);
  EXPECT_EQ(values.at("eval/version"), 50);
  EXPECT_EQ(values.at("eval/score"), 1.5);
  EXPECT_EQ(evaluator.totals().last, 1.5);

  evaluator.Record(version, evaluate);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(evaluator.TakeValues(51), values) << "a run that went back reports it again";
  EXPECT_EQ(rollout_.calls(), 0u);
}

TEST_F(EvaluatorTest, ACancelledEvaluationOfTheTrainerLeavesNothing) {
  Evaluator& evaluator = Make();
  evaluator.Record(Publish(50, 1), [&]() -> absl::StatusOr<Evaluation> {
    cancel_.Trigger();
    return absl::CancelledError("the job ends");
  });
  EXPECT_THAT(events(), IsEmpty());
  EXPECT_EQ(evaluator.totals().versions, 0);
  EXPECT_EQ(evaluator.status(), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::trainer
