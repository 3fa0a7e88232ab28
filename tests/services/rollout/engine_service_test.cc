#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/payload.h"
#include "common/rpc/stream.h"
#include "common/scoring/job_scorer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/rollout/core/eval/eval.h"
#include "services/rollout/core/eval/local_scorer.h"
#include "services/rollout/generate_stream.h"
#include "sluice/engine/v1/engine.pb.h"
#include "tests/services/rollout/session_fixture.h"

namespace sluice::rollout {
namespace {

using testing::HasSubstr;

class EngineServiceTest : public SessionTest {
 protected:
  static common::v1::Call CallOf(const std::string& worker, int64_t incarnation,
                                 const std::string& job = kJob) {
    common::v1::Call call;
    call.mutable_job()->set_job(job);
    call.mutable_job()->set_worker(worker);
    call.mutable_job()->set_incarnation(incarnation);
    return call;
  }

  // Makes one attempt, because a call about a job that is not known yet would be repeated.
  absl::StatusOr<engine::v1::DescribeResponse> Describe(const std::string& job = kJob) {
    engine::v1::DescribeRequest request;
    *request.mutable_call() = CallOf("someone", 0, job);
    const auto channel = Channel();
    rpc::ClientStream call(*channel, *request.GetDescriptor());
    call.Write(request);
    call.WritesDone();
    engine::v1::DescribeResponse response;
    (void)call.Read(&response);
    if (absl::Status status = call.Finish(); !status.ok()) return status;
    return response;
  }

  // Asks, as reward-0, for up to `max_tokens` tokens after the prompt "4821=".
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
    const auto renderer =
        *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
    return renderer->Render("digits", R"({"prompt": "4821"})")->tokens;
  }

  struct Generated {
    Answer answer;
    std::string text;
  };
  // Returns what came, by member. `status` is how the call ended.
  std::map<uint32_t, Generated> Generate(const engine::v1::GenerateRequest& request,
                                         absl::Status* status) {
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
      answer.logprobs.insert(answer.logprobs.end(), grown.logprobs().begin(),
                             grown.logprobs().end());
      for (const common::v1::VersionRun& run : grown.runs())
        answer.runs.push_back(rpc::FromProto(run));
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

  // What Score is sent: the prompt of a group, and answers that follow it.
  struct Scored {
    engine::v1::ScoreHeader header;
    std::string payload;
  };
  Scored AskScores(const std::vector<std::vector<int32_t>>& answers, double temperature = 1) {
    Scored scored;
    *scored.header.mutable_call() = CallOf("reward-0", 1);
    scored.header.set_temperature(temperature);
    const std::vector<int32_t> prompt = Prompt();
    AddPiece({}, 0, 0, common::v1::SEGMENT_ROLE_PROMPT, prompt, &scored);
    // Each answer is sent in two pieces.
    for (uint32_t member = 0; member < answers.size(); ++member) {
      const auto half =
          answers[member].begin() + static_cast<ptrdiff_t>(answers[member].size() / 2);
      AddPiece(member, prompt.size(), 1, common::v1::SEGMENT_ROLE_SAMPLED,
               {answers[member].begin(), half}, &scored);
      AddPiece(member, prompt.size() + answers[member].size() / 2, 1,
               common::v1::SEGMENT_ROLE_SAMPLED, {half, answers[member].end()}, &scored);
    }
    return scored;
  }

  static void AddPiece(std::optional<uint32_t> member, size_t at, uint32_t segment,
                       common::v1::SegmentRole role, const std::vector<int32_t>& tokens,
                       Scored* scored) {
    common::v1::Record& record = *scored->header.add_records();
    record.mutable_owner()->set_group(std::string(16, 'g'));
    if (member) record.mutable_owner()->set_member(*member);
    record.mutable_piece()->set_at(at);
    record.mutable_piece()->set_segment(segment);
    record.mutable_piece()->set_role(role);
    record.mutable_piece()->set_count(static_cast<uint32_t>(tokens.size()));
    AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(tokens.size())}, Bytes(tokens),
             &record, &scored->payload);
  }

