#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "services/controller/spec.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"
#include "sluice/rpc/v1/options.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/contract.h"

// Every method of a running queue, by hand-made clients in the parts of controller, rollout, reward and trainer.
namespace sluice::integration {
namespace {

using common::v1::Call;

constexpr int64_t kIncarnation = 2;  // Of all workers, so that a lower one exists.

class QueueMethodsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    const JobFile file = ReadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml",
                                     {.sets = {"queue.groups_per_step=2", "queue.max_staleness=0", "queue.admission.oversample=0",
                                               "rollout.group.size=2", "rollout.group.min=2"}});
    ASSERT_EQ(ProblemStatus(file.problems), absl::OkStatus());
    spec_ = controller::QueueSpecOf(*file.spec);
  }

  const rpc::Channel& queue() const { return *cluster_.channel("queue-0"); }

  Call CallOf(const std::string& worker, bool with_request = false, int64_t incarnation = kIncarnation) const {
    Call call;
    call.mutable_job()->set_job(job_);
    call.mutable_job()->set_worker(worker);
    call.mutable_job()->set_incarnation(worker == "controller" ? 0 : incarnation);
    if (with_request) call.set_request(RandomId16());
    return call;
  }

  // All that the queue tells of its state, without ages.
  std::string State() {
    queue::v1::StatsRequest stats;
    *stats.mutable_call() = CallOf("controller");
    queue::v1::StatsResponse answer;
    EXPECT_EQ(rpc::Call(queue(), stats, &answer), absl::OkStatus());
    answer.mutable_ledger()->clear_event();
    std::string state = Canonical(answer);
    for (const queue::v1::PeekWhat what : {queue::v1::PEEK_WHAT_GROUPS, queue::v1::PEEK_WHAT_TASKS, queue::v1::PEEK_WHAT_BATCHES}) {
      queue::v1::PeekRequest peek;
      *peek.mutable_call() = CallOf("controller");
      peek.set_what(what);
      queue::v1::PeekResponse rows;
      EXPECT_EQ(rpc::Call(queue(), peek, &rows), absl::OkStatus());
      state += Canonical(rows);
    }
    return state;
  }

  // A unary call that changes something: a lower incarnation is fenced and changes nothing; the call works; its repeat
  // changes nothing and answers the same, a KEYED one with `repeat`. `not_compared`: fields of the answer that tell what this
  // call itself did.
  template <typename Response, typename Request>
  Response Walk(const Request& request, const std::set<std::string>& not_compared = {}) {
    walked_.insert(MethodName(request));
    ExpectFenced(request);
    Response first;
    EXPECT_EQ(rpc::Call(queue(), request, &first), absl::OkStatus()) << request.DebugString();
    const std::string state = State();
    Response second;
    EXPECT_EQ(rpc::Call(queue(), request, &second), absl::OkStatus()) << request.DebugString();
    EXPECT_EQ(State(), state) << MethodName(request) << " changed something when repeated";
    ExpectRepeat(first, second, not_compared);
    return first;
  }

  template <typename Request>
  void ExpectFenced(Request request) {
    if (request.call().job().incarnation() == 0) return;  // The controller's: fenced by revision, not by incarnation.
    request.mutable_call()->mutable_job()->set_incarnation(kIncarnation - 1);
    if (!request.call().request().empty()) request.mutable_call()->set_request(RandomId16());
    const std::string before = State();
    const absl::Status status = CallOnce(queue(), request);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << MethodName(request) << ": " << status;
    EXPECT_EQ(ReasonOf(status), "FENCED") << MethodName(request) << ": " << status;
    EXPECT_EQ(State(), before) << MethodName(request) << " of a lower incarnation changed something";
  }

  // A parked call for which there is nothing.
  template <typename Response, typename Request>
  void ExpectParks(Request request) {
    *request.mutable_wait() = rpc::ToProto(absl::Milliseconds(20));
    Response response;
    ASSERT_EQ(rpc::Call(queue(), request, &response), absl::OkStatus());
    EXPECT_TRUE(response.has_edge()) << response.DebugString();
    EXPECT_NE(response.edge().on().kind(), common::v1::NODE_KIND_UNSPECIFIED) << response.DebugString();
    EXPECT_FALSE(response.edge().cause().empty()) << response.DebugString();
  }

  // A Put of one message, on a stream of its own.
  absl::StatusOr<queue::v1::PutAck> PutOnce(const Call& call, const common::v1::Record& record, const std::string& payload) {
    rpc::ClientStream stream(queue(), *queue::v1::PutMessage::descriptor());
    queue::v1::PutHeader header;
    *header.mutable_call() = call;
    header.set_seq(1);
    *header.add_records() = record;
    if (absl::Status status = stream.WriteFrame(header, {{.bytes = payload}}); !status.ok()) return status;
    queue::v1::PutAck ack;
    if (!stream.Read(&ack)) return stream.Finish();
    return ack;
  }

  void WalkPut(const Call& call, const common::v1::Record& record, const std::string& payload) {
    walked_.insert("sluice.queue.v1.QueueService.Put");
    Call lower = call;
    lower.mutable_job()->set_incarnation(kIncarnation - 1);
    const std::string before = State();
    const auto fenced = PutOnce(lower, record, payload);
    EXPECT_EQ(ReasonOf(fenced.status()), "FENCED") << (fenced.ok() ? fenced->DebugString() : fenced.status().ToString());
    EXPECT_EQ(State(), before);

    for (int time = 0; time < 2; ++time) {  // Equal bytes are a repeat.
      const auto ack = PutOnce(call, record, payload);
      ASSERT_EQ(ack.status(), absl::OkStatus());
      EXPECT_EQ(ack->failed_size(), 0) << ack->DebugString();
      if (time == 0) after_put_ = State();
    }
    EXPECT_EQ(State(), after_put_);
  }

  // The record comes back INVALID_ARGUMENT and leaves no trace.
  void ExpectRefused(const std::string& worker, const common::v1::Record& record, const std::string& payload) {
    const std::string before = State();
    const auto ack = PutOnce(CallOf(worker), record, payload);
    ASSERT_EQ(ack.status(), absl::OkStatus());
    ASSERT_EQ(ack->failed_size(), 1);
    EXPECT_EQ(ack->failed(0).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument)) << ack->DebugString();
    EXPECT_FALSE(ack->failed(0).reason().empty());
    EXPECT_EQ(State(), before);
  }

  void WalkGet(const Call& call, const std::string& lease, const std::vector<common::v1::Want>& wants) {
    walked_.insert("sluice.queue.v1.QueueService.Get");
    for (const int64_t incarnation : {kIncarnation - 1, kIncarnation}) {
      queue::v1::GetRequest request;
      *request.mutable_call() = call;
      request.mutable_call()->mutable_job()->set_incarnation(incarnation);
      request.set_lease(lease);
      for (const common::v1::Want& want : wants) *request.add_wants() = want;
      rpc::ClientStream stream(queue(), *request.GetDescriptor());
      ASSERT_TRUE(stream.Write(request));
      stream.WritesDone();
      rpc::Frame frame;
      const bool read = stream.ReadFrame(&frame);
      EXPECT_EQ(read, incarnation == kIncarnation);
      if (read) continue;
      EXPECT_EQ(ReasonOf(stream.Finish()), "FENCED");
    }
  }

  void WalkWatch(const Call& call) {
    walked_.insert("sluice.queue.v1.QueueService.Watch");
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

  static common::v1::Record PieceRecord(const common::v1::TrajectoryRef& owner, const std::string& lease, uint64_t at,
                                        std::initializer_list<int32_t> tokens, bool sampled, std::string* payload,
                                        float logprob = -0.5F, int64_t version = 0) {
    common::v1::Record record;
    *record.mutable_owner() = owner;
    record.set_lease(lease);
    common::v1::Piece& piece = *record.mutable_piece();
    piece.set_at(at);
    piece.set_count(static_cast<uint32_t>(tokens.size()));
    piece.set_role(sampled ? common::v1::SEGMENT_ROLE_SAMPLED : common::v1::SEGMENT_ROLE_PROMPT);
    piece.set_segment(sampled ? 1 : 0);
    const std::vector<int32_t> ids(tokens);
    AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(ids.size())}, AsBytes(ids), &record, payload);
    if (sampled) {
      piece.set_trainable(true);
      common::v1::VersionRun& run = *piece.add_runs();
      run.mutable_version()->set_incarnation(kIncarnation);
      run.mutable_version()->set_number(version);
      run.set_count(piece.count());
      const std::vector<float> logprobs(ids.size(), logprob);
      AddField("logprobs", common::v1::DTYPE_F32, {static_cast<int64_t>(ids.size())}, AsBytes(logprobs), &record, payload);
    }
    return record;
  }

  template <typename T>
  static absl::string_view AsBytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  void SetUpJob();
  queue::v1::AdmitResponse Admit();
  void WritePromptAndSeal(const queue::v1::Grant& grant);
  void Score();
  void Train();

  Cluster cluster_{{.rollouts = 0, .rewards = 0, .trainer = false}};
  const std::string job_ = std::string(32, 'a');
  const std::string rollout_ = "rollout-9", reward_ = "reward-9", trainer_ = "trainer-9";
  queue::v1::QueueSpec spec_;
  std::set<std::string> walked_;
  std::string after_put_;
};

