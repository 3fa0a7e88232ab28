// Fuzzes the queue's service with requests in any order and form.
//
// Input: steps, each u8 Op (modulo the number of operations), u16 size little-endian, and `size`
// bytes, which for a call are its protobuf message (queue_calls.h).
#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/testing/queue_spec.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/fuzz/queue_calls.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {
namespace v1 = queue::v1;
using common::v1::Record;

constexpr size_t kReordered = 40;  // Reordered copies of each seed.

// Makes the calls of all clients of a job, and records them as an input for the fuzzer.
class Scribe {
 public:
  void Do(Op op, const std::string& bytes) {
    input.push_back(static_cast<char>(op));
    input.push_back(static_cast<char>(bytes.size()));
    input.push_back(static_cast<char>(bytes.size() >> 8));
    input += bytes;
    calls.Do(op, bytes);
  }
  template <typename Response, typename Request>
  Response SendForAnswer(Op op, const Request& request) {
    Do(op, request.SerializeAsString());
    const auto* const answer = dynamic_cast<const Response*>(calls.answer());
    return answer == nullptr ? Response() : *answer;
  }
  template <typename Request>
  void Send(Op op, const Request& request) {
    Do(op, request.SerializeAsString());
  }
  std::string Ref(const std::string& id) const { return calls.Ref(id); }