  // Records and their log-probs, in the order they came in.
  using Scores = std::vector<std::pair<common::v1::Record, std::vector<float>>>;
  Scores Score(const Scored& asked, absl::Status* status) {
    const auto channel = Channel();
    rpc::ClientStream stream(*channel, *engine::v1::ScoreRequest::descriptor());
    EXPECT_TRUE(stream.WriteFrame(asked.header, {{.bytes = asked.payload}}).ok());
    stream.WritesDone();
    Scores scores;
    for (rpc::Frame frame; stream.ReadFrame(&frame); frame = rpc::Frame()) {
      engine::v1::ScoreResponseHeader header;
      EXPECT_TRUE(frame.ParseHeader(&header).ok());
      rpc::PayloadReader payload(frame);
      for (const common::v1::Record& record : header.records()) {
        auto& [copy, logprobs] = scores.emplace_back(record, std::vector<float>());
        for (const common::v1::Field& field : record.fields()) {
          EXPECT_EQ(field.name(), "logprobs");
          logprobs.resize(field.bytes() / sizeof(float));
          EXPECT_EQ(
              payload.Copy(field.bytes(), reinterpret_cast<char*>(logprobs.data())).value_or(0),
              field.crc32c());
        }
      }
      EXPECT_EQ(payload.left(), 0u);
    }
    *status = stream.Finish();
    return scores;
  }

  absl::Status Refusal(const Scored& asked) {
    absl::Status status;
    (void)Score(asked, &status);
    return status;
  }

  // Starts a worker if there is none, publishes version `number`, and waits until that samples.
  Session* Serve(int64_t number, uint64_t seed) {
    Session* const session =
        sessions_.empty() ? StartSession("rollout-0") : sessions_.front().get();
    Publish(number, seed);

    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (session->serving() != PolicyVersion{1, number} && Clock::Real()->Monotonic() < until)
      std::this_thread::yield();
    EXPECT_EQ(session->serving(), (PolicyVersion{1, number}));
    return session;
  }

  // Waits until no request of a guest runs, because the engine has heard that their calls ended.
  // Returns false if some still run after 60 s.
  bool AwaitNoGuests() {
    const absl::Duration until = Clock::Real()->Monotonic() + absl::Seconds(60);
    while (Clock::Real()->Monotonic() < until) {
      if (guests_.running() == 0) return true;
      std::this_thread::yield();
    }
    return false;
  }
};

TEST_F(EngineServiceTest, DescribeTellsTheModelAndTheVersionThatSamples) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  EXPECT_EQ(ReasonOf(Describe().status()), "NOT_LISTED");

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
  EXPECT_EQ(described->layout(), session->layout_id());
  ASSERT_EQ(described->loaded_size(), 1);
  EXPECT_EQ(rpc::FromProto(described->loaded(0).version()), (PolicyVersion{1, 0}));
  EXPECT_EQ(described->slots(), session->engine().slots());
  EXPECT_EQ(described->max_context(), session->engine().max_context());
  EXPECT_THAT(std::string(Describe("another").status().message()),
              HasSubstr("job another is not known here"));

  Serve(1, kInitSeed + 1);  // Other weights replace those that the engine began with.
  const auto switched = Describe();
  ASSERT_TRUE(switched.ok()) << switched.status();
  EXPECT_EQ(switched->layout(), before->layout());
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
    for (const VersionRun& run : generated.answer.runs)
      EXPECT_EQ(run.version, (PolicyVersion{1, 0}));
    EXPECT_EQ(generated.text, session->renderer().AnswerText(expected.tokens));
  }
}

