#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Put: rewards write the results of tasks. A task's fields become visible all at once, with its
// last record. A member's task writes fields of that member. A group's task writes fields of any
// sealed member (records that name it) and of the group (records that name no member).
namespace sluice::queue {
namespace {
constexpr size_t kCauseBytes = 300;  // Of reward_status and reward_info, only this much is shown.
// The most bytes of a verdict's reason. The field, with "reject:" before it, is then at most
// kInHead bytes long, so the log keeps it at every level of durability.
constexpr size_t kReasonBytes = kInHead - 7;

const Field* FindField(const TaskQueue::StagedFields& fields, uint32_t whose,
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

// Whether the field `reward_gen`, one U32, is this generation.
bool IsOfGeneration(const Field& field, const std::optional<uint32_t>& generation) {
  uint32_t value = 0;
  if (field.bytes.lost() || field.bytes.size != sizeof value) return field.bytes.lost();
  std::memcpy(&value, field.bytes.view().data(), sizeof value);
  return generation == value;
}

// Whether the status says what is wrong with the row: any answer to it would get this status.
bool IsFaultOfRow(absl::string_view status) { return status == "bad_row" || status == "no_part"; }

// A reason is a short text of plain characters, as it becomes the name of a counter.
bool IsVerdict(absl::string_view text) {
  if (text == "accept" || text == "reject") return true;
  if (!absl::ConsumePrefix(&text, "reject:") || text.empty() || text.size() > kReasonBytes)
    return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == ' ';
  });
}
}  // namespace

// The places [from, to) of the member's trainable tokens, in order.
std::vector<std::pair<double, double>> TrainableRuns(const Group& group, uint32_t m) {
  std::vector<std::pair<double, double>> runs;
  for (const StoredPiece& stored : group.members[m].log.pieces()) {
    const Piece& piece = stored.piece;
    if (piece.trainable) runs.emplace_back(piece.at, piece.at + piece.count);
  }
  return runs;
}

// rew_tok: F64 [n, 2], the positions of trainable tokens, ascending, and their rewards. PutResult()
// has made sure that the numbers are finite.
absl::Status CheckTokenRewards(const TaskSpec& spec, const Group& group, uint32_t m,
                               const Field& field) {
  if (field.dtype != static_cast<int>(Dtype::kF64) || field.bytes.size % (2 * sizeof(double)) != 0)
    return BadField(spec.name,
                    absl::StrCat("wrote a rew_tok that is no F64 [n, 2], of member ", m));
  if (field.bytes.lost()) return absl::OkStatus();  // Checked when it was stored.
  const std::vector<std::pair<double, double>> runs = TrainableRuns(group, m);
  auto run = runs.begin();
  double last = -1;
  for (size_t at = 0; at < field.bytes.size; at += 2 * sizeof(double)) {
    double position = 0;
    std::memcpy(&position, field.bytes.view().data() + at, sizeof position);
    while (run != runs.end() && run->second <= position) ++run;
    if (run == runs.end() || position < run->first || position <= last ||
        position != std::floor(position)) {
      return BadField(spec.name,
                      absl::StrCat("rewards token ", position, " of member ", m, " after token ",
                                   last, "; wanted: trainable tokens, ascending"));
    }
    last = position;
  }
  return absl::OkStatus();
}

// For a record of a task that is done: what it wrote stands. A record with equal bytes, of this
// round or an earlier one, is a repeat. So is any record of a member that was dropped since.
absl::Status Job::CheckRepeatedResult(const Record& record, const Group& group) {
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
      return ConflictError(record.owner, "field " + field.name);
  }
  return absl::OkStatus();
}

