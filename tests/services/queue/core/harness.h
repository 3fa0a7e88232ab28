#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "services/queue/core/codec.h"
#include "services/queue/core/fields.h"
#include "services/queue/core/job.h"

// Drives a Job as its daemon would: one event after another, each answered or parked. After every
// event the invariants of the job are checked. A twin gets the same events in the form in which the
// log gives them back. It must answer like the job and reach the same state (I10 in
// property_test.cc). From time to time, a job loaded from the dump of the job becomes the new twin.
namespace sluice::queue {

SLUICE_FIELDS(CancelHint, ref, reason, worker)
SLUICE_FIELDS(Alarm, code, message, is_news)
SLUICE_FIELDS(Effects, answers, cancel, alarms, watch, stored)

template <typename T>
std::string BytesOf(const T& value) {
  Writer writer(Payload::kKept);
  writer(value);
  return std::move(writer).Finish().head;
}

// The payload of `encoded` as the log gives it back, in one piece.
inline std::vector<PayloadRun> AsRead(const Encoded& encoded) {
  auto all = std::make_shared<std::string>();
  for (const Bytes& part : encoded.parts) all->append(part.data.get(), part.size);
  if (all->empty()) return {};
  return {{.owner = all, .bytes = *all}};
}

// Data sources of the given sizes. The text of a row names its source and index. Levels go from 1
// to `levels`, by turns.
class Rows : public RowSource {
 public:
  explicit Rows(std::vector<uint64_t> sizes, int64_t levels = 1)
      : sizes_(std::move(sizes)), levels_(levels) {}
  uint64_t rows(uint32_t source) const override { return sizes_[source]; }
  std::string json(uint32_t source, uint64_t index) const override {
    return absl::StrCat("{\"prompt\":\"", source, ".", index, "\"}");
  }
  int64_t level(uint32_t, uint64_t index) const override {
    return 1 + static_cast<int64_t>(index) % levels_;
  }

 private:
  const std::vector<uint64_t> sizes_;
  const int64_t levels_;
};

// Two groups of two members per step, one data source, one reward task.
inline Spec SmallSpec() {
  Spec spec;
  spec.seed = 7;
  spec.groups_per_step = 2;
  spec.group_size = 2;
  spec.group_min = 2;
  spec.max_staleness = 1;
  spec.straggler = Straggler::kMask;
  spec.reissues = 1;
  spec.lease = absl::Seconds(60);
  spec.member_tokens = 64;
  spec.token_bytes = 20;
  spec.sources = {{.name = "digits", .path = "digits.jsonl", .weight = 1, .fields = {}}};
  spec.tasks = {{.name = "reward",
                 .needs = {"messages"},
                 .produces = {"reward_status", "task_reward", "reward_info"},
                 .pool = "cpu",
                 .deadline = absl::Seconds(10),
                 .tries = 3}};
  return spec;
}

template <typename T>
Field MakeField(const std::string& name, Dtype dtype, const std::vector<T>& values) {
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(T));
  return {.name = name,
          .dtype = static_cast<int>(dtype),
          .shape = {static_cast<int64_t>(values.size())},
          .bytes = Bytes::Copy(bytes)};
}
inline Field TextField(const std::string& name, const std::string& text) {
  return {.name = name, .shape = {static_cast<int64_t>(text.size())}, .bytes = Bytes::Copy(text)};
}

inline TrajectoryRef RefOf(const queue::Grant& grant, const Member& member) {
  return {grant.group, member.member, member.attempt};
}

// A token follows from its owner and place, so that all writers of a piece write the same bytes.
inline int32_t TokenAt(const TrajectoryRef& owner, uint64_t place) {
  return static_cast<int32_t>(owner.group.ordinal * 1000 + owner.member.value_or(0) * 100 + place);
}

inline Record PieceRecord(const TrajectoryRef& owner, const Id16& lease, SegmentRole role,
                          uint64_t at, uint32_t count, std::vector<VersionRun> runs = {}) {
  Record record{.owner = owner, .lease = lease};
  const bool sampled = role == SegmentRole::kSampled;
  record.piece = Piece{.at = at,
                       .segment = sampled ? 1u : 0u,
                       .role = role,
                       .count = count,
                       .trainable = sampled,
                       .runs = std::move(runs)};
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  for (uint64_t i = 0; i < count; ++i) {
    tokens.push_back(TokenAt(owner, at + i));
    logprobs.push_back(-0.25f * static_cast<float>(at + i + 1));
  }
  record.fields.push_back(MakeField("tokens", Dtype::kI32, tokens));
  if (sampled) record.fields.push_back(MakeField("logprobs", Dtype::kF32, logprobs));
  return record;
}

