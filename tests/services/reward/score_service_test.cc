#include "services/reward/score_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/caller.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "sluice/reward/v1/reward.pb.h"

namespace sluice::reward {
namespace {

constexpr char kRow[] = R"({"prompt": "so?", "answer": "yes"})";

using ::testing::HasSubstr;

const std::string kJobId(32, 'a');

// A judge whose replies the test lets through one by one.
class Judge {
 public:
  absl::StatusOr<std::string> Ask() {
    MutexLock lock(&mu_);
    ++asked_;
    changed_.NotifyAll();
    while (allowed_ == 0 && !stopped_) changed_.Wait(&mu_);
    if (stopped_) return absl::CancelledError("stopped");
    --allowed_;
    if (fails_) return absl::UnavailableError("the judge is gone");
    return std::string(R"({"score": 1})");
  }
  void Allow(int replies) {
    MutexLock lock(&mu_);
    allowed_ += replies;
    changed_.NotifyAll();
  }
  void Fail() {
    MutexLock lock(&mu_);
    fails_ = true;
  }
  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  void AwaitAsked(int calls) {
    MutexLock lock(&mu_);
    while (asked_ < calls) changed_.Wait(&mu_);
  }
  int asked() {
    MutexLock lock(&mu_);
    return asked_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0, allowed_ ABSL_GUARDED_BY(mu_) = 0;
  bool fails_ ABSL_GUARDED_BY(mu_) = false, stopped_ ABSL_GUARDED_BY(mu_) = false;
};

class ScoreServiceTest : public testing::Test {
 protected:
  ScoreServiceTest() {
    grpc::Service* const services[] = {scores_.service()};
    server_ = *rpc::Server::Start({}, services);
    callers_.SetJob(kJobId,
                    {{{"rollout-0", rpc::Role::kRollout, 3}, {"reward-0", rpc::Role::kReward, 3}}});
  }
  ~ScoreServiceTest() override {
    judge_.Stop();
    scores_.RemoveJob(kJobId);
    server_->Drain(absl::Seconds(1));
  }

  void ScoreByText() {
    scores_.SetJob(kJobId,
                   *Scorer::Make({{.name = "right",
                                   .verifier = "exact",
                                   .data_sources = {"held"},
                                   .args = nlohmann::json::object()}},
                                 Combine::kSum),
                   1);
  }
  void ScoreByJudge(uint32_t most) {
    scores_.SetJob(
        kJobId,
        *Scorer::Make(
            {{.name = "good",
              .verifier = "judge",
              .args =
                  {{"judge", "strict"}, {"template", "rubric"}, {"rubric", "good?"}, {"high", 1}}}},
            Combine::kSum,
            {.ask_judge = [this](const std::string&, const std::string&, const std::string&,
                                 absl::Duration) { return judge_.Ask(); }}),
        most);
  }

  absl::StatusOr<v1::ScoreResponse> Call(std::vector<std::string> answers,
                                         const std::string& worker = "rollout-0",
                                         const std::string& source = "held",
                                         const std::string& row = kRow) {
    v1::ScoreRequest request;
    request.mutable_call()->mutable_job()->set_job(kJobId);
    request.mutable_call()->mutable_job()->set_worker(worker);
    request.mutable_call()->mutable_job()->set_incarnation(3);
    request.set_source(source);
    request.set_row(row);
    for (std::string& answer : answers) request.add_answers()->set_text(std::move(answer));
    SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel,
                            rpc::Connect(server_->address(), {rpc::Role::kReward}));
    v1::ScoreResponse response;
    SLUICE_RETURN_IF_ERROR(rpc::Call(*channel, request, &response));
    return response;
  }

  rpc::CallerTable callers_;
  Judge judge_;
  ScoreServer scores_{&callers_};
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(ScoreServiceTest, AnswersAreScoredByTheJobsRewardsInOrder) {
  ScoreByText();
  const auto scored = Call({"no", "yes"});
  ASSERT_TRUE(scored.ok()) << scored.status();
  ASSERT_EQ(scored->scores_size(), 2);
  EXPECT_EQ(scored->scores(0).status(), "ok");
  EXPECT_EQ(scored->scores(0).reward(), 0);
  EXPECT_FALSE(scored->scores(0).passes());
  EXPECT_EQ(scored->scores(1).reward(), 1);
  EXPECT_TRUE(scored->scores(1).passes());
  EXPECT_NE(scored->generation(), 0u);
}

TEST_F(ScoreServiceTest, WhatHasNoScoreSaysWhyAndHasNoNumber) {
  ScoreByText();
  const auto other = Call({"yes"}, "rollout-0", "elsewhere");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->scores(0).status(), "no_part");
  EXPECT_FALSE(other->scores(0).passes());

