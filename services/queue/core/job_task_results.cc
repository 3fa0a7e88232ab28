#include <algorithm>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// What rewards write. A task's fields become visible all at once, with its last record. A member's
// task writes fields of that member; a group's task writes fields of any sealed member (records
// that name it) and of the group (records that name no member).
namespace sluice::queue {
namespace {
constexpr size_t kCauseBytes = 300;  // Of a reward_status, with its reward_info, that is shown.
// Groups of a source in a row without one that was scored, after which the job fails. A batch's
// worth where that is more.
constexpr uint64_t kUnscorableGroups = 64;
// With "reject:" it stays in the log at each level of durability.
constexpr size_t kReasonBytes = kInHead - 7;

const Field* Named(const std::vector<std::pair<uint32_t, Field>>& fields, uint32_t whose,
                   absl::string_view name) {
  for (const auto& [owner, field] : fields) {
    if (owner == whose && field.name == name) return &field;
  }
  return nullptr;
}

absl::Status BadField(const std::string& task, absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_FIELD",
               absl::StrCat("task ", task, " ", what));
}

// A status that says what is wrong with the row, and so would be said of any answer to it.
bool IsFaultOfRow(absl::string_view status) { return status == "bad_row" || status == "no_part"; }

// A reason is counted by its name: a word.
bool IsVerdict(absl::string_view text) {
  if (text == "accept" || text == "reject") return true;
  if (!absl::ConsumePrefix(&text, "reject:") || text.empty() || text.size() > kReasonBytes)
    return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == ' ';
  });
}
}  // namespace

// A result that was taken before. What was taken stands: equal bytes, of this round or an earlier
// one, are a repeat; so is a field that went with its member.
absl::Status Job::RepeatedResult(const Record& record, const Group& group) {
  const GroupMember* member = record.owner.member ? &group.members[*record.owner.member] : nullptr;
  if (member != nullptr && member->state == MemberState::kDropped) return absl::OkStatus();
  const auto& fields = member != nullptr ? member->fields : group.fields;
  for (const Field& field : record.fields) {
    const auto it = fields.find(field.name);
    const auto equal = [&](const Field& other) {
      return other.name == field.name && other.bytes == field.bytes;
    };
    const bool before =
        member != nullptr && std::any_of(member->past.begin(), member->past.end(), equal);
    if (it != fields.end() && !equal(it->second) && !before)
      return Conflict(record.owner, "field " + field.name);
  }
  return absl::OkStatus();
}

// Whether a task may end with these fields.
absl::Status Job::CheckResult(const Group& group, const LeaseEntry& entry,
                              const std::vector<std::pair<uint32_t, Field>>& staged) const {
  const TaskSpec& spec = spec_.tasks[entry.task];
  const auto status_ok = [&](uint32_t whose) {
    const Field* status = Named(staged, whose, "reward_status");
    return status == nullptr || status->bytes.view() == "ok";
  };
  if (!status_ok(kWholeGroup)) return absl::OkStatus();
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const bool meant = entry.member == m || (entry.member == kWholeGroup &&
                                             group.members[m].state == MemberState::kSealed);
    if (!meant || !status_ok(m) || !absl::c_linear_search(spec.produces, "task_reward")) continue;
    const Field* reward = Named(staged, m, "task_reward");
    if (reward == nullptr || reward->dtype != static_cast<int>(Dtype::kF64) ||
        reward->bytes.size != sizeof(double)) {
      return BadField(spec.name, absl::StrCat("ended without task_reward, one F64, of member ", m));
    }
  }
  if (!absl::c_linear_search(spec.produces, "verdict")) return absl::OkStatus();
  const Field* verdict = Named(staged, kWholeGroup, "verdict");
  if (verdict != nullptr && IsVerdict(verdict->bytes.view())) return absl::OkStatus();
  return BadField(spec.name, "ended without the group's verdict: accept, reject or reject:REASON");
}

absl::Status Job::PutTask(const Caller& caller, const Record& record, Group& group, bool* repeat) {
  const auto lost = [&] {
    return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                 absl::StrCat(record.owner.str(), ": the task is another's, or done"));
  };
  if (leases_.Ended(record.lease) == LeaseEnd::kDone) {
    *repeat = true;
    return RepeatedResult(record, group);
  }
  const LeaseEntry* entry = leases_.Find(record.lease);
  const bool owns = entry != nullptr && entry->kind == LeaseKind::kTask &&
                    entry->group == group.id.ordinal &&
                    (entry->member == kWholeGroup || record.owner.member == entry->member) &&
                    entry->worker == caller.worker && entry->incarnation == caller.incarnation;
  if (!owns) return lost();
  const uint32_t index = entry->member, t = entry->task;
  const uint32_t whose = record.owner.member.value_or(kWholeGroup);
  TaskProgress& task = TaskOf(group, index, t);
  if (task.id != *record.task) return lost();
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kReward));
  const TaskSpec& spec = spec_.tasks[t];
  GroupMember* member = whose == kWholeGroup ? nullptr : &group.members[whose];
  if (member != nullptr && member->state == MemberState::kDropped) {
    *repeat = true;  // It went while the group's task ran; nobody wants its fields.
    if (record.last)
      return BadField(
          spec.name, "ended with a record of a member that was dropped; end with one of the group");
    return absl::OkStatus();
  }
  uint64_t bytes = 0;
  for (const Field& field : record.fields) {
    if (!absl::c_linear_search(spec.produces, field.name))
      return BadField(spec.name, absl::StrCat("does not produce field ", field.name));
    SLUICE_RETURN_IF_ERROR(CheckFinite(field));
    bytes += field.bytes.size;
  }
  for (const auto& [owner, field] : task.staged) bytes += owner == whose ? field.bytes.size : 0;
  const auto held = [&] {
    return member == nullptr ? group.field_bytes : group.prompt.bytes() + member->stored();
  };
  const uint64_t limit = member == nullptr ? Spec::kFieldBytes : spec_.member_bytes();
  if (held() + bytes > limit && member != nullptr) {  // Earlier rounds make way.
    for (const Field& field : member->past)
      member->field_bytes -= field.bytes.size, stored_bytes_ -= field.bytes.size;
    member->past.clear();
  }
  if (held() + bytes > limit) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), ": results of ", bytes, " B exceed the ", limit,
                              " B reserved; shorten reward_info"));
  }
  std::vector<std::pair<uint32_t, Field>> staged = task.staged;
  for (const Field& field : record.fields) {
    const Field* before = Named(staged, whose, field.name);
    if (before != nullptr && !(before->bytes == field.bytes))
      return Conflict(record.owner, "field " + field.name);
    if (before == nullptr) staged.emplace_back(whose, field);
  }
  if (record.last) SLUICE_RETURN_IF_ERROR(CheckResult(group, *entry, staged));
  task.staged = std::move(staged);
  if (record.last) FinishTask(group, index, t);
  return absl::OkStatus();
}