void QueueMethodsTest::SetUpJob() {
  queue::v1::SetJobRequest set;
  *set.mutable_call() = CallOf("controller");
  set.set_revision(2);
  *set.mutable_spec() = spec_;
  set.set_phase(queue::v1::PHASE_OPEN);
  const std::pair<std::string, rpc::v1::Role> workers[] = {
      {rollout_, rpc::v1::ROLE_ROLLOUT}, {reward_, rpc::v1::ROLE_REWARD}, {trainer_, rpc::v1::ROLE_TRAINER}};
  for (const auto& [id, role] : workers) {
    common::v1::Worker& worker = *set.add_workers();
    worker.set_id(id);
    worker.set_role(role);
    worker.set_incarnation(kIncarnation);
  }
  const auto answer = Walk<queue::v1::SetJobResponse>(set, {"restored", "ledger"});
  EXPECT_FALSE(answer.restored());
  set.set_revision(1);
  EXPECT_EQ(ReasonOf(CallOnce(queue(), set)), "LOST_RACE");

  queue::v1::RestoreRequest restore;
  *restore.mutable_call() = CallOf(trainer_);
  restore.set_mode(queue::v1::RESTORE_MODE_REPLAY);
  Walk<queue::v1::RestoreResponse>(restore);

  queue::v1::AdvanceVersionRequest advance;
  *advance.mutable_call() = CallOf(trainer_);
  advance.mutable_next()->set_incarnation(kIncarnation);
  advance.set_state(std::string(16, 's'));
  advance.set_manifest(std::string(32, 'm'));
  Walk<queue::v1::AdvanceVersionResponse>(advance);

  queue::v1::RenewRequest renew;
  *renew.mutable_call() = CallOf(rollout_);
  common::v1::Loaded& loaded = *renew.add_loaded();
  loaded.mutable_version()->set_incarnation(kIncarnation);
  loaded.set_verified(true);
  Walk<queue::v1::RenewResponse>(renew);
  WalkWatch(CallOf(rollout_));
}