// Whether the task of this lease may end with these fields.
absl::Status Job::CheckResult(const Group& group, const LeaseEntry& entry,
                              const TaskQueue::StagedFields& staged) const {
  const TaskSpec& spec = spec_.tasks[entry.task];
  const auto status_ok = [&](uint32_t whose) {
    const Field* status = FindField(staged, whose, "reward_status");
    return status == nullptr || status->bytes.view() == "ok";
  };
  if (!status_ok(kWholeGroup)) return absl::OkStatus();

  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const bool meant = entry.member == m || (entry.member == kWholeGroup &&
                                             group.members[m].state == MemberState::kSealed);
    if (!meant || !status_ok(m) || !absl::c_linear_search(spec.produces, "task_reward")) continue;
    const Field* reward = FindField(staged, m, "task_reward");
    if (reward == nullptr || reward->dtype != static_cast<int>(Dtype::kF64) ||
        reward->bytes.size != sizeof(double)) {
      return BadField(spec.name, absl::StrCat("ended without task_reward, one F64, of member ", m));
    }
    const Field* const generation = FindField(staged, m, "reward_gen");
    if (generation != nullptr && !IsOfGeneration(*generation, group.generation)) {
      return BadField(spec.name, absl::StrCat("has a reward_gen of member ", m,
                                              " that is not the generation of its group"));
    }
    const Field* const tokens = FindField(staged, m, "rew_tok");
    if (tokens != nullptr) SLUICE_RETURN_IF_ERROR(CheckTokenRewards(spec, group, m, *tokens));
  }

  if (!absl::c_linear_search(spec.produces, "verdict")) return absl::OkStatus();
  const Field* verdict = FindField(staged, kWholeGroup, "verdict");
  if (verdict != nullptr && IsVerdict(verdict->bytes.view())) return absl::OkStatus();
  return BadField(spec.name, "ended without the group's verdict: accept, reject or reject:REASON");
}

absl::Status Job::PutResult(const Caller& caller, const Record& record, const Group& group,
                            bool* repeat) {
  if (leases_.FindEnd(record.lease) == LeaseEnd::kDone) {
    *repeat = true;
    return CheckRepeatedResult(record, group);
  }

  // A member's task writes to its member alone, a group's task to any member.
  const auto lost = [&] {
    return Error(
        absl::StatusCode::kAborted, "LEASE_LOST",
        absl::StrCat(record.owner.str(), ": the task was given to another worker, or is done"));
  };
  const LeaseEntry* const entry = leases_.Find(record.lease);
  const bool owns = entry != nullptr && entry->kind == LeaseKind::kTask &&
                    entry->group == group.id.ordinal &&
                    (entry->member == kWholeGroup || record.owner.member == entry->member) &&
                    entry->worker == caller.worker && entry->incarnation == caller.incarnation;
  if (!owns) return lost();

  const uint32_t index = entry->member, t = entry->task;
  const TaskProgress& task = TaskQueue::Find(group, index, t);
  if (task.id != *record.task) return lost();
  SLUICE_RETURN_IF_ERROR(callers_.CheckListed(caller, WorkerRole::kReward));

  const TaskSpec& spec = spec_.tasks[t];
  const uint32_t whose = record.owner.member.value_or(kWholeGroup);
  const GroupMember* const member = whose == kWholeGroup ? nullptr : &group.members[whose];
  if (member != nullptr && member->state == MemberState::kDropped) {
    *repeat = true;  // It was dropped while the group's task ran; nobody wants its fields.
    if (!record.last) return absl::OkStatus();
    return BadField(spec.name,
                    "ended with a record of a member that was dropped; end with one of the group");
  }

  uint64_t bytes = 0;
  for (const Field& field : record.fields) {
    if (!absl::c_linear_search(spec.produces, field.name))
      return BadField(spec.name, absl::StrCat("does not produce field ", field.name));
    // A part of the reward that does not apply to the answer is NaN.
    if (field.name != "reward_parts") SLUICE_RETURN_IF_ERROR(CheckFinite(field));
    bytes += field.bytes.size;
  }
  for (const auto& [owner, field] : task.staged) bytes += owner == whose ? field.bytes.size : 0;

  // Where there is no room, fields of earlier rounds make way.
  const auto held = [&] {
    return member == nullptr ? group.field_bytes : group.prompt.bytes() + member->stored();
  };
  const uint64_t limit = member == nullptr ? Spec::kFieldBytes : spec_.member_bytes();
  if (held() + bytes > limit && member != nullptr) groups_.DropRetiredFields(group, whose);
  if (held() + bytes > limit) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), ": results of ", bytes, " B exceed the ", limit,
                              " B reserved; shorten reward_info"));
  }

  TaskQueue::StagedFields staged = task.staged;
  for (const Field& field : record.fields) {
    const Field* before = FindField(staged, whose, field.name);
    if (before != nullptr && !(before->bytes == field.bytes))
      return ConflictError(record.owner, "field " + field.name);
    if (before == nullptr) staged.emplace_back(whose, field);
  }
  if (record.last) SLUICE_RETURN_IF_ERROR(CheckResult(group, *entry, staged));
  tasks_.StageFields(group, index, t, std::move(staged));
  if (record.last) FinishTask(group, index, t);
  return absl::OkStatus();
}

