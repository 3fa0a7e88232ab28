#include "tests/integration/queue_scene.h"

#include <regex>

#include "common/base/digest.h"
#include "common/config/job_file.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/stream.h"
#include "services/controller/spec.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::integration {
namespace {

template <typename T>
absl::string_view AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

common::v1::TrajectoryRef OwnerOf(const queue::v1::Grant& grant, int member) {
  common::v1::TrajectoryRef owner;
  owner.set_group(grant.group());
  owner.set_member(grant.members(member).member());
  owner.set_attempt(grant.members(member).attempt());
  return owner;
}

}  // namespace

void QueueScene::SetUp() {
  ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  const JobFile file = ReadJobFile(
      SLUICE_SOURCE_DIR "/configs/examples/digits.yaml",
      {.sets = {"queue.groups_per_step=2", "queue.max_staleness=0", "queue.admission.oversample=0",
                "rollout.group.size=2", "rollout.group.min=2"}});
  ASSERT_EQ(ProblemStatus(file.problems), absl::OkStatus());
  spec_ = controller::QueueSpecOf(*file.spec);
}

common::v1::Call QueueScene::CallOf(const std::string& worker, bool with_request) const {
  common::v1::Call call;
  call.mutable_job()->set_job(job_);
  call.mutable_job()->set_worker(worker);
  call.mutable_job()->set_incarnation(worker == "controller" ? 0 : kIncarnation);
  if (with_request) call.set_request(RandomId16());
  return call;
}

std::string QueueScene::State() {
  queue::v1::StatsRequest stats;
  *stats.mutable_call() = CallOf("controller");
  queue::v1::StatsResponse answer;
  EXPECT_EQ(rpc::Call(queue(), stats, &answer), absl::OkStatus());
  answer.mutable_ledger()->clear_event();
  std::string state = Canonical(answer);
  for (const queue::v1::PeekWhat what :
       {queue::v1::PEEK_WHAT_GROUPS, queue::v1::PEEK_WHAT_TASKS, queue::v1::PEEK_WHAT_BATCHES}) {
    queue::v1::PeekRequest peek;
    *peek.mutable_call() = CallOf("controller");
    peek.set_what(what);
    queue::v1::PeekResponse rows;
    EXPECT_EQ(rpc::Call(queue(), peek, &rows), absl::OkStatus());

    // A group's row has the ages of its members.
    state += std::regex_replace(Canonical(rows), std::regex("age[^,}]*"), "");
  }
  return state;
}

// Streams. ----------------------------------------------------------------------------------------

absl::StatusOr<queue::v1::PutAck> QueueScene::PutOnce(const common::v1::Call& call,
                                                      const common::v1::Record& record,
                                                      const std::string& payload) {
  rpc::ClientStream stream(queue(), *queue::v1::PutMessage::descriptor());
  queue::v1::PutHeader header;
  *header.mutable_call() = call;
  header.set_seq(1);
  *header.add_records() = record;
  if (absl::Status status = stream.WriteFrame(header, {{.bytes = payload}}); !status.ok())
    return status;

  queue::v1::PutAck ack;
  if (!stream.Read(&ack)) return stream.Finish();
  return ack;
}

void QueueScene::PutChecked(const common::v1::Call& call, const common::v1::Record& record,
                            const std::string& payload) {
  called_.insert("sluice.queue.v1.QueueService.Put");
  common::v1::Call lower = call;
  lower.mutable_job()->set_incarnation(kIncarnation - 1);
  std::string state = State();
  const auto fenced = PutOnce(lower, record, payload);
  EXPECT_EQ(ReasonOf(fenced.status()), "FENCED")
      << (fenced.ok() ? fenced->DebugString() : fenced.status().ToString());
  EXPECT_EQ(State(), state);

  for (const bool repeat : {false, true}) {  // Equal bytes are a repeat.
    const auto ack = PutOnce(call, record, payload);
    ASSERT_EQ(ack.status(), absl::OkStatus());
    EXPECT_EQ(ack->failed_size(), 0) << ack->DebugString();
    EXPECT_TRUE(!repeat || State() == state) << State();
    state = State();
  }
}

void QueueScene::ExpectRefused(const std::string& worker, const common::v1::Record& record,
                               const std::string& payload) {
  const std::string before = State();
  const auto ack = PutOnce(CallOf(worker), record, payload);
  ASSERT_EQ(ack.status(), absl::OkStatus());
  ASSERT_EQ(ack->failed_size(), 1);
  EXPECT_EQ(ack->failed(0).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument))
      << ack->DebugString();
  EXPECT_FALSE(ack->failed(0).reason().empty());
  EXPECT_EQ(State(), before);
}

void QueueScene::GetChecked(const common::v1::Call& call, const std::string& lease,
                            const std::vector<common::v1::Want>& wants) {
  called_.insert("sluice.queue.v1.QueueService.Get");
  for (const int64_t incarnation : {kIncarnation - 1, kIncarnation}) {
    queue::v1::GetRequest request;
    *request.mutable_call() = call;
    request.mutable_call()->mutable_job()->set_incarnation(incarnation);
    request.set_lease(lease);
    for (const common::v1::Want& want : wants) *request.add_wants() = want;
    const absl::Status status = CallOnce(queue(), request);
    EXPECT_EQ(ReasonOf(status), incarnation == kIncarnation ? "" : "FENCED") << status;
  }
}

