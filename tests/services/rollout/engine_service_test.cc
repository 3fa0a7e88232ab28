#include <thread>

#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sluice/engine/v1/engine.pb.h"
#include "tests/services/rollout/session_fixture.h"

namespace sluice::rollout {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Milliseconds(50);

class EngineServiceTest : public SessionTest {
 protected:
  static common::v1::Call CallOf(const std::string& worker, int64_t incarnation, const std::string& job = kJob) {
    common::v1::Call call;
    call.mutable_job()->set_job(job);
    call.mutable_job()->set_worker(worker);
    call.mutable_job()->set_incarnation(incarnation);
    return call;
  }

  // What is not known yet is asked for again, for `give_up`.
  absl::StatusOr<engine::v1::DescribeResponse> Describe(const std::string& job = kJob, absl::Duration give_up = absl::Seconds(30)) {
    engine::v1::DescribeRequest request;
    *request.mutable_call() = CallOf("someone", 0, job);
    engine::v1::DescribeResponse response;
    const absl::Status status = rpc::Call(*Channel(), request, &response, {.give_up = give_up});
    if (!status.ok()) return status;
    return response;
  }

  // A prompt of "4821=" and up to `max_tokens` tokens behind it, as reward-0 asks for them.
  engine::v1::GenerateRequest Ask(uint32_t max_tokens, uint32_t n = 1) {
    engine::v1::GenerateRequest request;
    *request.mutable_call() = CallOf("reward-0", 1);
    for (const int32_t id : Prompt()) request.add_prompt(static_cast<uint32_t>(id));
    request.mutable_sampling()->set_temperature(1);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_ignore_eos(true);
    request.set_seed(GroupSeed(kJobSeed, 0));
    request.set_n(n);
    return request;
  }
  std::vector<int32_t> Prompt() {
    const auto renderer = *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
    return renderer->Render("digits", R"({"prompt": "4821"})")->tokens;
  }

  struct Generated {
    Answer answer;
    std::string text;
  };
  // By member; how the call ended.
  std::map<uint32_t, Generated> Generate(const engine::v1::GenerateRequest& request, absl::Status* status) {
    const auto channel = Channel();
    rpc::ClientStream stream(*channel, *request.GetDescriptor());
    stream.Write(request);
    stream.WritesDone();
    std::map<uint32_t, Generated> all;
    engine::v1::GenerateResponse grown;
    while (stream.Read(&grown)) {
      EXPECT_EQ(grown.tokens_size(), grown.logprobs_size());
      auto& [answer, text] = all[grown.member()];
      EXPECT_EQ(answer.finish, common::v1::FINISH_UNSPECIFIED) << "nothing follows the end";
      answer.tokens.insert(answer.tokens.end(), grown.tokens().begin(), grown.tokens().end());
      answer.logprobs.insert(answer.logprobs.end(), grown.logprobs().begin(), grown.logprobs().end());
      for (const common::v1::VersionRun& run : grown.runs()) answer.runs.push_back(rpc::FromProto(run));
      answer.finish = grown.finish();
      text += grown.text();
    }
    *status = stream.Finish();
    return all;
  }
  absl::Status Refusal(const engine::v1::GenerateRequest& request) {
    absl::Status status;
    EXPECT_TRUE(Generate(request, &status).empty());
    return status;
  }

  // Starts a worker and waits until the version samples.
  Session* Serve(int64_t number, uint64_t seed) {
    Session* const session = sessions_.empty() ? StartSession("rollout-0") : sessions_.front().get();
    Publish(number, seed);
    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (session->serving() != PolicyVersion{1, number} && Clock::Real()->Monotonic() < until) std::this_thread::yield();
    EXPECT_EQ(session->serving(), (PolicyVersion{1, number}));
    return session;
  }
};

TEST_F(EngineServiceTest, DescribeTellsTheModelAndTheVersionThatSamples) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  EXPECT_EQ(ReasonOf(Describe(kJob, kSoon).status()), "NOT_LISTED");
  Session* const session = StartSession("rollout-0");
  const auto before = Describe();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->loaded_size(), 0) << "none is published yet";
  Publish(0, kInitSeed);
  TakeBatch(0);
  const auto described = Describe();
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_TRUE(described->caps().exact_stamps());
  EXPECT_TRUE(described->caps().deterministic());
  EXPECT_EQ(described->model().size(), 32u);
  EXPECT_EQ(described->layout(), session->layout());
  ASSERT_EQ(described->loaded_size(), 1);
  EXPECT_EQ(rpc::FromProto(described->loaded(0).version()), (PolicyVersion{1, 0}));
  EXPECT_EQ(described->slots(), session->engine().slots());
  EXPECT_EQ(described->max_context(), session->engine().max_context());
  EXPECT_THAT(std::string(Describe("another", kSoon).status().message()), HasSubstr("job 'another'"));
}