  void SetUpJob(const v1::QueueSpec& spec) {
    v1::SetJobRequest set;
    set.set_revision(1);
    set.set_phase(v1::PHASE_OPEN);
    *set.mutable_spec() = spec;
    for (const auto& [id, role] :
         {std::pair("t1", rpc::v1::ROLE_TRAINER), std::pair("r1", rpc::v1::ROLE_ROLLOUT),
          std::pair("w1", rpc::v1::ROLE_REWARD)}) {
      common::v1::Worker& worker = *set.add_workers();
      worker.set_id(id);
      worker.set_role(role);
      worker.set_incarnation(1);
    }
    Send(Op::kSetJob, set);
    v1::RestoreRequest restore;
    restore.set_mode(v1::RESTORE_MODE_REPLAY);
    Send(Op::kRestore, restore);
  }
  void Publish(int64_t version) {
    v1::AdvanceVersionRequest advance;
    if (version > 0) {
      advance.mutable_expected()->set_incarnation(1);
      advance.mutable_expected()->set_number(version - 1);
    }

    advance.mutable_next()->set_incarnation(1);
    advance.mutable_next()->set_number(version);
    Send(Op::kAdvanceVersion, advance);
    ReportLoaded(version);
  }
  void ReportLoaded(int64_t version) {
    v1::RenewRequest renew;
    common::v1::Loaded& loaded = *renew.add_loaded();
    loaded.mutable_version()->set_incarnation(1);
    loaded.mutable_version()->set_number(version);
    loaded.set_verified(true);
    Send(Op::kRenew, renew);
  }
  static void AddTokens(const char* name, common::v1::Dtype dtype, int count, Record* record,
                        std::string* payload) {
    common::v1::Field& field = *record->add_fields();
    field.set_name(name);
    field.set_dtype(dtype);
    field.add_shape(count);
    field.set_bytes(4 * count);
    payload->append(4 * count, '\1');
  }
  static void AddInline(const char* name, common::v1::Dtype dtype, const std::string& bytes,
                        Record* record) {
    common::v1::Field& field = *record->add_fields();
    field.set_name(name);
    field.set_dtype(dtype);
    field.set_bytes(bytes.size());
    field.set_inline_(bytes);
  }
  // Puts the prompt, the answer and the messages of a member, and seals the member.
  void Sample(const v1::Grant& grant, const v1::Member& member, int64_t version) {
    v1::PutMessage put;
    Record& prompt = *put.mutable_header()->add_records();
    prompt.mutable_owner()->set_group(Ref(grant.group()));
    prompt.set_lease(Ref(member.lease().id()));
    prompt.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
    prompt.mutable_piece()->set_count(3);
    AddTokens("tokens", common::v1::DTYPE_I32, 3, &prompt, put.mutable_payload());

    Record& sampled = *put.mutable_header()->add_records();
    common::v1::TrajectoryRef owner;
    owner.set_group(Ref(grant.group()));
    owner.set_member(member.member());
    owner.set_attempt(member.attempt());
    *sampled.mutable_owner() = owner;
    sampled.set_lease(Ref(member.lease().id()));
    common::v1::Piece& piece = *sampled.mutable_piece();
    piece.set_at(3);
    piece.set_segment(1);
    piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece.set_trainable(true);
    piece.set_count(5);
    common::v1::VersionRun& run = *piece.add_runs();
    run.mutable_version()->set_incarnation(1);
    run.mutable_version()->set_number(version);
    run.set_count(5);
    AddTokens("tokens", common::v1::DTYPE_I32, 5, &sampled, put.mutable_payload());
    AddTokens("logprobs", common::v1::DTYPE_F32, 5, &sampled, put.mutable_payload());

    Record& whole = *put.mutable_header()->add_records();
    *whole.mutable_owner() = owner;
    whole.set_lease(Ref(member.lease().id()));
    AddInline("messages", common::v1::DTYPE_U8, "[]", &whole);
    Send(Op::kPut, put);

    v1::SealRequest seal;
    v1::SealItem& item = *seal.add_items();
    *item.mutable_ref() = owner;
    item.set_lease(Ref(member.lease().id()));
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);
    Send(Op::kSeal, seal);
  }
  void Score() {
    v1::LeaseTasksRequest lease;
    lease.set_generation(1);
    v1::Room& room = *lease.add_rooms();
    room.set_pool("cpu");
    room.set_count(8);
    const auto leased = SendForAnswer<v1::LeaseTasksResponse>(Op::kLeaseTasks, lease);

    for (const v1::Task& task : leased.tasks()) {
      v1::PutMessage put;
      put.mutable_header()->mutable_call()->mutable_job()->set_worker("w1");
      put.mutable_header()->mutable_call()->mutable_job()->set_incarnation(1);
      Record& record = *put.mutable_header()->add_records();
      *record.mutable_owner() = task.owner();
      record.mutable_owner()->set_group(Ref(task.owner().group()));
      record.set_task(Ref(task.id()));
      record.set_lease(Ref(task.lease().id()));
      record.set_last(true);
      AddInline("reward_status", common::v1::DTYPE_UNSPECIFIED, "ok", &record);
      const double reward = task.owner().member();
      AddInline("task_reward", common::v1::DTYPE_F64,
                {reinterpret_cast<const char*>(&reward), sizeof(reward)}, &record);
      Send(Op::kPut, put);
    }
  }
  // Reads the batch of step k and applies it. With `durable` it also makes the step durable.
  void Train(int64_t k, bool durable) {
    v1::AcquireBatchRequest acquire;
    acquire.set_k(k);
    const auto got = SendForAnswer<v1::AcquireBatchResponse>(Op::kAcquireBatch, acquire);
    if (!got.has_batch()) return;
    v1::GetRequest get;
    get.set_lease(Ref(got.batch().lease().id()));

    for (const v1::BatchGroup& group : got.batch().groups()) {
      common::v1::Want& want = *get.add_wants();
      want.mutable_owner()->set_group(Ref(group.group()));
      for (const v1::BatchMember& member : group.members()) {
        common::v1::Want& own = *get.add_wants();
        own.mutable_owner()->set_group(Ref(group.group()));
        own.mutable_owner()->set_member(member.member());
        own.mutable_owner()->set_attempt(member.attempt());
      }
    }

    Send(Op::kGet, get);
    v1::ApplyRequest apply;
    apply.set_k(k);
    apply.set_lease(Ref(got.batch().lease().id()));
    apply.set_want_cursor(durable);
    const auto applied = SendForAnswer<v1::ApplyResponse>(Op::kApply, apply);

    if (durable && applied.ledger().hash().size() == 32) {
      v1::DurableRequest request;
      request.set_version(k + 1);
      request.set_checkpoint("step-1");
      request.set_hash(Ref(applied.ledger().hash()));
      Send(Op::kDurable, request);
    }
    if (durable && !applied.cursor().empty()) cursor = Ref(applied.cursor());
  }
  void PeekAll() {
    for (int what = v1::PEEK_WHAT_GROUPS; what <= v1::PEEK_WHAT_VIOLATIONS; ++what) {
      v1::PeekRequest peek;
      peek.set_what(static_cast<v1::PeekWhat>(what));
      peek.set_text(true);
      Send(Op::kPeek, peek);
    }
    Send(Op::kStats, v1::StatsRequest());
    Send(Op::kWatch, v1::WatchRequest());
  }
  v1::AdmitResponse Admit() {
    v1::AdmitRequest admit;
    admit.set_room(4);
    return SendForAnswer<v1::AdmitResponse>(Op::kAdmit, admit);
  }
  void Step(int64_t k, bool durable) {
    const v1::AdmitResponse admitted = Admit();
    for (const v1::Grant& grant : admitted.grants()) {
      for (const v1::Member& member : grant.members()) Sample(grant, member, k);
    }
    Score();
    PeekAll();
    Train(k, durable);
    Publish(k + 1);
  }

  QueueCalls calls;
  std::string input, cursor;
};

v1::QueueSpec SmallSpec() {
  v1::QueueSpec spec = SmallQueueSpec("rows.jsonl");
  spec.set_job_name("fuzz");
  spec.mutable_queue()->mutable_straggler()->set_reissues(1);
  spec.mutable_queue()->mutable_keep()->set_durability("full");
  spec.mutable_queue()->mutable_keep()->set_quota(1 << 20);
  return spec;
}

// Returns the bytes of Op::kClock for this time.
std::string Seconds(uint32_t seconds) {
  const uint32_t ticks = seconds * 100;
  return {static_cast<char>(ticks), static_cast<char>(ticks >> 8), static_cast<char>(ticks >> 16)};
}

