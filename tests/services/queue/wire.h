#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "common/rpc/stream.h"
#include "common/testing/data.h"
#include "common/testing/queue_spec.h"
#include "services/queue/jobs.h"
#include "services/queue/metrics.h"
#include "services/queue/service.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::queue {

// Polls `condition` until it holds. Returns false if it does not hold within 30 s, which is more
// than a busy machine needs.
template <typename Condition>
bool Becomes(Condition condition) {
  for (const absl::Time end = absl::Now() + absl::Seconds(30); !condition();
       std::this_thread::yield()) {
    if (absl::Now() > end) return false;
  }
  return true;
}

// A queue behind a socket, with a job whose steps train one group of two members each. The test
// makes the calls of all its workers: the controller, trainer t1, rollout r1 and reward w1.
class WireTest : public testing::Test {
 protected:
  static constexpr char kJob[] = "00112233445566778899aabbccddeeff";

  // `memory_bytes`: the memory that all jobs together may reserve; 0: the daemon's default.
  explicit WireTest(uint64_t memory_bytes = 0) : memory_bytes_(memory_bytes) {}
  void SetUp() override {
    grpc::Service* services[] = {server_.service()};
    auto started = rpc::Server::Start({}, services);
    ASSERT_TRUE(started.ok()) << started.status();
    rpc_ = *std::move(started);
    channel_ = *rpc::Connect(rpc_->address(), {rpc::Role::kQueue});

    data_ = testing_data::TempPath("rows.jsonl");
    std::string rows;
    for (int i = 0; i < 100; ++i) rows += "{\"q\": \"" + std::to_string(i) + "\", \"a\": \"x\"}\n";
    ASSERT_TRUE(WriteFileAtomic(data_, rows).ok());
  }

  void TearDown() override {
    jobs_.Stop();
    server_.Stop();
  }

  void FillCall(const std::string& worker, int64_t incarnation, common::v1::Call* call,
                bool with_request = false) {
    call->mutable_job()->set_job(job_);
    call->mutable_job()->set_worker(worker);
    call->mutable_job()->set_incarnation(incarnation);
    if (with_request) call->set_request(RandomId16());
  }

  v1::SetJobRequest JobRequest() {
    v1::SetJobRequest request;
    FillCall("controller", 0, request.mutable_call());
    request.set_revision(++revision_);
    request.set_phase(v1::PHASE_OPEN);

    v1::QueueSpec& spec = *request.mutable_spec();
    spec = SmallQueueSpec(data_);
    spec.set_job_name(name_);
    spec.mutable_queue()->set_groups_per_step(1);
    spec.set_member_tokens(1000);
    spec.set_token_bytes(token_bytes_);

    (*spec.mutable_sources(0)->mutable_fields())["prompt"] = "q";
    (*spec.mutable_sources(0)->mutable_fields())["answer"] = "a";

    const auto worker = [&](const char* id, sluice::rpc::v1::Role role, int64_t incarnation) {
      common::v1::Worker& listed = *request.add_workers();
      listed.set_id(id);
      listed.set_role(role);
      listed.set_incarnation(incarnation);
    };

    worker("t1", sluice::rpc::v1::ROLE_TRAINER, trainer_incarnation_);
    worker("r1", sluice::rpc::v1::ROLE_ROLLOUT, rollout_incarnation_);
    worker("w1", sluice::rpc::v1::ROLE_REWARD, reward_incarnation_);
    return request;
  }

  // Makes one call without retries: the first backoff is longer than the time limit of the call.
  template <typename Response, typename Request>
  absl::StatusOr<Response> Once(const Request& request) {
    Response response;
    const absl::Status status =
        rpc::Call(*channel_, request, &response,
                  {.deadline = absl::Seconds(20),
                   .give_up = absl::Seconds(20),
                   .backoff = {.first = absl::Hours(1), .longest = absl::Hours(1)}});
    if (!status.ok()) return status;
    return response;
  }

  std::unique_ptr<QueueClient> Client(const std::string& worker, int64_t incarnation) {
    return std::make_unique<QueueClient>(
        channel_, QueueClient::Options{.job = job_, .worker = worker, .incarnation = incarnation});
  }