TEST_F(EngineServiceTest, MessagesAreRenderedByTheJobsTemplate) {
  const std::string path = testing_data::TempPath("engine_service.jinja");
  ASSERT_TRUE(WriteFileAtomic(path, "{% for m in messages %}{{ m.content }}={% endfor %}").ok());
  spec_.mutable_model()->set_chat_template(path);
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);

  engine::v1::GenerateRequest ids = Ask(20), messages = ids;
  ids.clear_prompt();
  for (const int32_t id : Prompt()) {
    // A template writes special tokens itself. This one writes none, so leave out token 1, <s>.
    if (id != 1) ids.add_prompt(static_cast<uint32_t>(id));
  }
  messages.clear_prompt();
  messages.set_messages(R"([{"role": "user", "content": "4821"}])");

  absl::Status status;
  const auto by_ids = Generate(ids, &status), by_messages = Generate(messages, &status);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(by_messages.at(0).answer.tokens, by_ids.at(0).answer.tokens);
  EXPECT_EQ(by_messages.at(0).answer.logprobs, by_ids.at(0).answer.logprobs);
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

  *request.mutable_call() = CallOf("someone", 0);  // An operator is no worker, and may ask.
  absl::Status status;
  EXPECT_EQ(Generate(request, &status).size(), 1u);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(EngineServiceTest, AVersionThatIsNotLoadedIsRefusedWithTheOneThatIs) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  StartSession("rollout-0");
  EXPECT_THAT(std::string(Refusal(Ask(4)).message()),
              HasSubstr("no published version is loaded yet"));

  Serve(0, kInitSeed);
  engine::v1::GenerateRequest request = Ask(4);
  *request.mutable_version() = rpc::ToProto(PolicyVersion{1, 1});

  const absl::Status early = Refusal(request);
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(early), "NOT_YET");
  EXPECT_THAT(std::string(early.message()),
              HasSubstr("version 1:1 is asked for; version 1:0 is loaded"));

  TakeBatch(0);
  Serve(1, kInitSeed + 1);
  absl::Status status;
  const auto answers = Generate(request, &status);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(answers.at(0).answer.runs.front().version, (PolicyVersion{1, 1}));

  *request.mutable_version() = rpc::ToProto(PolicyVersion{1, 0});
  EXPECT_EQ(ReasonOf(Refusal(request)), "NOT_YET");
}

TEST_F(EngineServiceTest, ACallForAVersionEndsWhereAnotherIsSwitchedIn) {
  const absl::Status raced = CheckSameVersion(PolicyVersion{1, 0}, {1, 1});
  EXPECT_EQ(raced.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(raced), "LOST_RACE");
  EXPECT_EQ(DetailOf(raced).current, "1:1");
  EXPECT_TRUE(CheckSameVersion(PolicyVersion{1, 1}, {1, 1}).ok());
  EXPECT_TRUE(CheckSameVersion(std::nullopt, {1, 1}).ok());
}

TEST_F(EngineServiceTest, WhatGenerateCannotDoIsRefusedWithValueLimitAndNextStep) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);
  const auto refusal = [&](const engine::v1::GenerateRequest& request) {
    const absl::Status status = Refusal(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };

  EXPECT_THAT(refusal(Ask(100)), HasSubstr("tokens and max_tokens is 100; this model's context "
                                           "holds 48; shorten the prompt or lower max_tokens"));
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
  EXPECT_THAT(refusal(request), HasSubstr("priority: 77 is not a value"));

  request = Ask(4);
  request.mutable_sampling()->set_top_p(2);
  EXPECT_THAT(refusal(request), HasSubstr("top_p is 2"));
}

TEST_F(EngineServiceTest, WhatGenerateDrewScoresInTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);
  for (const double temperature : {1.0, 0.7}) {
    engine::v1::GenerateRequest request = Ask(40, /*n=*/20);  // More than are scored at once.
    request.mutable_sampling()->set_temperature(temperature);
    absl::Status status;
    const auto generated = Generate(request, &status);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<std::vector<int32_t>> answers;
    for (const auto& [member, one] : generated) answers.push_back(one.answer.tokens);

    const Scores scores = Score(AskScores(answers, temperature), &status);
    EXPECT_TRUE(status.ok()) << status;
    ASSERT_EQ(scores.size(), 1 + 2 * answers.size());
    EXPECT_FALSE(scores[0].first.owner().has_member());
    EXPECT_TRUE(scores[0].second.empty()) << "the prompt comes back as it went";

    for (uint32_t member = 0; member < answers.size(); ++member) {
      std::vector<float> logprobs;
      for (size_t piece : {1 + 2 * member, 2 + 2 * member}) {
        const auto& [record, of_piece] = scores[piece];
        EXPECT_EQ(record.owner().member(), member) << "in the order of the records";
        ASSERT_EQ(record.piece().runs_size(), 1);
        EXPECT_EQ(rpc::FromProto(record.piece().runs(0)),
                  (VersionRun{.version = {1, 0}, .count = record.piece().count()}));
        logprobs.insert(logprobs.end(), of_piece.begin(), of_piece.end());
      }

      EXPECT_EQ(logprobs, generated.at(member).answer.logprobs);
    }
  }
}