class Harness {
 public:
  explicit Harness(Spec spec = SmallSpec(), std::vector<uint64_t> rows = {1000},
                   int64_t queue_incarnation = 1, int64_t levels = 1)
      : spec_(spec),
        options_({.id = std::string(32, 'a'),
                  .queue_incarnation = static_cast<uint32_t>(queue_incarnation),
                  .seed = 99}),
        rows_(std::make_shared<Rows>(std::move(rows), levels)),
        job_(std::make_unique<Job>(options_, spec, rows_)),
        twin_(std::make_unique<Job>(options_, spec, rows_)) {}

  // The usual beginning: the workers are listed, the trainer is restored, version (1, 0) is
  // published, and rollout r1 has loaded it.
  void Start() {
    SetWorkers();
    EXPECT_TRUE(Call<RestoreAnswer>(Trainer(), Restore{}).ok());
    EXPECT_TRUE(
        Call<AdvanceVersionAnswer>(Trainer(), AdvanceVersion{.next = {trainer_incarnation, 0}})
            .ok());
    Load(Rollout(), {trainer_incarnation, 0});
  }

  void SetWorkers(Phase phase = Phase::kOpen) {
    SetJob set{.revision = ++revision_, .spec = spec_, .phase = phase};
    set.workers = {{"t1", WorkerRole::kTrainer, trainer_incarnation},
                   {"w1", WorkerRole::kReward, reward_incarnation}};
    for (const auto& [id, incarnation] : rollouts)
      set.workers.push_back({id, WorkerRole::kRollout, incarnation});
    EXPECT_TRUE(Call<SetJobAnswer>({"controller", 0}, set).ok());
  }

  void Load(const Caller& rollout, PolicyVersion version) {
    EXPECT_TRUE(Call<RenewAnswer>(rollout, Renew{.loaded = {{0, version, true}}}).ok());
  }

  Caller Trainer() const { return {"t1", trainer_incarnation}; }
  Caller Reward() const { return {"w1", reward_incarnation}; }
  Caller Rollout(const std::string& id = "r1") const { return {id, rollouts.at(id)}; }

  // Sends an event and returns the number of the call. Result() gives its answer unless it parks.
  uint64_t Send(const Caller& caller, Input input) {
    const uint64_t call = ++calls_;
    Deliver({.now = now, .call = call, .caller = caller, .input = std::move(input)});
    return call;
  }

  void Advance(absl::Duration time) {
    now += time;
    Deliver({.now = now, .input = Tick{}});
  }

  bool Answered(uint64_t call) const { return answers_.contains(call); }
  template <typename T>
  absl::StatusOr<T> Result(uint64_t call) {
    const auto it = answers_.find(call);
    if (it == answers_.end()) return absl::DeadlineExceededError("parked");
    if (const auto* status = std::get_if<absl::Status>(&it->second)) return *status;
    return std::get<T>(it->second);
  }

  template <typename T>
  absl::StatusOr<T> Call(const Caller& caller, Input input) {
    return Result<T>(Send(caller, std::move(input)));
  }

  Id16 Request() {
    Id16 id;
    id.bytes[0] = 1;
    const uint64_t n = ++requests_;
    std::memcpy(id.bytes.data() + 8, &n, 8);
    return id;
  }

  absl::StatusOr<AdmitAnswer> Admitted(uint32_t room, const std::string& rollout = "r1") {
    return Call<AdmitAnswer>(Rollout(rollout), Admit{.request = Request(), .room = room});
  }

  // Returns the status of this record.
  absl::Status PutOne(const Caller& caller, Record record, uint64_t* watermark = nullptr,
                      uint32_t* repeats = nullptr) {
    const auto answer = Call<PutAnswer>(caller, Put{{std::move(record)}});
    if (!answer.ok()) return answer.status();
    if (repeats != nullptr) *repeats = answer->repeats;
    if (answer->failed.empty()) return absl::OkStatus();
    if (watermark != nullptr) *watermark = answer->failed[0].watermark;
    return answer->failed[0].status;
  }