TEST_F(EngineServiceTest, GenerateDrawsWhatTheEngineAloneDrawsFromTheSeed) {
  ASSERT_NO_FATAL_FAILURE(StartJob(/*max_response=*/40, /*endless=*/true));
  Session* const session = Serve(0, kInitSeed);
  absl::Status status;
  const auto answers = Generate(Ask(40, /*n=*/3), &status);
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(answers.size(), 3u);
  for (const auto& [member, generated] : answers) {
    const Answer expected = Expected(0, member, "4821", 40, true);
    EXPECT_EQ(generated.answer.tokens, expected.tokens);
    EXPECT_EQ(generated.answer.logprobs, expected.logprobs);
    EXPECT_EQ(generated.answer.finish, common::v1::FINISH_LENGTH);
    for (const VersionRun& run : generated.answer.runs) EXPECT_EQ(run.version, (PolicyVersion{1, 0}));
    EXPECT_EQ(generated.text, session->renderer().AnswerText(expected.tokens));
  }
}

TEST_F(EngineServiceTest, GenerateRefusesWhoMayNotAskAndWhomItDoesNotKnow) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  Serve(0, kInitSeed);
  engine::v1::GenerateRequest request = Ask(4);
  *request.mutable_call() = CallOf("trainer-0", 1);
  EXPECT_EQ(ReasonOf(Refusal(request)), "WRONG_ROLE");
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kPermissionDenied);
  *request.mutable_call() = CallOf("reward-0", 1, "another");
  EXPECT_EQ(ReasonOf(Refusal(request)), "NOT_LISTED");
  *request.mutable_call() = CallOf("reward-9", 1);
  EXPECT_EQ(ReasonOf(Refusal(request)), "NOT_LISTED");
  *request.mutable_call() = CallOf("reward-0", 0);
  EXPECT_EQ(ReasonOf(Refusal(request)), "FENCED");
  *request.mutable_call() = CallOf("someone", 0);  // An operator.
  absl::Status status;
  EXPECT_EQ(Generate(request, &status).size(), 1u);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(EngineServiceTest, AVersionThatIsNotLoadedIsRefusedWithTheOneThatIs) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  StartSession("rollout-0");
  EXPECT_THAT(std::string(Refusal(Ask(4)).message()), HasSubstr("no published version is loaded yet"));
  Serve(0, kInitSeed);
  engine::v1::GenerateRequest request = Ask(4);
  *request.mutable_version() = rpc::ToProto(PolicyVersion{1, 1});
  const absl::Status early = Refusal(request);
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(early), "NOT_YET");
  EXPECT_THAT(std::string(early.message()), HasSubstr("version 1:1 is asked for; version 1:0 is loaded"));
  TakeBatch(0);
  Serve(1, kInitSeed + 1);
  absl::Status status;
  const auto answers = Generate(request, &status);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(answers.at(0).answer.runs.front().version, (PolicyVersion{1, 1}));
  *request.mutable_version() = rpc::ToProto(PolicyVersion{1, 0});
  EXPECT_EQ(ReasonOf(Refusal(request)), "NOT_YET");
}

TEST_F(EngineServiceTest, WhatGenerateCannotDoIsRefusedWithValueLimitAndNextStep) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);
  const auto refusal = [&](const engine::v1::GenerateRequest& request) {
    const absl::Status status = Refusal(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Ask(100)), HasSubstr("tokens and max_tokens is 100; this model's context holds 48; shorten the one or lower the other"));
  EXPECT_THAT(refusal(Ask(4, /*n=*/1000)), HasSubstr("n is 1000; at most 128"));
  engine::v1::GenerateRequest request = Ask(4);
  request.set_messages(R"([{"role": "user", "content": "4821"}])");
  EXPECT_THAT(refusal(request), HasSubstr("give one of them"));
  request.clear_prompt();
  EXPECT_THAT(refusal(request), HasSubstr("no chat template"));
  request.set_messages(R"([{"role": "king", "content": "4821"}])");
  EXPECT_THAT(refusal(request), HasSubstr("messages[0].role is \"king\""));
  request.clear_messages();
  EXPECT_THAT(refusal(request), HasSubstr("neither prompt nor messages"));
  request.add_prompt(100'000);
  EXPECT_THAT(refusal(request), HasSubstr("token 100000 is outside the vocabulary"));
  request = Ask(4);
  request.set_priority(static_cast<engine::v1::Priority>(77));
  EXPECT_THAT(refusal(request), HasSubstr("priority 77"));
  request = Ask(4);
  request.mutable_sampling()->set_top_p(2);
  EXPECT_THAT(refusal(request), HasSubstr("top_p is 2"));
}

TEST_F(EngineServiceTest, AClientThatLeavesLeavesNoRequestBehind) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);
  for (int i = 0; i < 10; ++i) {
    const auto channel = Channel();
    const engine::v1::GenerateRequest request = Ask(40, /*n=*/128);
    rpc::ClientStream stream(*channel, *request.GetDescriptor());
    stream.Write(request);
    engine::v1::GenerateResponse grown;
    ASSERT_TRUE(stream.Read(&grown)) << stream.Finish();
    stream.TryCancel();
    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (guests_.running() > 0 && Clock::Real()->Monotonic() < until) std::this_thread::yield();
    ASSERT_EQ(guests_.running(), 0u);
  }
}

}  // namespace
}  // namespace sluice::rollout
