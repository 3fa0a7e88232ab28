#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/init.h"
#include "common/rpc/caller.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/testing/data.h"
#include "common/testing/queue_spec.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "gtest/gtest.h"
#include "services/queue/jobs.h"
#include "services/queue/metrics.h"
#include "services/queue/service.h"
#include "services/rollout/core/engine/native/native_engine.h"
#include "services/rollout/http/guests.h"
#include "services/rollout/metrics.h"
#include "services/rollout/service.h"
#include "services/rollout/session.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::rollout {
inline constexpr char kJob[] = "0123456789abcdef0123456789abcdef";
inline constexpr char kModel[] = SLUICE_SOURCE_DIR "/configs/examples/digits";
inline constexpr uint64_t kJobSeed = 7, kInitSeed = 3;

// One answer as the trainer reads it.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<VersionRun> runs;
  uint32_t attempt = 0;
  common::v1::Finish finish = common::v1::FINISH_UNSPECIFIED;
  std::string messages, ends;
  std::vector<absl::Duration> durations;  // Those of pieces that have one.
};
using Answers = std::map<std::pair<uint64_t, uint32_t>, Answer>;  // By group ordinal and member.

// A queue and a server of weights in this process. The test is controller and trainer; it starts
// sessions of the rollout daemon, which are tested.
class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* worker : {"rollout-0", "rollout-1"})
      callers_list_.push_back({worker, rpc::Role::kRollout, 1});
    callers_list_.push_back({"trainer-0", rpc::Role::kTrainer, 1});
    callers_list_.push_back({"reward-0", rpc::Role::kReward, 1});
    callers_.SetJob(kJob, callers_list_);

    publisher_ =
        std::make_shared<WeightPublisher>(WeightPublisher::Options{.job = kJob}, Clock::Real());
    weights_ = std::make_unique<WeightsServer>(&callers_);
    weights_->SetPublisher(kJob, publisher_);

    jobs_ = std::make_unique<queue::JobTable>(queue::JobTable::Options{});
    jobs_->SetIncarnation(1);
    queue_metrics_ = std::make_unique<queue::Metrics>(&registry_);
    queue_ = std::make_unique<queue::QueueServer>(jobs_.get(), queue_metrics_.get());
    engine_ = std::make_unique<EngineServer>(&callers_, &guests_);

    grpc::Service* const services[] = {queue_->service(), weights_->service(), engine_->service()};
    server_ = *rpc::Server::Start({}, services);
    model_ = *ReadModelDir(kModel);
  }

  void TearDown() override {
    // A call that ends late may still hold a session, so clear() alone may not stop it.
    for (const auto& session : sessions_) session->Stop(absl::ZeroDuration());
    engine_->RemoveJob(kJob, absl::UnavailableError("the test ends"));
    sessions_.clear();
    queue_->Stop();
    jobs_->Stop();
    weights_->Shutdown();
    engine_->Shutdown();
    server_->Drain(absl::Seconds(1));
  }

  // Sets a job of two groups of four members per step. Answers have up to `max_response` tokens; if
  // `endless`, the end token does not end them.
  void StartJob(uint32_t max_response, bool endless,
                const std::string& rows = "{\"digits\": \"4821\"}\n{\"digits\": \"900\"}\n") {
    const std::string data = testing_data::TempPath("session_rows.jsonl");
    ASSERT_TRUE(WriteFileAtomic(data, rows).ok());
    spec_.set_name("session");
    spec_.mutable_model()->mutable_init()->set_config(kModel);
    spec_.mutable_model()->mutable_init()->set_seed(kInitSeed);
    spec_.mutable_model()->set_max_context(64);
    job::v1::DataSource* const source = spec_.mutable_data()->add_train();
    source->set_name("digits");
    source->set_prompt("digits");
    source->set_answer("digits");
    source->set_format("{digits}=");
    spec_.mutable_data()->mutable_order()->set_max_prompt(8);
    spec_.mutable_rollout()->set_max_response(max_response);
    spec_.mutable_rollout()->set_piece(4);
    spec_.mutable_rollout()->mutable_group()->set_size(4);
    spec_.mutable_rollout()->mutable_sampling()->set_temperature(1);
    spec_.mutable_rollout()->mutable_sampling()->set_top_p(1);

    queue::v1::SetJobRequest set;
    set.mutable_call()->mutable_job()->set_job(kJob);
    set.mutable_call()->mutable_job()->set_worker("controller");
    set.set_revision(1);
    set.set_phase(queue::v1::PHASE_OPEN);
    queue::v1::QueueSpec& q = *set.mutable_spec();
    q = SmallQueueSpec(data);
    q.clear_tasks();  // Without a reward, a group is complete when its members are sealed.
    q.set_job_name("session");
    q.set_seed(kJobSeed);
    q.set_group_size(4);
    q.set_group_min(4);
    q.mutable_queue()->set_max_staleness(2);
    q.set_max_version_span(2);
    q.set_max_steps(100);
    q.mutable_queue()->mutable_straggler()->set_policy("drop");
    q.mutable_queue()->mutable_keep()->set_quota(64 << 20);
    *q.mutable_queue()->mutable_straggler()->mutable_wait() = rpc::ToProto(absl::Seconds(600));
    q.mutable_queue()->mutable_straggler()->set_reissues(2);
    q.set_max_rejected_steps(10);
    q.set_member_tokens(8 + max_response);  // The prompt has at most max_prompt = 8 tokens.
    q.set_token_bytes(64);
    queue::v1::Source& file = *q.mutable_sources(0);
    file.set_name("digits");
    file.set_format(queue::v1::SOURCE_FORMAT_JSONL);
    (*file.mutable_fields())["prompt"] = "digits";
    (*file.mutable_fields())["answer"] = "digits";
    q.mutable_sampling()->set_temperature(1);
    q.mutable_sampling()->set_max_tokens(max_response);
    q.mutable_sampling()->set_ignore_eos(endless);

    for (const rpc::CallerTable::Worker& worker : callers_list_) {
      common::v1::Worker& w = *set.add_workers();
      w.set_id(worker.id);
      w.set_role(static_cast<rpc::v1::Role>(worker.role));
      w.set_incarnation(worker.incarnation);
    }
    queue::v1::SetJobResponse answer;
    const absl::Status status = rpc::Call(*Channel(), set, &answer);
    ASSERT_TRUE(status.ok()) << status;

    trainer_ = std::make_unique<QueueClient>(
        Channel(), QueueClient::Options{.job = kJob, .worker = "trainer-0", .incarnation = 1});

    // The queue refuses a trainer's other calls until it has restored.
    queue::v1::RestoreRequest restore;
    restore.set_mode(queue::v1::RESTORE_MODE_REPLAY);
    const auto restored = trainer_->Restore(std::move(restore));
    ASSERT_TRUE(restored.ok()) << restored.status();
  }

  std::shared_ptr<rpc::Channel> Channel() {
    return *rpc::Connect(server_->address(), rpc::kDaemonRoles);
  }

  TensorSet Weights(uint64_t seed) { return *InitWeights(model_.config, seed); }

  // Publishes the random weights of `seed` as version (1, number) and tells the queue.
  void Publish(int64_t number, uint64_t seed) { Publish(number, Weights(seed)); }
  void Publish(int64_t number, const TensorSet& weights) {
    const auto latest = publisher_->Publish(weights, {1, number}, "");
    ASSERT_TRUE(latest.ok()) << latest.status();
    queue::v1::AdvanceVersionRequest advance;
    if (number > 0) *advance.mutable_expected() = rpc::ToProto(PolicyVersion{1, number - 1});
    *advance.mutable_next() = rpc::ToProto(PolicyVersion{1, number});
    advance.set_state(latest->state.bytes());
    advance.set_manifest(latest->manifest);
    const auto advanced = trainer_->AdvanceVersion(std::move(advance));
    ASSERT_TRUE(advanced.ok()) << advanced.status();
  }

  Session* StartSession(const std::string& worker, uint32_t rescore_one_in = 1000) {
    Session::Handlers handlers;
    handlers.serving = [this](PolicyVersion) { on_serving_(); };
    handlers.guests = [this](StepEvents events) { guests_.DeliverEvents(std::move(events)); };
    handlers.failed = [this](absl::Status why) { on_failed_(std::move(why)); };
    handlers.broken = [](absl::Status why) { ADD_FAILURE() << why; };
    auto session = Session::Start({.job = kJob,
                                   .job_name = "session",
                                   .worker = worker,
                                   .incarnation = 1,
                                   .queue = server_->address(),
                                   .weights = server_->address(),
                                   .rescore_one_in = rescore_one_in},
                                  spec_, Metrics(&registry_, "session"), std::move(handlers));
    EXPECT_TRUE(session.ok()) << session.status();
    sessions_.push_back(*std::move(session));
    engine_->SetJob(kJob, sessions_.back());
    return sessions_.back().get();
  }

  // Acquires the whole batch k, reads its answers, and applies it.
  Answers TakeBatch(int64_t k) {
    queue::v1::Batch batch;
    do {
      queue::v1::AcquireBatchRequest request;
      request.set_k(k);
      const auto acquired = trainer_->AcquireBatch(std::move(request));
      EXPECT_TRUE(acquired.ok()) << acquired.status();
      if (!acquired.ok()) return {};
      batch = acquired->batch();
    } while (!batch.closed());

    Answers answers;
    std::vector<common::v1::Want> wants;
    for (const queue::v1::BatchGroup& group : batch.groups()) {
      for (const queue::v1::BatchMember& member : group.members()) {
        common::v1::Want& want = wants.emplace_back();
        want.mutable_owner()->set_group(group.group());
        want.mutable_owner()->set_member(member.member());
        Answer& answer = answers[{Ordinal(group.group()), member.member()}];
        answer.attempt = member.attempt();
        answer.finish = member.finish();
      }
    }

    const auto fetched = trainer_->GetAll(batch.lease().id(), wants);
    EXPECT_TRUE(fetched.ok()) << fetched.status();
    for (const QueueClient::Fetched& record : *fetched) AddRecord(record, &answers);

    queue::v1::ApplyRequest apply;
    apply.set_k(k);
    apply.set_lease(batch.lease().id());
    apply.set_crc32c(batch.crc32c());
    const auto applied = trainer_->Apply(std::move(apply));
    EXPECT_TRUE(applied.ok()) << applied.status();
    return answers;
  }

  // The ordinal of a group is the second half of its id, big-endian.
  static uint64_t Ordinal(const std::string& group) {
    uint64_t ordinal = 0;
    for (int i = 8; i < 16; ++i) ordinal = ordinal << 8 | static_cast<uint8_t>(group[i]);
    return ordinal;
  }

  static void AddRecord(const QueueClient::Fetched& fetched, Answers* answers) {
    const common::v1::Record& record = fetched.record;
    if (!record.owner().has_member()) return;  // The prompt.
    Answer& answer = (*answers)[{Ordinal(record.owner().group()), record.owner().member()}];
    for (const common::v1::VersionRun& run : record.piece().runs())
      answer.runs.push_back(rpc::FromProto(run));
    if (record.piece().has_duration())
      answer.durations.push_back(rpc::FromProto(record.piece().duration()));
    for (int f = 0; f < record.fields_size(); ++f) {
      const std::string& bytes = fetched.fields[f];
      if (record.fields(f).name() == "messages") answer.messages = bytes;
      if (record.fields(f).name() == "answer_ends") answer.ends = bytes;
      if (!record.has_piece()) continue;
      if (record.fields(f).name() == "tokens") {
        answer.tokens.resize(answer.tokens.size() + bytes.size() / 4);
        std::memcpy(answer.tokens.data() + answer.tokens.size() - bytes.size() / 4, bytes.data(),
                    bytes.size());
      } else if (record.fields(f).name() == "logprobs") {
        answer.logprobs.resize(answer.logprobs.size() + bytes.size() / 4);
        std::memcpy(answer.logprobs.data() + answer.logprobs.size() - bytes.size() / 4,
                    bytes.data(), bytes.size());
      }
    }
  }

  // What an engine that runs this member alone samples for it, if its prompt reads `text`.
  Answer Expected(uint64_t ordinal, uint32_t member, const std::string& text, uint32_t max_tokens,
                  bool endless) {
    const auto renderer =
        *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
    const RenderedPrompt prompt =
        *renderer->Render("digits", absl::StrCat("{\"prompt\": \"", text, "\"}"));

    auto engine = *NativeEngine::Create(model_.config, Weights(kInitSeed), {1, 0}, model_.stop_ids,
                                        {.slots = 1});
    Request request{.id = 1,
                    .prompt = std::make_shared<const std::vector<int32_t>>(prompt.tokens),
                    .seed = GroupSeed(kJobSeed, ordinal),
                    .member = member,
                    .sampling = {.max_tokens = max_tokens, .ignore_eos = endless}};
    EXPECT_TRUE(engine->AddRequest(request).ok());

    Answer answer;
    while (!engine->idle()) {
      const absl::StatusOr<StepEvents> step = engine->Step();
      for (const TokenEvent& event : step->tokens) {
        answer.tokens.push_back(event.token);
        answer.logprobs.push_back(event.logprob);
      }
    }

    answer.messages =
        PromptRenderer::WithAnswer(prompt.messages, renderer->AnswerText(answer.tokens));
    return answer;
  }

  // The digits of the prompt in messages such as [{"role":"user","content":"4821="}, ..].
  static std::string PromptText(const Answer& answer) {
    const size_t begin = answer.messages.find("content\":\"") + 10;
    return answer.messages.substr(begin, answer.messages.find('=') - begin);
  }

  // Plays rollout-0 as if it died after it had stored `stored` tokens of each member: takes the
  // grants and writes the prompt and the tokens, but seals nothing. Its leases are given back as
  // lost.
  void DieAfter(uint32_t stored, const std::string& text, uint32_t max_tokens) {
    QueueClient worker(Channel(), {.job = kJob, .worker = "rollout-0", .incarnation = 1});
    queue::v1::RenewRequest renew;
    common::v1::Loaded& loaded = *renew.add_loaded();
    *loaded.mutable_version() = rpc::ToProto(PolicyVersion{1, 0});
    loaded.set_verified(true);
    ASSERT_TRUE(worker.Renew(std::move(renew)).ok());
    queue::v1::AdmitRequest admit;
    admit.set_room(8);
    const auto admitted = worker.Admit(std::move(admit));
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    ASSERT_EQ(admitted->grants_size(), 2);

    const auto renderer =
        *PromptRenderer::Load(model_, "model", {{"digits", "{digits}=", {{"prompt", "digits"}}}});
    const std::vector<int32_t> prompt =
        renderer->Render("digits", absl::StrCat("{\"prompt\": \"", text, "\"}"))->tokens;

    PutStream puts(&worker);
    queue::v1::ReleaseRequest release;
    release.set_reason(queue::v1::RELEASE_REASON_LOST);
    // Writes a piece: of the prompt if `member` is null, else sampled tokens of that member.
    const auto put = [&](const queue::v1::Grant& grant, const queue::v1::Member* member,
                         const Answer& answer) {
      common::v1::Record record;
      std::string payload;
      const int64_t count = static_cast<int64_t>(answer.tokens.size());
      record.mutable_owner()->set_group(grant.group());
      record.set_lease(grant.members(0).lease().id());
      record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
      record.mutable_piece()->set_count(static_cast<uint32_t>(count));
      if (member != nullptr) {
        record.mutable_owner()->set_member(member->member());
        record.mutable_owner()->set_attempt(member->attempt());
        record.set_lease(member->lease().id());
        record.mutable_piece()->set_at(prompt.size());
        record.mutable_piece()->set_segment(1);
        record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_SAMPLED);
        record.mutable_piece()->set_trainable(true);
        *record.mutable_piece()->add_runs() =
            rpc::ToProto(VersionRun{.version = {1, 0}, .count = static_cast<uint32_t>(count)});
      }

      AddField("tokens", common::v1::DTYPE_I32, {count}, Bytes(answer.tokens), &record, &payload);
      if (member != nullptr)
        AddField("logprobs", common::v1::DTYPE_F32, {count}, Bytes(answer.logprobs), &record,
                 &payload);
      ASSERT_TRUE(puts.Put(std::move(record), std::move(payload),
                           [](const PutOutcome& outcome) {
                             EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                           })
                      .ok());
    };

    for (const queue::v1::Grant& grant : admitted->grants()) {
      Answer rendered;
      rendered.tokens = prompt;
      put(grant, nullptr, rendered);
      for (const queue::v1::Member& member : grant.members()) {
        Answer answer = Expected(Ordinal(grant.group()), member.member(), text, max_tokens, true);
        answer.tokens.resize(stored);
        answer.logprobs.resize(stored);
        if (stored > 0) put(grant, &member, answer);
        release.add_leases(member.lease().id());
      }
    }

    ASSERT_TRUE(puts.Flush().ok());
    ASSERT_TRUE(worker.Release(std::move(release)).ok());
  }

  template <typename T>
  static absl::string_view Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  metrics::Registry registry_;
  rpc::CallerTable callers_;
  std::vector<rpc::CallerTable::Worker> callers_list_;
  std::shared_ptr<WeightPublisher> publisher_;
  std::unique_ptr<WeightsServer> weights_;
  std::unique_ptr<queue::JobTable> jobs_;
  std::unique_ptr<queue::Metrics> queue_metrics_;
  std::unique_ptr<queue::QueueServer> queue_;
  http::Guests guests_;
  std::unique_ptr<EngineServer> engine_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<QueueClient> trainer_;
  ModelDir model_;
  job::v1::JobSpec spec_;
  // Set before StartSession(). They run on the session's threads.
  std::function<void()> on_serving_ = [] {};
  std::function<void(absl::Status)> on_failed_ = [](absl::Status why) { ADD_FAILURE() << why; };
  std::vector<std::shared_ptr<Session>> sessions_;
};

}  // namespace sluice::rollout