queue::v1::AdmitResponse QueueMethodsTest::Admit() {
  queue::v1::AdmitRequest admit;
  *admit.mutable_call() = CallOf(rollout_, /*with_request=*/true);
  admit.set_room(4);
  const auto granted = Walk<queue::v1::AdmitResponse>(admit);
  *admit.mutable_call() = CallOf(rollout_, /*with_request=*/true);
  ExpectParks<queue::v1::AdmitResponse>(admit);  // All slots of the step are taken.
  return granted;
}

void QueueMethodsTest::WritePromptAndSeal(const queue::v1::Grant& grant) {
  queue::v1::SealRequest seal;
  *seal.mutable_call() = CallOf(rollout_);
  for (const queue::v1::Member& member : grant.members()) {
    common::v1::TrajectoryRef group, owner;
    group.set_group(grant.group());
    owner.set_group(grant.group());
    owner.set_member(member.member());
    owner.set_attempt(member.attempt());
    std::string payload;
    common::v1::Record record = PieceRecord(group, member.lease().id(), 0, {1, 5, 6}, /*sampled=*/false, &payload);
    WalkPut(CallOf(rollout_), record, payload);
    payload.clear();
    record = PieceRecord(owner, member.lease().id(), 3, {7, 8, 2}, /*sampled=*/true, &payload);
    WalkPut(CallOf(rollout_), record, payload);
    const uint32_t crc32c = Crc32c(payload);
    payload.clear();
    record.Clear();
    *record.mutable_owner() = owner;
    record.set_lease(member.lease().id());
    AddField("messages", common::v1::DTYPE_UNSPECIFIED, {}, R"([{"role":"assistant","content":"65"}])", &record, &payload);
    WalkPut(CallOf(rollout_), record, payload);
    queue::v1::SealItem& item = *seal.add_items();
    *item.mutable_ref() = owner;
    item.set_lease(member.lease().id());
    item.set_tokens(6);
    item.set_crc32c(crc32c);
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);
  }
  const auto sealed = Walk<queue::v1::SealResponse>(seal, {"items.repeat"});
  for (const common::v1::Item& item : sealed.items()) EXPECT_EQ(item.code(), 0U) << item.DebugString();
}