void QueueScene::WatchChecked(const common::v1::Call& call) {
  called_.insert("sluice.queue.v1.QueueService.Watch");
  for (const int64_t incarnation : {kIncarnation - 1, kIncarnation}) {
    queue::v1::WatchRequest request;
    *request.mutable_call() = call;
    request.mutable_call()->mutable_job()->set_incarnation(incarnation);
    rpc::ClientStream stream(queue(), *request.GetDescriptor());
    ASSERT_TRUE(stream.Write(request));
    stream.WritesDone();
    queue::v1::WatchResponse first;
    const bool read = stream.Read(&first);
    EXPECT_EQ(read, incarnation == kIncarnation);
    if (read) continue;
    EXPECT_EQ(ReasonOf(stream.Finish()), "FENCED");
  }
}

// Records. ----------------------------------------------------------------------------------------

common::v1::Record QueueScene::PromptRecord(const queue::v1::Grant& grant,
                                            std::initializer_list<int32_t> tokens,
                                            std::string* payload) {
  common::v1::Record record;
  record.mutable_owner()->set_group(grant.group());
  record.set_lease(grant.members(0).lease().id());
  record.mutable_piece()->set_count(static_cast<uint32_t>(tokens.size()));
  record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
  AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(tokens.size())},
           AsBytes(std::vector<int32_t>(tokens)), &record, payload);
  return record;
}

common::v1::Record QueueScene::SampledRecord(const queue::v1::Grant& grant, int member, uint64_t at,
                                             std::initializer_list<int32_t> tokens,
                                             std::string* payload, float logprob, int64_t version) {
  common::v1::Record record;
  *record.mutable_owner() = OwnerOf(grant, member);
  record.set_lease(grant.members(member).lease().id());
  common::v1::Piece& piece = *record.mutable_piece();
  piece.set_at(at);
  piece.set_segment(1);
  piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
  piece.set_trainable(true);
  piece.set_count(static_cast<uint32_t>(tokens.size()));
  common::v1::VersionRun& run = *piece.add_runs();
  run.mutable_version()->set_incarnation(kIncarnation);
  run.mutable_version()->set_number(version);
  run.set_count(piece.count());
  const int64_t count = piece.count();
  AddField("tokens", common::v1::DTYPE_I32, {count}, AsBytes(std::vector<int32_t>(tokens)), &record,
           payload);
  AddField("logprobs", common::v1::DTYPE_F32, {count},
           AsBytes(std::vector<float>(tokens.size(), logprob)), &record, payload);
  return record;
}

// The parts of a step. ----------------------------------------------------------------------------

void QueueScene::SetUpJob() {
  queue::v1::SetJobRequest set;
  *set.mutable_call() = CallOf("controller");
  set.set_revision(2);
  *set.mutable_spec() = spec_;
  set.set_phase(queue::v1::PHASE_OPEN);
  const std::pair<std::string, rpc::v1::Role> workers[] = {{rollout_, rpc::v1::ROLE_ROLLOUT},
                                                           {reward_, rpc::v1::ROLE_REWARD},
                                                           {trainer_, rpc::v1::ROLE_TRAINER}};
  for (const auto& [id, role] : workers) {
    common::v1::Worker& worker = *set.add_workers();
    worker.set_id(id);
    worker.set_role(role);
    worker.set_incarnation(kIncarnation);
  }

  const auto answer = CallChecked<queue::v1::SetJobResponse>(set, {"restored", "ledger"});
  EXPECT_FALSE(answer.restored());
  set.set_revision(1);
  EXPECT_EQ(ReasonOf(CallOnce(queue(), set)), "LOST_RACE");

  queue::v1::RestoreRequest restore;
  *restore.mutable_call() = CallOf(trainer_);
  restore.set_mode(queue::v1::RESTORE_MODE_REPLAY);
  CallChecked<queue::v1::RestoreResponse>(restore);
  Publish(0);
  WatchChecked(CallOf(rollout_));
}

void QueueScene::Publish(int64_t number) {
  queue::v1::AdvanceVersionRequest advance;
  *advance.mutable_call() = CallOf(trainer_);
  advance.mutable_next()->set_incarnation(kIncarnation);
  advance.mutable_next()->set_number(number);
  if (number > 0) {
    *advance.mutable_expected() = advance.next();
    advance.mutable_expected()->set_number(number - 1);
  }
  advance.set_state(std::string(16, 's'));
  advance.set_manifest(std::string(32, 'm'));
  CallChecked<queue::v1::AdvanceVersionResponse>(advance);

  queue::v1::RenewRequest renew;
  *renew.mutable_call() = CallOf(rollout_);
  common::v1::Loaded& loaded = *renew.add_loaded();
  *loaded.mutable_version() = advance.next();
  loaded.set_verified(true);
  CallChecked<queue::v1::RenewResponse>(renew);
}