// Returns an input that trains two steps with a restart of the queue between, and then goes back to
// the checkpoint of the first.
std::string TwoStepsInput(const v1::QueueSpec& spec) {
  Scribe scribe;
  scribe.SetUpJob(spec);
  scribe.Publish(0);
  scribe.Step(0, /*durable=*/true);
  scribe.Do(Op::kRestart, "");
  scribe.ReportLoaded(1);
  scribe.Step(1, /*durable=*/false);
  SLUICE_CHECK_MSG(scribe.calls.job()->version() == 2, "a seed trains two steps");
  v1::RestoreRequest restore;
  restore.set_mode(v1::RESTORE_MODE_REQUEUE);
  restore.set_checkpoint("step-1");
  restore.set_cursor(scribe.cursor);
  scribe.Send(Op::kRestore, restore);

  return scribe.input;
}

// Returns an input in which leases end by time, by Release and by Drop, parked calls are forgotten,
// and the disk fills up.
std::string TroubleInput() {
  Scribe scribe;
  scribe.SetUpJob(SmallSpec());
  scribe.Publish(0);

  const v1::AdmitResponse admitted = scribe.Admit();
  scribe.Do(Op::kClock, Seconds(61));
  scribe.ReportLoaded(0);
  scribe.Do(Op::kDisk, std::string(1, '\1'));
  scribe.Admit();
  scribe.Do(Op::kDisk, std::string(1, '\0'));
  const v1::AdmitResponse again = scribe.Admit();
  scribe.Do(Op::kForget, "");
  for (const v1::Grant& grant : admitted.grants()) {
    for (const v1::Member& member : grant.members()) scribe.Sample(grant, member, 0);
  }

  v1::DropRequest drop;
  for (const v1::Grant& grant : admitted.grants()) {
    v1::DropItem& item = *drop.add_items();
    item.mutable_ref()->set_group(scribe.Ref(grant.group()));
    item.set_lease(scribe.Ref(grant.members(0).lease().id()));
    item.set_reason("env_lost");
  }

  scribe.Send(Op::kDrop, drop);

  v1::ReleaseRequest release;
  release.mutable_call()->mutable_job()->set_worker("controller");
  release.set_worker("r1");
  release.set_incarnation(1);
  release.set_reason(v1::RELEASE_REASON_LOST);
  scribe.Send(Op::kRelease, release);
  v1::RetaskRequest retask;
  retask.set_mode(v1::RETASK_MODE_READMIT);
  scribe.Send(Op::kRetask, retask);
  scribe.Do(Op::kMemory, std::string(1, '\1'));
  scribe.PeekAll();
  scribe.Do(Op::kClock, Seconds(120));

  return scribe.input;
}

// Returns `input` with steps left out, repeated elsewhere, or swapped.
std::string Reordered(absl::string_view input, SplitMix64* random) {
  std::vector<std::string> steps;
  while (input.size() >= 3) {
    const size_t size = 3 + (static_cast<uint8_t>(input[1]) | static_cast<uint8_t>(input[2]) << 8);
    steps.emplace_back(input.substr(0, size));
    input.remove_prefix(size);
  }

  for (uint64_t n = 1 + random->Below(6); n > 0; --n) {
    const size_t from = random->Below(steps.size()), to = random->Below(steps.size());
    switch (random->Below(3)) {
      case 0: steps.erase(steps.begin() + from); break;
      case 1: steps.insert(steps.begin() + to, std::string(steps[from])); break;
      case 2: std::swap(steps[from], steps[to]); break;
    }
  }

  return absl::StrJoin(steps, "");
}

}  // namespace

void Run(absl::string_view input) {
  QueueCalls calls;
  while (input.size() >= 3) {
    const Op op =
        static_cast<Op>(static_cast<uint8_t>(input[0]) % static_cast<uint8_t>(Op::kCount));
    const size_t size = std::min<size_t>(
        static_cast<uint8_t>(input[1]) | static_cast<uint8_t>(input[2]) << 8, input.size() - 3);
    calls.Do(op, input.substr(3, size));
    input.remove_prefix(3 + size);
  }
  calls.CheckAll();
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {TwoStepsInput(SmallSpec()), TroubleInput()};
  v1::QueueSpec metadata = SmallSpec();
  metadata.mutable_queue()->mutable_keep()->set_durability("metadata");
  v1::QueueSpec strict = SmallSpec();
  strict.mutable_queue()->set_max_staleness(0);
  strict.set_filter(v1::GROUP_FILTER_SIGNAL);
  v1::QueueSpec rows = SmallSpec();
  rows.set_rows_only(true);
  rows.set_group_size(1);
  rows.set_group_min(1);
  rows.clear_tasks();
  for (const v1::QueueSpec& spec : {metadata, strict, rows}) seeds.push_back(TwoStepsInput(spec));
  SplitMix64 random(1);
  for (size_t i = 0, whole = seeds.size(); i < whole * kReordered; ++i)
    seeds.push_back(Reordered(seeds[i % whole], &random));

  return seeds;
}

}  // namespace sluice::fuzz