void QueueMethodsTest::Score() {
  queue::v1::LeaseTasksRequest request;
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  request.set_generation(1);
  queue::v1::Room& room = *request.add_rooms();
  room.set_pool("cpu");
  room.set_count(8);
  auto leased = Walk<queue::v1::LeaseTasksResponse>(request);
  ASSERT_EQ(leased.tasks_size(), 2);
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  ExpectParks<queue::v1::LeaseTasksResponse>(request);

  queue::v1::ReleaseRequest release;  // Given back, and leased anew.
  *release.mutable_call() = CallOf(reward_);
  for (const queue::v1::Task& task : leased.tasks()) release.add_leases(task.lease().id());
  release.set_reason(queue::v1::RELEASE_REASON_DRAIN);
  Walk<queue::v1::ReleaseResponse>(release, {"released"});
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  leased = Walk<queue::v1::LeaseTasksResponse>(request);
  ASSERT_EQ(leased.tasks_size(), 2);

  for (const queue::v1::Task& task : leased.tasks()) {
    WalkGet(CallOf(reward_), task.lease().id(), {task.wants().begin(), task.wants().end()});
    common::v1::Record record;
    *record.mutable_owner() = task.owner();
    record.set_task(task.id());
    record.set_lease(task.lease().id());
    record.set_last(true);
    const double reward = 0.5 + task.owner().member() * 0.25;
    AddInlineField("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
    AddInlineField("task_reward", common::v1::DTYPE_F64, {reinterpret_cast<const char*>(&reward), sizeof reward}, &record);
    WalkPut(CallOf(reward_), record, "");
  }
}

void QueueMethodsTest::Train() {
  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  const auto batch = Walk<queue::v1::AcquireBatchResponse>(acquire).batch();
  ASSERT_TRUE(batch.closed());
  ASSERT_EQ(batch.groups_size(), 2);

  queue::v1::ApplyRequest apply;
  *apply.mutable_call() = CallOf(trainer_);
  apply.set_lease(batch.lease().id());
  apply.set_crc32c(batch.crc32c());
  const auto applied = Walk<queue::v1::ApplyResponse>(apply, {"ledger.event"});
  EXPECT_EQ(applied.version(), 1);
  EXPECT_EQ(applied.ledger().applied(), 4);

  queue::v1::DurableRequest durable;
  *durable.mutable_call() = CallOf(trainer_);
  durable.set_version(1);
  durable.set_checkpoint("step-1");
  durable.set_hash(applied.ledger().hash());
  Walk<queue::v1::DurableResponse>(durable);
}

TEST_F(QueueMethodsTest, ARepeatChangesOnceALowerIncarnationNothingAndAParkedCallEndsWithAnEdge) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());

  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  ExpectParks<queue::v1::AcquireBatchResponse>(acquire);

  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);

  queue::v1::DropRequest drop;  // The second group cannot be used; another one takes its place.
  *drop.mutable_call() = CallOf(rollout_);
  queue::v1::DropItem& item = *drop.add_items();
  item.mutable_ref()->set_group(granted.grants(1).group());
  item.set_lease(granted.grants(1).members(0).lease().id());
  item.set_reason("prompt_too_long");
  Walk<queue::v1::DropResponse>(drop, {"items.repeat"});
  const auto again = Admit();
  ASSERT_EQ(again.grants_size(), 1);

  ASSERT_NO_FATAL_FAILURE(WritePromptAndSeal(granted.grants(0)));
  ASSERT_NO_FATAL_FAILURE(Score());
  ASSERT_NO_FATAL_FAILURE(WritePromptAndSeal(again.grants(0)));
  ASSERT_NO_FATAL_FAILURE(Score());
  ASSERT_NO_FATAL_FAILURE(Train());

  queue::v1::StatsRequest stats;
  *stats.mutable_call() = CallOf("controller");
  EXPECT_EQ(Walk<queue::v1::StatsResponse>(stats).ledger().dropped().at("prompt_too_long"), 2);
  queue::v1::PeekRequest peek;
  *peek.mutable_call() = CallOf("controller");
  peek.set_what(queue::v1::PEEK_WHAT_VIOLATIONS);
  EXPECT_EQ(Walk<queue::v1::PeekResponse>(peek).rows_size(), 0);

  queue::v1::RetaskRequest retask;
  *retask.mutable_call() = CallOf("controller");
  ExpectNotBuilt(queue(), retask, &walked_);
  EXPECT_EQ(NotWalked("sluice.queue.v1.QueueService", walked_), "");
}