void Job::Store(Group& group, uint32_t whose, Field field) {
  auto& fields = whose == kWholeGroup ? group.fields : group.members[whose].fields;
  const uint64_t size = field.bytes.size;
  const std::string name = field.name;
  if (!fields.emplace(name, std::move(field)).second) return;
  (whose == kWholeGroup ? group.field_bytes : group.members[whose].field_bytes) += size;
  stored_bytes_ += size;
}

void Job::FinishTask(Group& group, uint32_t index, uint32_t t) {
  TaskProgress& task = TaskOf(group, index, t);
  leases_.End(*task.lease, LeaseEnd::kDone);
  task.lease.reset();
  task.state = TaskState::kDone;
  task.since = now_;
  const std::vector<std::pair<uint32_t, Field>> staged = std::move(task.staged);
  task.staged.clear();
  const uint32_t round = task.round;
  std::vector<uint32_t> unscorable;
  bool row_at_fault = false;
  for (const auto& [whose, field] : staged) {
    if (field.name != "reward_status" || field.bytes.view() == "ok") continue;
    const Field* const info = Named(staged, whose, "reward_info");
    const std::string text = absl::StrCat(field.bytes.view(), info == nullptr ? "" : ": ",
                                          info == nullptr ? "" : info->bytes.view());
    task.cause =
        absl::CHexEscape(text.substr(0, kCauseBytes));  // Any bytes; a cause is shown, as JSON too.
    row_at_fault |= IsFaultOfRow(field.bytes.view());
    if (whose == kWholeGroup) return DropUnscorable(group, task.cause, row_at_fault);
    if (group.members[whose].state != MemberState::kDropped) unscorable.push_back(whose);
  }
  const std::string cause = task.cause;
  RemoveIndexes(group);
  for (uint32_t whose : unscorable) EndMember(group, whose, "unscorable");
  AddIndexes(group);
  if (!unscorable.empty() && group.standing() < spec_.group_min)
    return DropUnscorable(group, cause, row_at_fault);
  for (const auto& [whose, field] : staged) {
    if (whose != kWholeGroup && group.members[whose].state == MemberState::kDropped) continue;
    if (whose != kWholeGroup && field.name == "task_reward") {
      double value;
      std::memcpy(&value, field.bytes.data.get(), sizeof(value));
      group.members[whose].task_reward = value;
    }
    Field written = field;
    written.round = round;
    Store(group, whose, std::move(written));
  }
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state == MemberState::kSealed) ReadyTasks(group, m);
  }
  Settle(group, "unscorable");
}

// Another try would not help a row that is at fault itself, so it is drawn no more.
void Job::DropUnscorable(Group& group, const std::string& cause, bool row_at_fault) {
  const bool quarantined = row_at_fault && !group.own && prompts_.Quarantine(group.row);
  CountUnscorable(group, cause);
  if (quarantined)
    NoteQuarantined(group, "unscorable", absl::StrCat("cannot be scored (", cause, ")"));
  DropGroup(group, "unscorable");
}

void Job::CountUnscorable(const Group& group, const std::string& cause) {
  const uint32_t source = group.row.source;
  UnscorableRun& run = unscorable_[source];
  if (run.groups++ == 0)
    run.first = group.row.index, run.source = SourceName(group), run.cause = cause;

  const bool all_rows = !group.own && prompts_.AllQuarantined(source);
  const bool too_many = run.groups >= std::max<uint64_t>(kUnscorableGroups, spec_.groups_per_step);
  if ((!all_rows && !too_many) || !failure_.ok()) return;
  Fail("unscorable",
       ErrorWith(absl::StatusCode::kFailedPrecondition,
                 {.reason = "UNSCORABLE",
                  .catalogue = "SLUICE-QUEUE-0011",
                  .hint = "check the rewards and the gold answers of that data source"},
                 run.Describe()));
}

const Job::UnscorableRun* Job::LongestUnscorable() const {
  const auto fewer = [](const auto& a, const auto& b) { return a.second.groups < b.second.groups; };
  const auto longest = std::max_element(unscorable_.begin(), unscorable_.end(), fewer);
  return longest == unscorable_.end() ? nullptr : &longest->second;
}

std::string Job::UnscorableRun::Describe() const {
  return absl::StrCat("every answer of data source ", source, " is unscorable: none of its last ",
                      groups, " groups could be scored; the first was row ", first, ": ", cause);
}

}  // namespace sluice::queue