  // Sets the job, restores the trainer, publishes version (trainer_incarnation_, 0), and loads it
  // into r1.
  void Begin() {
    ASSERT_TRUE(Once<v1::SetJobResponse>(JobRequest()).ok());

    v1::RestoreRequest restore;
    restore.set_mode(v1::RESTORE_MODE_REPLAY);
    ASSERT_TRUE(Client("t1", trainer_incarnation_)->Restore(restore).ok());

    v1::AdvanceVersionRequest advance;
    advance.mutable_next()->set_incarnation(trainer_incarnation_);
    ASSERT_TRUE(Client("t1", trainer_incarnation_)->AdvanceVersion(advance).ok());
    Load();
  }

  // Rollout r1 reports that it has loaded version (trainer_incarnation_, 0).
  void Load() {
    v1::RenewRequest renew;
    common::v1::Loaded& loaded = *renew.add_loaded();
    loaded.mutable_version()->set_incarnation(trainer_incarnation_);
    loaded.set_verified(true);
    ASSERT_TRUE(Client("r1", rollout_incarnation_)->Renew(renew).ok());
  }

  v1::AdmitResponse Admitted(uint32_t room) {
    v1::AdmitRequest request;
    request.set_room(room);
    auto answer = Client("r1", rollout_incarnation_)->Admit(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::AdmitResponse();
  }

  static common::v1::TrajectoryRef RefOf(const v1::Grant& grant, const v1::Member& member) {
    common::v1::TrajectoryRef ref;
    ref.set_group(grant.group());
    ref.set_member(member.member());
    ref.set_attempt(member.attempt());
    return ref;
  }

  // `count` values of 4 bytes: token ids if `logprob` is 0, else that log-prob, repeated.
  static std::string Column(int count, float logprob) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      const int32_t token = 10 + i;
      bytes.append(
          reinterpret_cast<const char*>(logprob == 0 ? static_cast<const void*>(&token) : &logprob),
          4);
    }
    return bytes;
  }

  // Writes the prompt of the group, and `count` sampled tokens and the messages of the member; then
  // seals the member.
  void Sample(const v1::Grant& grant, const v1::Member& member, int count = 5) {
    const auto client = Client("r1", rollout_incarnation_);
    sluice::PutStream stream(client.get());
    const auto put = [&](common::v1::Record record, std::string payload) {
      ASSERT_TRUE(stream
                      .Put(std::move(record), std::move(payload),
                           [](const PutOutcome& outcome) {
                             EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                           })
                      .ok());
    };
    put(PromptRecord(grant, member), Column(3, 0));
    std::string payload;
    const common::v1::Record sampled = SampledRecord(grant, member, count, &payload);
    put(sampled, payload);

    common::v1::Record whole;
    *whole.mutable_owner() = RefOf(grant, member);
    whole.set_lease(member.lease().id());
    payload.clear();
    AddField("messages", common::v1::DTYPE_U8, std::vector<int64_t>{100}, std::string(100, 'm'),
             &whole, &payload);
    put(whole, payload);
    ASSERT_TRUE(stream.Flush(absl::Seconds(20)).ok());

    v1::SealRequest seal;
    *seal.add_items() = SealOf(grant, member, count);
    const auto sealed = client->Seal(seal);
    ASSERT_TRUE(sealed.ok()) << sealed.status();
    ASSERT_EQ(sealed->items(0).code(), 0u) << sealed->items(0).reason();
  }

  static v1::SealItem SealOf(const v1::Grant& grant, const v1::Member& member, int count = 5) {
    v1::SealItem item;
    *item.mutable_ref() = RefOf(grant, member);
    item.set_lease(member.lease().id());
    item.set_tokens(3 + count);
    item.set_crc32c(Crc32c(Column(count, 0) + Column(count, -0.5f)));
    item.set_finish(common::v1::FINISH_STOP);
    return item;
  }

  static common::v1::Record PromptRecord(const v1::Grant& grant, const v1::Member& member) {
    common::v1::Record record;
    record.mutable_owner()->set_group(grant.group());
    record.set_lease(member.lease().id());
    record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
    record.mutable_piece()->set_count(3);
    std::string payload;
    AddField("tokens", common::v1::DTYPE_I32, std::vector<int64_t>{3}, Column(3, 0), &record,
             &payload);
    return record;
  }

  common::v1::Record SampledRecord(const v1::Grant& grant, const v1::Member& member, int count,
                                   std::string* payload) {
    common::v1::Record record;
    *record.mutable_owner() = RefOf(grant, member);
    record.set_lease(member.lease().id());

    common::v1::Piece& piece = *record.mutable_piece();
    piece.set_at(3);
    piece.set_segment(1);
    piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece.set_trainable(true);
    piece.set_count(count);

    common::v1::VersionRun& run = *piece.add_runs();
    run.mutable_version()->set_incarnation(trainer_incarnation_);
    run.mutable_version()->set_number(sampled_version_);
    run.set_count(count);

    AddField("tokens", common::v1::DTYPE_I32, std::vector<int64_t>{count}, Column(count, 0),
             &record, payload);
    AddField("logprobs", common::v1::DTYPE_F32, std::vector<int64_t>{count}, Column(count, -0.5f),
             &record, payload);
    return record;
  }

  v1::LeaseTasksResponse Tasks(uint32_t count) {
    v1::LeaseTasksRequest request;
    v1::Room& room = *request.add_rooms();
    room.set_pool("cpu");
    room.set_count(count);
    auto answer = Client("w1", reward_incarnation_)->LeaseTasks(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::LeaseTasksResponse();
  }

  void Score(const v1::Task& task, double reward) {
    const auto client = Client("w1", reward_incarnation_);
    sluice::PutStream stream(client.get());

    common::v1::Record record;
    *record.mutable_owner() = task.owner();
    record.set_task(task.id());
    record.set_lease(task.lease().id());
    record.set_last(true);

    AddInlineField("reward_status", common::v1::DTYPE_U8, "ok", &record);
    AddInlineField("task_reward", common::v1::DTYPE_F64,
                   {reinterpret_cast<const char*>(&reward), 8}, &record);

    ASSERT_TRUE(stream
                    .Put(record, "",
                         [](const PutOutcome& outcome) {
                           EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                         })
                    .ok());
    ASSERT_TRUE(stream.Flush(absl::Seconds(20)).ok());
  }

  // Samples and scores one group, then acquires batch `k`, which gets it.
  v1::Batch ReadyBatch(int64_t k) {
    const v1::AdmitResponse admitted = Admitted(2);
    for (const v1::Grant& grant : admitted.grants()) {
      for (const v1::Member& member : grant.members()) Sample(grant, member);
    }

    const v1::LeaseTasksResponse leased = Tasks(2);
    for (const v1::Task& task : leased.tasks()) Score(task, 1);

    v1::AcquireBatchRequest request;
    request.set_k(k);
    auto answer = Client("t1", trainer_incarnation_)->AcquireBatch(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->batch() : v1::Batch();
  }

  v1::ApplyRequest ApplyOf(const v1::Batch& batch) {
    v1::ApplyRequest request;
    request.set_k(batch.k());
    request.set_lease(batch.lease().id());
    request.set_crc32c(batch.crc32c());
    return request;
  }

  int64_t trainer_incarnation_ = 1, rollout_incarnation_ = 1, reward_incarnation_ = 1;
  uint64_t revision_ = 0;
  std::string job_ = kJob, name_ = "wire";  // The job that the calls are about, and its name.
  uint32_t token_bytes_ = 20;
  int64_t sampled_version_ = 0;  // The policy version that SampledRecord() names.
  std::string data_;
  metrics::Registry registry_;
  Metrics metrics_{&registry_};
  const uint64_t memory_bytes_;
  JobTable jobs_{
      {.memory_bytes = memory_bytes_,
       .added = [this](const std::shared_ptr<JobRunner>& runner) { metrics_.Add(runner); }}};
  QueueServer server_{&jobs_, &metrics_};
  std::unique_ptr<rpc::Server> rpc_;
  std::shared_ptr<rpc::Channel> channel_;
};

}  // namespace sluice::queue