TEST_F(QueueMethodsTest, NumbersThatAreNotFiniteAreRefusedByNameAndChangeNothing) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());
  const auto granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);
  const queue::v1::Grant& grant = granted.grants(0);
  common::v1::TrajectoryRef owner;
  owner.set_group(grant.group());
  owner.set_member(0);
  owner.set_attempt(1);
  std::string payload;
  common::v1::Record record = PieceRecord(owner, grant.members(0).lease().id(), 0, {7, 8, 2}, /*sampled=*/true, &payload,
                                          std::numeric_limits<float>::quiet_NaN());
  ExpectRefused(rollout_, record, payload);
  ASSERT_NO_FATAL_FAILURE(WritePromptAndSeal(grant));  // The member is as it was.

  queue::v1::LeaseTasksRequest request;
  *request.mutable_call() = CallOf(reward_, /*with_request=*/true);
  request.set_generation(1);
  queue::v1::Room& room = *request.add_rooms();
  room.set_pool("cpu");
  room.set_count(1);
  queue::v1::LeaseTasksResponse leased;
  ASSERT_EQ(rpc::Call(queue(), request, &leased), absl::OkStatus());
  ASSERT_EQ(leased.tasks_size(), 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  record.Clear();
  *record.mutable_owner() = leased.tasks(0).owner();
  record.set_task(leased.tasks(0).id());
  record.set_lease(leased.tasks(0).lease().id());
  record.set_last(true);
  AddInlineField("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
  AddInlineField("task_reward", common::v1::DTYPE_F64, {reinterpret_cast<const char*>(&nan), sizeof nan}, &record);
  ExpectRefused(reward_, record, "");
}

TEST_F(QueueMethodsTest, TokensOfAVersionThatIsNotYetTrainedAreRefused) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());
  const auto granted = Admit();
  common::v1::TrajectoryRef owner;
  owner.set_group(granted.grants(0).group());
  owner.set_member(0);
  owner.set_attempt(1);
  std::string payload;
  const common::v1::Record record = PieceRecord(owner, granted.grants(0).members(0).lease().id(), 0, {7}, /*sampled=*/true, &payload,
                                                -0.5F, /*version=*/5);
  ExpectRefused(rollout_, record, payload);
}

}  // namespace
}  // namespace sluice::integration