  // Seals a member with the count and the CRC32C of the tokens that the job has of it.
  Item SealIt(const Caller& caller, const TrajectoryRef& ref, const Id16& lease) {
    const Group* group = job_->group(ref.group.ordinal);
    SealItem item{.ref = ref, .lease = lease, .finish = Finish::kStop, .turns = 1};
    if (group != nullptr) {
      item.tokens = group->prompt.tokens() + group->members[*ref.member].log.tokens();
      item.crc32c = group->members[*ref.member].log.crc32c();
    }
    return Call<ItemsAnswer>(caller, Seal{{item}})->items[0];
  }

  // Writes a whole member and seals it: 4 prompt tokens of the group, the sampled tokens of `runs`,
  // and the messages.
  void Sample(const Caller& caller, const queue::Grant& grant, const Member& member,
              std::vector<VersionRun> runs) {
    const TrajectoryRef ref{grant.group, member.member, member.attempt};
    ASSERT_TRUE(PutOne(caller, PieceRecord({.group = grant.group}, member.lease.id,
                                           SegmentRole::kPrompt, 0, 4))
                    .ok());

    // A later attempt continues after the prefix that is stored.
    uint64_t at = std::max<uint64_t>(4, member.prefix);
    for (const VersionRun& run : runs) {
      ASSERT_TRUE(PutOne(caller, PieceRecord(ref, member.lease.id, SegmentRole::kSampled, at,
                                             run.count, {run}))
                      .ok());
      at += run.count;
    }

    ASSERT_TRUE(
        PutOne(caller,
               {.owner = ref, .lease = member.lease.id, .fields = {TextField("messages", "[]")}})
            .ok());
    ASSERT_TRUE(SealIt(caller, ref, member.lease.id).status.ok());
  }

  void SampleAll(const Caller& caller, const AdmitAnswer& admitted, PolicyVersion version) {
    for (const queue::Grant& grant : admitted.grants) {
      for (const Member& member : grant.members) Sample(caller, grant, member, {{version, 3, 0}});
    }
  }

  absl::Status PutReward(const TaskGrant& task, double reward, const std::string& status = "ok") {
    Record record{.owner = task.owner, .task = task.id, .lease = task.lease.id, .last = true};
    record.fields = {TextField("reward_status", status)};
    if (status == "ok")
      record.fields.push_back(MakeField<double>("task_reward", Dtype::kF64, {reward}));
    return PutOne(Reward(), record);
  }

  // Scores all ready tasks and returns their number. Member m gets reward_of() of its task.
  int ScoreAll() {
    const uint64_t call =
        Send(Reward(), LeaseTasks{.request = Request(), .rooms = {{"cpu", 1000}}});
    // No task is ready. The caller goes away, so that the parked call takes no later task.
    if (!Answered(call)) {
      Deliver({.now = now, .call = call, .caller = Reward(), .input = CallerGone{}});
      return 0;
    }

    const auto leased = Result<LeaseTasksAnswer>(call);
    EXPECT_TRUE(leased.ok()) << leased.status();
    for (const TaskGrant& task : leased->tasks) EXPECT_TRUE(PutReward(task, reward_of(task)).ok());
    return static_cast<int>(leased->tasks.size());
  }

  absl::StatusOr<AcquireBatchAnswer> Acquired(int64_t k, bool stream = false, uint32_t from = 0) {
    return Call<AcquireBatchAnswer>(Trainer(),
                                    AcquireBatch{.k = k, .from = from, .stream = stream});
  }

  absl::StatusOr<ApplyAnswer> ApplyBatch(const AcquireBatchAnswer& batch,
                                         bool want_cursor = false) {
    return Call<ApplyAnswer>(Trainer(), queue::Apply{.k = batch.k,
                                                     .lease = batch.lease.id,
                                                     .crc32c = batch.crc32c,
                                                     .want_cursor = want_cursor,
                                                     .ess = ess});
  }

  // One whole step, from admission to AdvanceVersion.
  void RunStep(bool want_cursor = false) {
    const int64_t k = job_->version();
    auto admitted = Admitted(1000);
    if (admitted.ok()) SampleAll(Rollout(), *admitted, {trainer_incarnation, loaded});
    ScoreAll();

    auto batch = Acquired(k);
    ASSERT_TRUE(batch.ok()) << batch.status();
    auto applied = ApplyBatch(*batch, want_cursor);
    ASSERT_TRUE(applied.ok()) << applied.status();
    cursor = applied->cursor;
    Publish();
  }

  void Publish() {
    ASSERT_TRUE(Call<AdvanceVersionAnswer>(
                    Trainer(), AdvanceVersion{.expected = job_->watch().published[0].version,
                                              .next = {trainer_incarnation, job_->version()}})
                    .ok());
    loaded = job_->version();
    Load(Rollout(), {trainer_incarnation, loaded});
  }