TEST_F(EngineServiceTest, AFullContextIsScoredAndOneTokenMoreIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Serve(0, kInitSeed);
  const size_t room = 48 - Prompt().size();  // The context is max_prompt + max_response = 8 + 40.
  absl::Status status;
  EXPECT_EQ(Score(AskScores({std::vector<int32_t>(room, 5)}), &status).size(), 3u);
  EXPECT_TRUE(status.ok()) << status;

  status = Refusal(AskScores({std::vector<int32_t>(room + 1, 5)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("it ends at 49; this model's context holds 48 tokens: send fewer"));
}

TEST_F(EngineServiceTest, ScoreRefusesWhatItCannotReadOrMayNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  Serve(0, kInitSeed);
  const Scored good = AskScores({{5, 6, 7, 8}});
  const auto refusal = [&](const std::function<void(Scored*)>& spoil) {
    Scored asked = good;
    spoil(&asked);
    return Refusal(asked);
  };
  const auto message = [&](const std::function<void(Scored*)>& spoil) {
    return std::string(refusal(spoil).message());
  };

  EXPECT_TRUE(refusal([](Scored*) {}).ok());
  EXPECT_EQ(
      ReasonOf(refusal([](Scored* s) { *s->header.mutable_call() = CallOf("trainer-0", 1); })),
      "WRONG_ROLE");
  EXPECT_EQ(ReasonOf(refusal([](Scored* s) { *s->header.mutable_call() = CallOf("someone", 0); })),
            "NOT_LISTED");
  EXPECT_EQ(ReasonOf(refusal(
                [](Scored* s) { *s->header.mutable_call() = CallOf("reward-0", 1, "another"); })),
            "NOT_LISTED");

  EXPECT_EQ(ReasonOf(refusal([](Scored* s) {
              *s->header.mutable_version() = rpc::ToProto(PolicyVersion{1, 7});
            })),
            "NOT_YET");
  EXPECT_EQ(ReasonOf(refusal(
                [](Scored* s) { s->header.mutable_records(1)->mutable_fields(0)->set_crc32c(1); })),
            "BAD_CRC");

  EXPECT_THAT(message([](Scored* s) { s->header.set_policy("reference"); }),
              HasSubstr("policy 'reference' is not held here"));
  EXPECT_THAT(message([](Scored* s) { s->header.set_temperature(-1); }),
              HasSubstr("temperature is -1"));
  EXPECT_THAT(message([](Scored* s) { s->header.mutable_records(2)->mutable_piece()->set_at(9); }),
              HasSubstr("the next piece must begin at 8"));
  EXPECT_THAT(
      message([](Scored* s) { s->header.mutable_records(1)->mutable_piece()->set_count(3); }),
      HasSubstr("4 bytes for each of the piece's 3"));
  EXPECT_THAT(
      message([](Scored* s) { s->header.mutable_records(1)->mutable_piece()->set_parent(7); }),
      HasSubstr("send each branch as a member of its own"));
  EXPECT_THAT(message([](Scored* s) { s->header.mutable_records(1)->set_more(true); }),
              HasSubstr("cut over messages"));

  EXPECT_THAT(message([](Scored* s) { s->payload.resize(s->payload.size() - 1); }),
              HasSubstr("the message ends before"));
  EXPECT_THAT(message([](Scored* s) { s->payload += "x"; }),
              HasSubstr("1 bytes that no record's field names"));
  EXPECT_THAT(std::string(Refusal(AskScores({{5, 99}})).message()), HasSubstr("token 99"));
}

TEST_F(EngineServiceTest, AnAnswerComesAsSoonAsARecordSaysThatItIsTheLast) {
  ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
  Serve(0, kInitSeed);
  const auto channel = Channel();
  rpc::ClientStream stream(*channel, *engine::v1::ScoreRequest::descriptor());
  Scored asked = AskScores({{5, 6}});
  asked.header.mutable_records(2)->set_last(true);

  rpc::Frame frame;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stream.WriteFrame(asked.header, {{.bytes = asked.payload}}).ok());
    ASSERT_TRUE(stream.ReadFrame(&frame)) << "the prompt";
    ASSERT_TRUE(stream.ReadFrame(&frame));
    EXPECT_EQ(frame.payload_bytes(), 2 * sizeof(float));
  }

  stream.WritesDone();
  EXPECT_FALSE(stream.ReadFrame(&frame));
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(EngineServiceTest, CallsEndWithTheJob) {
  ASSERT_NO_FATAL_FAILURE(StartJob(40, true));
  Session* const session = Serve(0, kInitSeed);
  const auto channel = Channel();
  const Scored asked = AskScores({{5, 6, 7}});
  rpc::ClientStream before(*channel, *engine::v1::ScoreRequest::descriptor());
  ASSERT_TRUE(before.WriteFrame(asked.header, {{.bytes = asked.payload}}).ok());
  rpc::Frame frame;
  ASSERT_TRUE(before.ReadFrame(&frame))
      << "the prompt; the answer waits for the end of the requests";
  session->Stop(absl::ZeroDuration());
  before.WritesDone();

  EXPECT_FALSE(before.ReadFrame(&frame));
  EXPECT_EQ(before.Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Refusal(Ask(4)).message()), HasSubstr("the job is leaving this worker"));

  engine_->RemoveJob(kJob, absl::UnavailableError("gone"));
  EXPECT_EQ(ReasonOf(Refusal(Ask(4))), "NOT_LISTED");
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
    ASSERT_TRUE(AwaitNoGuests());

    const Scored asked =
        AskScores(std::vector<std::vector<int32_t>>(100, std::vector<int32_t>(40, 5)));
    rpc::ClientStream scores(*channel, *engine::v1::ScoreRequest::descriptor());
    ASSERT_TRUE(scores.WriteFrame(asked.header, {{.bytes = asked.payload}}).ok());
    rpc::Frame frame;
    ASSERT_TRUE(scores.ReadFrame(&frame)) << scores.Finish();
    scores.TryCancel();
    (void)scores.Finish();
    ASSERT_TRUE(AwaitNoGuests());
  }
}