void Job::FinishTask(const Group& group, uint32_t index, uint32_t t) {
  const TaskQueue::StagedFields staged = tasks_.FinishTask(group, index, t, now_);
  const uint32_t round = TaskQueue::Find(group, index, t).round;

  // Collect the members that the reward could not score. If it says so of the whole group, the
  // group is dropped at once.
  std::vector<uint32_t> unscorable;
  bool row_at_fault = false;
  std::string cause = TaskQueue::Find(group, index, t).cause;
  for (const auto& [whose, field] : staged) {
    if (field.name != "reward_status" || field.bytes.view() == "ok") continue;
    const Field* const info = FindField(staged, whose, "reward_info");
    const std::string text = absl::StrCat(field.bytes.view(), info == nullptr ? "" : ": ",
                                          info == nullptr ? "" : info->bytes.view());
    // The text may be any bytes. It is escaped, because it is shown to people, and in JSON.
    cause = absl::CHexEscape(text.substr(0, kCauseBytes));
    tasks_.NoteUnscorable(group, index, t, whose, cause, now_);
    row_at_fault |= IsFaultOfRow(field.bytes.view());
    if (whose == kWholeGroup) return DropUnscorable(group, cause, row_at_fault);
    if (group.members[whose].state != MemberState::kDropped) unscorable.push_back(whose);
  }
  for (uint32_t whose : unscorable) EndMember(group, whose, "unscorable");
  // If the row itself is at fault, a second wave could not be scored either.
  const uint32_t left = row_at_fault ? group.standing() : group.reachable();
  if (!unscorable.empty() && left < spec_.group_min)
    return DropUnscorable(group, cause, row_at_fault);

  for (const auto& [whose, field] : staged) {
    if (whose != kWholeGroup && group.members[whose].state == MemberState::kDropped) continue;
    Field written = field;
    written.round = round;
    groups_.AddResult(group, whose, std::move(written));
  }
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state == MemberState::kSealed) tasks_.QueueReadyOfMember(group, m, now_);
  }
  DropOrCompleteGroup(group, "unscorable");
}

void Job::FailTask(const Group& group, uint32_t index, uint32_t t, bool use_try,
                   absl::Duration not_before, const std::string& cause) {
  if (tasks_.Retry(group, index, t, use_try, not_before, cause, now_)) return;

  const TaskQueue::DeadLetter& letter = tasks_.dead_letters().back();
  failures_.RaiseAlarm("dead_letter", absl::StrCat("task ", letter.task, " of ", letter.ref.str(),
                                                   " is out of tries: ", cause));
  if (index == kWholeGroup) {
    DropGroup(group, "unscorable");
  } else {
    DropMember(group, index, "unscorable");
  }
}

}  // namespace sluice::queue