  const auto no_gold = Call({"yes"}, "rollout-0", "held", "{}");
  ASSERT_TRUE(no_gold.ok()) << no_gold.status();
  EXPECT_EQ(no_gold->scores(0).status(), "bad_row");
  EXPECT_THAT(no_gold->scores(0).why(), HasSubstr("answer"));
}

TEST_F(ScoreServiceTest, AFaultOfAJudgeIsToldAsOne) {
  ScoreByJudge(1);
  judge_.Fail();
  judge_.Allow(100);
  const auto scored = Call({"yes"});
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(scored->scores(0).status(), "fault");
  EXPECT_THAT(scored->scores(0).why(), HasSubstr("the judge is gone"));
  EXPECT_FALSE(scored->scores(0).busy());
}

TEST_F(ScoreServiceTest, MalformedCallsAndStrangersAreRefused) {
  EXPECT_EQ(ReasonOf(Call({"yes"}).status()), "NOT_LISTED") << "it does not score for the job yet";
  ScoreByText();
  EXPECT_EQ(Call({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Call({"yes"}, "rollout-0", "held", "[]").status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string deep = absl::StrCat(R"({"answer": )", std::string(5000, '['), "]}");
  EXPECT_THAT(std::string(Call({"yes"}, "rollout-0", "held", deep).status().message()),
              HasSubstr("levels deep"));
  EXPECT_EQ(ReasonOf(Call({"yes"}, "reward-0").status()), "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(Call({"yes"}, "rollout-9").status()), "NOT_LISTED");
}

TEST_F(ScoreServiceTest, OnlySoManyAnswersAreScoredAtATimeAndTheOthersWaitInLine) {
  ScoreByJudge(/*most=*/2);
  std::vector<std::future<absl::StatusOr<v1::ScoreResponse>>> calls;
  for (int i = 0; i < 5; ++i)
    calls.push_back(std::async(std::launch::async, [this] { return Call({"yes"}); }));
  judge_.AwaitAsked(2);
  EXPECT_EQ(judge_.asked(), 2);

  judge_.Allow(5);
  for (auto& call : calls) {
    const auto scored = call.get();
    ASSERT_TRUE(scored.ok()) << scored.status();
    EXPECT_EQ(scored->scores(0).reward(), 1);
  }
  EXPECT_EQ(judge_.asked(), 5);
}

TEST_F(ScoreServiceTest, ACallIsBusyOnceTheLineIsFull) {
  ScoreByJudge(/*most=*/1);
  // One is scored and 64 wait in line, so of 66 calls one is refused, at the latest the last.
  std::vector<std::future<absl::StatusOr<v1::ScoreResponse>>> calls;
  for (int i = 0; i < 66; ++i) {
    calls.push_back(std::async(std::launch::async, [this] {
      auto result = Call({"yes"});
      if (ReasonOf(result.status()) == "BUSY") judge_.Allow(100);
      return result;
    }));
  }
  int busy = 0, scored = 0;
  for (auto& call : calls) {
    const auto result = call.get();
    busy += ReasonOf(result.status()) == "BUSY";
    scored += result.ok();
  }
  EXPECT_EQ(busy, 1);
  EXPECT_EQ(scored, 65);
}

TEST_F(ScoreServiceTest, CallsEndWhenTheJobLeaves) {
  ScoreByJudge(/*most=*/1);
  std::vector<std::future<absl::StatusOr<v1::ScoreResponse>>> calls;
  for (int i = 0; i < 3; ++i)
    calls.push_back(std::async(std::launch::async, [this] { return Call({"yes"}); }));
  judge_.AwaitAsked(1);

  judge_.Stop();
  scores_.RemoveJob(kJobId);
  int faults = 0;
  for (auto& call : calls) {
    const auto result = call.get();
    if (result.ok()) faults += result->scores(0).status() == "fault";
    else EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  }
  EXPECT_GE(faults, 1) << "the call that was being scored";
}

TEST_F(ScoreServiceTest, LaterCallsAreScoredByNewRewards) {
  ScoreByText();
  const uint32_t before = Call({"yes"})->generation();
  scores_.SetJob(
      kJobId,
      *Scorer::Make({{.name = "right", .verifier = "exact", .args = {{"ignore_case", true}}}},
                    Combine::kSum),
      1);
  const auto after = Call({"YES"});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->scores(0).reward(), 1);
  EXPECT_NE(after->generation(), before);
}

}  // namespace
}  // namespace sluice::reward