class EvaluateTest : public EngineServiceTest {
 protected:
  // Starts a job that evaluates 60 rows of four digits, as the example does.
  void StartEvaluating(uint32_t samples = 1, double temperature = 0) {
    std::string rows;
    for (int i = 0; i < 60; ++i) absl::StrAppend(&rows, "{\"digits\": \"", 1000 + 37 * i, "\"}\n");
    data_ = testing_data::TempPath("evaluate_rows.jsonl");
    ASSERT_TRUE(WriteFileAtomic(data_, rows).ok());

    job::v1::RewardEntry& reward = *spec_.mutable_reward()->add_rewards();
    reward.set_name("reversed");
    reward.set_verifier("text");
    reward.set_weight(1);
    (*reward.mutable_args()->mutable_fields())["property"].set_string_value("reversed");

    job::v1::Eval& eval = *spec_.mutable_eval();
    eval.set_every_steps(10);
    eval.set_samples(samples);
    eval.set_temperature(temperature);
    eval.set_share(0.1);

    job::v1::DataSource& dataset = *eval.add_datasets();
    dataset.set_name("heldout");
    dataset.set_path(data_);
    dataset.set_prompt("digits");
    dataset.set_answer("digits");
    dataset.set_format("{digits}=");

    ASSERT_NO_FATAL_FAILURE(StartJob(7, false));
    Serve(0, kInitSeed);
  }

  engine::v1::EvaluateRequest Ask(const PublishedVersion& version,
                                  const std::string& dataset = "heldout") {
    engine::v1::EvaluateRequest request;
    *request.mutable_call() = CallOf("trainer-0", 1);
    *request.mutable_version() = rpc::ToProto(version.version);
    request.set_manifest(version.manifest);
    request.set_state(version.state.bytes());
    request.set_dataset(dataset);
    return request;
  }

  absl::StatusOr<engine::v1::EvaluationResult> Evaluate(
      const engine::v1::EvaluateRequest& request) {
    const auto channel = Channel();
    rpc::ClientStream stream(*channel, *request.GetDescriptor());
    stream.Write(request);
    stream.WritesDone();
    std::optional<engine::v1::EvaluationResult> result;
    for (engine::v1::EvaluateResponse response; stream.Read(&response);) {
      if (response.has_result()) result = response.result();
    }
    if (absl::Status status = stream.Finish(); !status.ok()) return status;
    return *result;
  }