  // The daemon dies, and a new one loads what the log keeps at the job's durability. It knows no
  // engines and no parked calls.
  void RestartQueue() {
    const Encoded dump = job_->Dump(kept());
    for (std::unique_ptr<Job>* job : {&job_, &twin_}) {
      *job = std::make_unique<Job>(options_, spec_, rows_);
      EXPECT_TRUE((*job)->Load(dump.head, AsRead(dump)).ok());
    }
    Send({}, Restarted{.incarnation = job_->queue_incarnation() + 1});
  }

  Job& job() { return *job_; }
  const Spec& spec() const { return spec_; }
  std::vector<Alarm> alarms;
  std::vector<CancelHint> cancel;
  std::string cursor;
  std::optional<double> ess;  // What the trainer reports with each step.
  // The reward of a task. By default member m gets reward m.
  std::function<double(const TaskGrant&)> reward_of = [](const TaskGrant& task) {
    return *task.owner.member;
  };
  int64_t trainer_incarnation = 1, reward_incarnation = 1, loaded = 0;
  std::map<std::string, int64_t> rollouts = {{"r1", 1}, {"r2", 1}};
  Instant now = absl::Seconds(1000);
  // Checks FindViolations() after every event. Tests of a large state switch this off, because it
  // computes everything anew.
  bool check = true;
  std::function<void(const Event&)> after;  // Is called with each event after it was applied.
  std::vector<Event> events;                // All that were delivered.
  // After each so many events the twin is loaded anew, from the job's dump. 0: there is no twin,
  // for a test whose faults are not in the events.
  size_t reload_each = 16;

 private:
  // What the log keeps at the job's durability.
  Payload kept() const {
    return spec_.durability == Durability::kMetadata ? Payload::kLeftOut : Payload::kKept;
  }

  void DeliverToTwin(const Event& event, const Effects& expected) {
    const Encoded encoded = EncodeEvent(event, kept());
    const absl::StatusOr<Event> read = DecodeEvent(encoded.head, AsRead(encoded));
    ASSERT_TRUE(read.ok()) << read.status();

    Effects effects;
    twin_->Step(*read, &effects);
    EXPECT_EQ(BytesOf(effects), BytesOf(expected))
        << "a recovered job answers event " << events.size() << " differently";
    EXPECT_EQ(twin_->NextWake(), job_->NextWake());

    if (events.size() % reload_each != 0) return;
    const Encoded dump = job_->Dump(kept());
    EXPECT_TRUE(twin_->Dump(kept()).head == dump.head)
        << "a recovered job differs after event " << events.size();

    twin_ = std::make_unique<Job>(options_, spec_, rows_);
    ASSERT_TRUE(twin_->Load(dump.head, AsRead(dump)).ok());
    EXPECT_TRUE(twin_->Dump(kept()).head == dump.head)
        << "a dump does not survive its loading, after event " << events.size();
  }

  void Deliver(Event event) {
    events.push_back(event);
    Effects effects;
    job_->Step(event, &effects);
    if (reload_each > 0) DeliverToTwin(event, effects);
    for (auto& [call, reply] : effects.answers) {
      EXPECT_FALSE(answers_.contains(call)) << "answered twice";
      answers_.insert_or_assign(call, std::move(reply));
    }
    alarms.insert(alarms.end(), effects.alarms.begin(), effects.alarms.end());
    cancel.insert(cancel.end(), effects.cancel.begin(), effects.cancel.end());
    if (after) after(event);
    if (check) {
      EXPECT_THAT(job_->FindViolations(), testing::IsEmpty());
    }
  }

  const Spec spec_;
  const Job::Options options_;
  const std::shared_ptr<const RowSource> rows_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Job> twin_;
  uint64_t calls_ = 0, requests_ = 0, revision_ = 0;
  std::map<uint64_t, Reply> answers_;
};

// The trainer comes back as the next incarnation and restores the queue.
inline absl::StatusOr<RestoreAnswer> RestartTrainer(Harness& h, const std::string& cursor,
                                                    const std::string& checkpoint,
                                                    RestoreMode mode = RestoreMode::kReplay) {
  ++h.trainer_incarnation;
  h.SetWorkers();
  return h.Call<RestoreAnswer>(h.Trainer(), Restore{cursor, checkpoint, mode});
}

}  // namespace sluice::queue