queue::v1::AdmitResponse QueueScene::Admit() {
  queue::v1::AdmitRequest admit;
  *admit.mutable_call() = CallOf(rollout_, /*with_request=*/true);
  admit.set_room(4);
  const auto granted = CallChecked<queue::v1::AdmitResponse>(admit);
  *admit.mutable_call() = CallOf(rollout_, /*with_request=*/true);
  ExpectParks<queue::v1::AdmitResponse>(admit);  // All slots of the step are taken.
  return granted;
}

void QueueScene::WriteAndSeal(const queue::v1::Grant& grant, const std::vector<int64_t>& versions,
                              std::optional<int64_t> began) {
  std::string payload;
  common::v1::Record record = PromptRecord(grant, {1, 5, 6}, &payload);
  PutChecked(CallOf(rollout_), record, payload);

  queue::v1::SealRequest seal;
  *seal.mutable_call() = CallOf(rollout_);
  for (int m = 0; m < grant.members_size(); ++m) {
    payload.clear();
    record =
        SampledRecord(grant, m, 3, {7, 8, 2}, &payload, -0.5F, versions[static_cast<size_t>(m)]);
    if (m == 0 && began) {
      common::v1::VersionRun& last = *record.mutable_piece()->add_runs();
      common::v1::VersionRun& first = *record.mutable_piece()->mutable_runs(0);
      last = first;
      last.set_count(1);
      first.mutable_version()->set_number(*began);
      first.set_count(2);
    }
    PutChecked(CallOf(rollout_), record, payload);

    queue::v1::SealItem& item = *seal.add_items();
    *item.mutable_ref() = OwnerOf(grant, m);
    item.set_lease(grant.members(m).lease().id());
    item.set_tokens(6);
    item.set_crc32c(Crc32c(payload));
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);

    record.clear_piece();
    record.clear_fields();
    payload.clear();
    AddField("messages", common::v1::DTYPE_UNSPECIFIED, {},
             R"([{"role":"assistant","content":"65"}])", &record, &payload);
    PutChecked(CallOf(rollout_), record, payload);
  }

  const auto sealed = CallChecked<queue::v1::SealResponse>(seal, {"items.repeat"});
  for (const common::v1::Item& item : sealed.items())
    EXPECT_EQ(item.code(), 0U) << item.DebugString();
}

void QueueScene::Score() {
  queue::v1::LeaseTasksRequest request;
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  request.set_generation(1);
  queue::v1::Room& room = *request.add_rooms();
  room.set_pool("cpu");
  room.set_count(8);
  auto leased = CallChecked<queue::v1::LeaseTasksResponse>(request);
  ASSERT_EQ(leased.tasks_size(), 2);

  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  ExpectParks<queue::v1::LeaseTasksResponse>(request);

  queue::v1::ReleaseRequest release;  // The tasks are given back and leased again.
  *release.mutable_call() = CallOf(reward_);
  for (const queue::v1::Task& task : leased.tasks()) release.add_leases(task.lease().id());
  release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  CallChecked<queue::v1::ReleaseResponse>(release, {"released"});

  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  leased = CallChecked<queue::v1::LeaseTasksResponse>(request);
  ASSERT_EQ(leased.tasks_size(), 2);

  for (const queue::v1::Task& task : leased.tasks()) {
    GetChecked(CallOf(reward_), task.lease().id(), {task.wants().begin(), task.wants().end()});
    common::v1::Record record;
    *record.mutable_owner() = task.owner();
    record.set_task(task.id());
    record.set_lease(task.lease().id());
    record.set_last(true);
    const std::vector<double> reward = {0.5 + task.owner().member() * 0.25};
    AddInlineField("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
    AddInlineField("task_reward", common::v1::DTYPE_F64, AsBytes(reward), &record);
    PutChecked(CallOf(reward_), record, "");
  }
}

queue::v1::Batch QueueScene::Acquire(int64_t k) {
  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  acquire.set_k(k);
  const auto batch = CallChecked<queue::v1::AcquireBatchResponse>(acquire).batch();
  EXPECT_TRUE(batch.closed());
  EXPECT_EQ(batch.groups_size(), 2);
  return batch;
}

void QueueScene::Train(const queue::v1::Batch& batch) {
  queue::v1::ApplyRequest apply;
  *apply.mutable_call() = CallOf(trainer_);
  apply.set_k(batch.k());
  apply.set_lease(batch.lease().id());
  apply.set_crc32c(batch.crc32c());
  const auto applied = CallChecked<queue::v1::ApplyResponse>(apply, {"ledger.event"});
  EXPECT_EQ(applied.version(), batch.k() + 1);

  queue::v1::DurableRequest durable;
  *durable.mutable_call() = CallOf(trainer_);
  durable.set_version(batch.k() + 1);
  durable.set_checkpoint("step");
  durable.set_hash(applied.ledger().hash());
  CallChecked<queue::v1::DurableResponse>(durable);
}

}  // namespace sluice::integration