  // Evaluates the random weights of `seed` in an engine that does nothing else.
  EvalResult Alone(uint64_t seed) {
    EvalOptions options;
    options.engine = {.model_path = kModel,
                      .random_init = true,
                      .init_seed = seed,
                      .slots = 8,
                      .max_context = 15};  // max_prompt + max_response = 8 + 7.
    options.chat_template = "none";
    options.format = "{digits}=";
    options.data_path = data_;
    options.fields = {{"prompt", "digits"}, {"answer", "digits"}};
    options.sampling = {.temperature = static_cast<float>(spec_.eval().temperature()),
                        .max_tokens = 7};
    options.samples = spec_.eval().samples();
    options.seed = spec_.run().seed();

    const Scorer scorer = *MakeScorer(spec_.reward());
    return *sluice::Evaluate(options, MakeLocalScorer(&scorer, "heldout"));
  }

  std::string data_;
};

TEST_F(EvaluateTest, AnEvaluationIsOfTheVersionAskedForWhateverSamplesMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluating(/*samples=*/4, /*temperature=*/1));
  const PublishedVersion first = *publisher_->latest();
  TakeBatch(0);
  Publish(1, 106);

  for (const auto& [version, seed] :
       {std::pair(first, kInitSeed), {*publisher_->latest(), uint64_t{106}}}) {
    const auto result = Evaluate(Ask(version));
    ASSERT_TRUE(result.ok()) << result.status();

    const EvalResult alone = Alone(seed);
    EXPECT_EQ(result->rows(), 60u);
    EXPECT_EQ(result->answers(), 240u);
    EXPECT_EQ(result->reward(), alone.score_mean) << "seed " << seed;
    EXPECT_EQ(result->truncated(), alone.truncated);
    EXPECT_EQ(result->tokens(), alone.tokens);
  }

  EXPECT_NE(Alone(kInitSeed).score_mean, Alone(106).score_mean);
}

TEST_F(EvaluateTest, DrawnAnswersAreTheSameEachTime) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluating(/*samples=*/4, /*temperature=*/1));
  const auto once = Evaluate(Ask(*publisher_->latest()));
  const auto again = Evaluate(Ask(*publisher_->latest()));
  ASSERT_TRUE(once.ok() && again.ok()) << once.status() << again.status();
  EXPECT_EQ(once->answers(), 240u);
  EXPECT_EQ(once->reward(), again->reward());
  EXPECT_EQ(once->pass().at(4), again->pass().at(4));
}

TEST_F(EvaluateTest, ACallThatEndsEndsItsEvaluationAndAnotherMayBegin) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluating(/*samples=*/20, /*temperature=*/1));
  const engine::v1::EvaluateRequest request = Ask(*publisher_->latest());
  const auto channel = Channel();
  for (int i = 0; i < 3; ++i) {
    rpc::ClientStream stream(*channel, *request.GetDescriptor());
    stream.Write(request);
    stream.WritesDone();
    stream.TryCancel();
    EXPECT_FALSE(stream.Finish().ok());
  }

  absl::StatusOr<engine::v1::EvaluationResult> result = absl::UnknownError("not asked");
  // As long as the evaluation of an earlier call has not ended, another one is refused.
  do result = Evaluate(request);
  while (ReasonOf(result.status()) == "BUSY");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answers(), 1200u);
}

TEST_F(EvaluateTest, WhatCannotBeEvaluatedIsRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(StartEvaluating());
  const PublishedVersion version = *publisher_->latest();
  EXPECT_THAT(std::string(Evaluate(Ask(version, "train")).status().message()),
              HasSubstr("have no \"train\""));

  engine::v1::EvaluateRequest request = Ask(version);
  *request.mutable_call() = CallOf("reward-0", 1);
  EXPECT_EQ(Evaluate(request).status().code(), absl::StatusCode::kPermissionDenied);

  ASSERT_TRUE(WriteFileAtomic(data_, "{\"other\": 1}\n").ok());
  EXPECT_THAT(std::string(Evaluate(Ask(version)).status().message()), HasSubstr("digits"));

  ASSERT_TRUE(WriteFileAtomic(data_, "{\"digits\": \"123456789\"}\n").ok());
  EXPECT_THAT(std::string(Evaluate(Ask(version)).status().message()), HasSubstr("1 are too long"));
}

TEST(NiceTest, AShareOfABusyProcessorIsANiceValue) {
  EXPECT_EQ(NiceValueFor(1), 0);
  EXPECT_EQ(NiceValueFor(0.5), 0);
  EXPECT_EQ(NiceValueFor(0.1), 10);
  EXPECT_EQ(NiceValueFor(0.01), 19);
}

}  // namespace
}  // namespace sluice::rollout
