#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {

constexpr int64_t kAlarmsTold = 10;  // Of a kind, one by one.

}  // namespace

// Errors of a writer's lease. ---------------------------------------------------------------------

// The group is not resident: sealed work that went its way is gone, anything else lost its lease.
absl::Status Job::Absent(const Id16& lease, const TrajectoryRef& ref) const {
  const std::optional<LeaseEnd> ended = leases_.Ended(lease);
  // Of a job that the queue lost, it knows none.
  if (ended != LeaseEnd::kSealed && ended != LeaseEnd::kDone) {
    return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                 absl::StrCat(ref.str(), " was dropped or given to another"));
  }
  return Error(absl::StatusCode::kNotFound, "GONE",
               absl::StrCat(ref.str(), " is not in the queue"));
}

absl::Status Job::CheckLease(const Caller& caller, const Id16& lease, const TrajectoryRef& ref,
                             const Group& group) {
  const LeaseEntry* entry = leases_.Find(lease);
  const bool holds = entry != nullptr && entry->kind == LeaseKind::kTrajectory &&
                     entry->group == group.id.ordinal && entry->worker == caller.worker &&
                     entry->incarnation == caller.incarnation &&
                     (!ref.member || (entry->member == *ref.member &&
                                      group.members[*ref.member].attempt == ref.attempt));
  if (!holds)
    return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                 absl::StrCat(ref.str(), ": the lease is not the current one; stop its work"));
  return Listed(caller, WorkerRole::kRollout);
}

absl::Status Job::Conflict(const TrajectoryRef& ref, const std::string& what) {
  ++counters_.violations["conflict"];
  const std::string message =
      absl::StrCat(ref.str(), ": ", what, " was written before with other bytes");
  RaiseAlarm("conflict", message);
  return Error(absl::StatusCode::kAlreadyExists, "CONFLICT", message);
}

// Put. --------------------------------------------------------------------------------------------

PutAnswer Job::OnPut(const Caller& caller, const Put& input) {
  PutAnswer answer;
  for (uint32_t i = 0; i < input.records.size(); ++i) {
    uint64_t watermark = 0;
    bool repeat = false;
    const absl::Status status = PutRecord(caller, input.records[i], &watermark, &repeat);
    if (!status.ok())
      answer.failed.push_back({.record = i, .status = status, .watermark = watermark});
    answer.repeats += repeat;
    if (status.ok() && !repeat) effects_->stored.push_back(i);
  }
  if (answer.repeats > 0) counters_.repeats["Put"] += answer.repeats;
  return answer;
}

absl::Status Job::PutRecord(const Caller& caller, const Record& record, uint64_t* watermark,
                            bool* repeat) {
  Group* group = Find(record.owner.group);
  if (group == nullptr) {
    // A task's result that dropped its group is repeated: it was taken.
    *repeat = record.task && leases_.Ended(record.lease) == LeaseEnd::kDone;
    return *repeat ? absl::OkStatus() : Absent(record.lease, record.owner);
  }
  if (record.owner.member && *record.owner.member >= group->members.size()) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
        absl::StrCat(record.owner.str(), ": the group has ", group->members.size(), " members"));
  }
  if (record.task) return PutTask(caller, record, *group, repeat);
  if (record.piece) return PutPiece(caller, record, *group, watermark, repeat);
  return PutFields(caller, record, *group, repeat);
}

absl::Status Job::CheckStamps(const Piece& piece) const {
  for (const VersionRun& run : piece.runs) {
    const auto reached = reached_.find(run.version.incarnation);
    if (reached == reached_.end() || run.version.number > reached->second) {
      return Error(
          absl::StatusCode::kInvalidArgument, "BAD_VERSION",
          absl::StrCat("tokens stamped ", run.version.str(), ", which incarnation ",
                       run.version.incarnation,
                       reached == reached_.end()
                           ? " never trained"
                           : absl::StrCat(" has not reached; it is at ", reached->second)));
    }
  }
  return absl::OkStatus();
}

absl::Status Job::PutPiece(const Caller& caller, const Record& record, Group& group,
                           uint64_t* watermark, bool* repeat) {
  const bool group_owned = !record.owner.member;
  GroupMember* member = group_owned ? nullptr : &group.members[*record.owner.member];
  TokenLog& log = group_owned ? group.prompt : member->log;
  const uint64_t base = group_owned ? 0 : group.prompt.tokens();
  StoredPiece stored{*record.piece, record.fields};
  const Piece& piece = stored.piece;
  *watermark = base + log.tokens();

  SLUICE_RETURN_IF_ERROR(CheckPiece(stored, group_owned, spec_.policies.size()));
  if (piece.at + piece.count <= *watermark) {
    if (!log.Holds(stored, base))
      return Conflict(record.owner, absl::StrCat("the piece at ", piece.at));
    *repeat = true;
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(CheckLease(caller, record.lease, record.owner, group));
  if (piece.at != *watermark) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "NOT_YET",
        absl::StrCat(record.owner.str(), ": send from token ", *watermark, ", not ", piece.at));
  }
  const bool begun = std::any_of(group.members.begin(), group.members.end(),
                                 [](const GroupMember& m) { return m.log.tokens() > 0; });
  if (group_owned && begun) return Conflict(record.owner, "the prompt");
  SLUICE_RETURN_IF_ERROR(CheckFollows(piece, log));
  SLUICE_RETURN_IF_ERROR(CheckStamps(piece));
  uint64_t bytes = 0;
  for (const Field& field : stored.fields) bytes += field.bytes.size;
  const uint64_t held = group.prompt.bytes() + (member ? member->stored() : 0);
  if (held + bytes > spec_.member_bytes()) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), " reserved ", spec_.member_bytes(), " B, holds ",
                              held, ", wants ", bytes, " more; seal it with LENGTH"));
  }
  stored_bytes_ += bytes;
  Progressed(record.lease);
  if (member != nullptr) {
    member->stalls = 0;
    if (member->state == MemberState::kReserved) member->since = now_;
    member->state = MemberState::kRunning;
  }
  if (piece.role == SegmentRole::kSampled) {
    member->generated += piece.count;
    ledger_.tokens_generated += piece.count;
    if (piece.trainable) admission_.Generated(piece.count);
  }
  log.Append(std::move(stored));
  *watermark = base + log.tokens();
  return absl::OkStatus();
}

absl::Status Job::PutFields(const Caller& caller, const Record& record, Group& group,
                            bool* repeat) {
  if (!record.owner.member)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                 "whole fields belong to a member");
  GroupMember& member = group.members[*record.owner.member];
  *repeat = !record.fields.empty();
  std::string differs;
  for (const Field& field : record.fields) {
    const auto it = member.fields.find(field.name);
    const bool equal = it != member.fields.end() && it->second.bytes == field.bytes;
    *repeat &= equal;
    if (it != member.fields.end() && !equal) differs = field.name;
  }
  if (*repeat) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckLease(caller, record.lease, record.owner, group));
  if (!differs.empty()) return Conflict(record.owner, "field " + differs);
  uint64_t bytes = 0;
  for (const Field& field : record.fields) {
    SLUICE_RETURN_IF_ERROR(CheckFinite(field));
    bytes += field.bytes.size;
  }
  if (group.prompt.bytes() + member.stored() + bytes > spec_.member_bytes()) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), ": whole fields of ", bytes,
                              " B exceed what the member reserved"));
  }
  for (const Field& field : record.fields) {
    if (!member.fields.emplace(field.name, field).second) continue;
    member.field_bytes += field.bytes.size;
    stored_bytes_ += field.bytes.size;
  }
  Progressed(record.lease);
  return absl::OkStatus();
}

// Seal and Drop. ----------------------------------------------------------------------------------

size_t Job::Octile(const GroupMember& member) const {
  const uint64_t longest =
      spec_.sampling.max_tokens > 0 ? spec_.sampling.max_tokens : spec_.member_tokens;
  return std::min<uint64_t>(7, 8 * member.generated / std::max<uint64_t>(1, longest));
}

Item Job::SealOne(const Caller& caller, const SealItem& item) {
  Group* group = Find(item.ref.group);
  if (group == nullptr) return {.status = Absent(item.lease, item.ref)};
  if (!item.ref.member || *item.ref.member >= group->members.size()) {
    return {.status = Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                            "Seal names one member of the group")};
  }
  GroupMember& member = group->members[*item.ref.member];
  const uint64_t watermark = group->prompt.tokens() + member.log.tokens();
  if (member.sealed_by == item.lease) return {.watermark = watermark, .repeat = true};
  if (absl::Status lease = CheckLease(caller, item.lease, item.ref, *group); !lease.ok())
    return {.status = lease, .watermark = watermark};
  if (item.finish == Finish::kNone)
    return {
        .status = Error(absl::StatusCode::kInvalidArgument, "BAD_FINISH", "Seal needs a finish"),
        .watermark = watermark};
  if (item.tokens > watermark) {
    return {.status =
                Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                      absl::StrCat("the queue holds ", watermark, " of ", item.tokens, " tokens")),
            .watermark = watermark};
  }
  if (item.tokens < watermark || item.crc32c != member.log.crc32c()) {
    RaiseAlarm("bad_crc",
               absl::StrCat(item.ref.str(), ": sealed with other tokens than were stored"));
    return {.status = Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                            absl::StrCat(item.ref.str(), ": sealed as ", item.tokens,
                                         " tokens, CRC ", item.crc32c, "; the queue holds ",
                                         watermark, ", CRC ", member.log.crc32c())),
            .watermark = watermark};
  }
  if (const std::string missing = MissingField(member); !missing.empty()) {
    return {.status = Error(
                absl::StatusCode::kFailedPrecondition, "NOT_YET",
                absl::StrCat(item.ref.str(), ": put field ", missing, " first; a task needs it")),
            .watermark = watermark};
  }
  leases_.End(item.lease, LeaseEnd::kSealed);
  member.lease.reset();
  member.sealed_by = item.lease;
  member.state = MemberState::kSealed;
  member.since = now_;
  member.finish = item.finish;
  member.sealed_at = version_;
  LengthBin& bin = counters_.lengths[SourceName(*group)][Octile(member)];
  ++bin.sealed;
  bin.sealed_tokens += static_cast<int64_t>(member.generated);
  admission_.Sealed(now_ - member.began, version_ - member.began_at);
  // Too old by now for the next step is too old for all that follow.
  if (const Verdict verdict = Judge(member, next_cut_, spec_, branch_); !verdict.legal) {
    DropMember(*group, *item.ref.member, verdict.reason);
    return {.watermark = watermark};
  }
  StartTasks(*group, *item.ref.member);
  Settle(*group, "");
  return {.watermark = watermark};
}

Item Job::DropOne(const Caller& caller, const DropItem& item) {
  if (!IsDropReason(item.reason) || item.reason == "filtered" || item.reason == "closed" ||
      item.reason == "shrunk") {
    return {.status =
                Error(absl::StatusCode::kInvalidArgument, "BAD_REASON",
                      absl::StrCat("\"", item.reason, "\" is no reason a rollout drops work for"))};
  }
  if (leases_.Ended(item.lease) == LeaseEnd::kDropped) return {.repeat = true};
  Group* group = Find(item.ref.group);
  if (group == nullptr) return {.status = Absent(item.lease, item.ref)};
  if (item.ref.member && *item.ref.member >= group->members.size()) {
    return {.status = Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                            absl::StrCat("the group has ", group->members.size(), " members"))};
  }
  if (absl::Status lease = CheckLease(caller, item.lease, item.ref, *group); !lease.ok())
    return {.status = lease};
  if (item.ref.member) {
    DropMember(*group, *item.ref.member, item.reason);
  } else {
    const RowRef row = group->row;
    DropGroup(*group, item.reason);
    CountUnusable(row, item.reason);
  }
  return {};
}

// Without a limit of epochs, rows that none can use would be drawn for ever.
void Job::CountUnusable(const RowRef& row, const std::string& reason) {
  if ((reason != "prompt_too_long" && reason != "bad_row") || row.source == RowRef::kOutside)
    return;
  if (prompts_.IsQuarantined(row)) return;
  unusable_.insert({row.source, row.index});
  FailWithoutPrompts(reason,
                     "raise data.order.max_prompt and model.max_context, or mend the rows that the "
                     "rollouts' logs name");
}

void Job::FailWithoutPrompts(const std::string& reason, const std::string& hint) {
  if (unusable_.size() + prompts_.quarantined() < prompts_.rows() || !failure_.ok()) return;
  Fail("no_prompts",
       ErrorWith(absl::StatusCode::kFailedPrecondition,
                 {.reason = "NO_PROMPTS", .catalogue = "SLUICE-QUEUE-0005", .hint = hint},
                 absl::StrCat("no row of the data can be used: all ", prompts_.rows(),
                              " were dropped, the last as ", reason)));
}

// From here on whoever asks for work or a batch gets this answer, until a trainer restores the job.
void Job::Fail(const char* code, absl::Status failure) {
  failure_ = std::move(failure);
  RaiseAlarm(code, std::string(failure_.message()));
}

// The first ten of a kind are told, then each that doubles their number: a fault of the data can
// raise one for every row.
void Job::RaiseAlarm(const char* code, std::string message) {
  const int64_t count = ++counters_.alarms[code];
  if (count <= kAlarmsTold) return effects_->alarms.push_back({code, std::move(message)});

  const bool doubled =
      count % kAlarmsTold == 0 && std::has_single_bit(static_cast<uint64_t>(count / kAlarmsTold));
  if (!doubled) return;
  absl::StrAppend(&message, " (", count,
                  " alarms of this kind so far; the next is told when there are ", 2 * count, ")");
  effects_->alarms.push_back({code, std::move(message)});
}

// The prompt has just been quarantined.
void Job::NoteQuarantined(const Group& group, const std::string& reason, const std::string& why) {
  ++counters_.quarantined;
  unusable_.erase({group.row.source, group.row.index});
  RaiseAlarm("quarantined", absl::StrCat("prompt ", SourceName(group), ":", group.row.index, " ",
                                         why, "; it is drawn no more"));
  FailWithoutPrompts(reason, "see the alarms among `sluice job events`");
}

void Job::CountDropped(Group& group, uint32_t index, const std::string& reason) {
  GroupMember& member = group.members[index];
  if (!member.granted) return;
  --ledger_.live;
  ++ledger_.dropped[reason];
  uint64_t tokens = 0;
  ForEachTrainable(member,
                   [&](uint64_t, uint64_t count, const PolicyVersion&) { tokens += count; });
  counters_.tokens_dropped[reason] += static_cast<int64_t>(tokens);
  if (reason == "stale") admission_.TooOld(tokens);
}

// A member's way ends here: its lease and tasks end, its bytes return.
void Job::EndMember(Group& group, uint32_t index, const std::string& reason) {
  GroupMember& member = group.members[index];
  CountDropped(group, index, reason);
  if (member.lease) {
    effects_->cancel.push_back({{group.id, index, member.attempt}, reason, member.worker});
    leases_.End(*member.lease, LeaseEnd::kDropped);
    member.lease.reset();
  }
  EndTasks(group, index);
  stored_bytes_ -= member.stored();
  member.log = TokenLog();
  member.fields.clear();
  member.past.clear();
  member.field_bytes = 0;
  member.state = MemberState::kDropped;
  member.since = now_;
  member.drop_reason = reason;
}

void Job::DropMember(Group& group, uint32_t index, const std::string& reason) {
  RemoveIndexes(group);
  EndMember(group, index, reason);
  AddIndexes(group);
  Settle(group, reason);
}

void Job::DropGroup(Group& group, const std::string& reason) {
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state != MemberState::kDropped) EndMember(group, m, reason);
  }
  for (uint32_t t = 0; t < group.tasks.size(); ++t) EndTask(group, kWholeGroup, t);
  CountStarved(group, reason);
  if (IsReissued(reason) && !group.own) {
    const Prompts::Fate fate = prompts_.Reissue(group.row);
    if (fate == Prompts::Fate::kAgain) ++counters_.reissued;
    if (fate == Prompts::Fate::kQuarantined) {
      NoteQuarantined(
          group, reason,
          absl::StrCat("failed ", group.row.occurrence + 1, " times, last as ", reason));
    }
  }
  Erase(group);
}

void Job::Settle(Group& group, const std::string& reason) {
  if (group.state != GroupState::kOpen) return;
  if (group.standing() < spec_.group_min) return DropGroup(group, reason);
  if (group.overdue && spec_.straggler == Straggler::kShrink) Shrink(group);
  ReadyGroupTasks(group);
  if (group.complete()) Complete(group);
}

namespace {
// Sample standard deviation (ddof 1) at most 1e-6, or a group of one: no signal (DAPO's dynamic
// sampling).
bool NoSignal(const std::vector<double>& rewards) {
  if (rewards.size() < 2) return true;
  double mean = 0, squares = 0;
  for (double reward : rewards) mean += reward / rewards.size();
  for (double reward : rewards) squares += (reward - mean) * (reward - mean);
  return std::sqrt(squares / (rewards.size() - 1)) <= 1e-6;
}
}  // namespace

void Job::Complete(Group& group) {
  if (const auto verdict = group.fields.find("verdict"); verdict != group.fields.end()) {
    const absl::string_view text = verdict->second.bytes.view();
    if (text != "accept")
      return Reject(group,
                    text == "reject" ? "verdict" : std::string(absl::StripPrefix(text, "reject:")));
  }
  std::vector<double> rewards;
  for (const GroupMember& member : group.members) {
    if (member.state == MemberState::kSealed) rewards.push_back(member.task_reward.value_or(0));
  }
  if (spec_.filter == Filter::kSignal && NoSignal(rewards))
    return Reject(group, rewards[0] == 0 ? "all_zero" : rewards[0] == 1 ? "all_one" : "other");
  unscorable_.erase(group.row.source);
  rejected_in_a_row_ = 0;
  rejected_of_source_.erase(group.row.source);
  RemoveIndexes(group);
  group.state = GroupState::kAccepted;
  group.since = now_;
  group.cut_key = group.oldest();
  accepted_.insert({group.cut_key, group.id.ordinal});
}

// The group filter's no. A long run of them ends the job; one of a single source, while others are
// accepted, is an alarm.
void Job::Reject(Group& group, const std::string& why) {
  unscorable_.erase(group.row.source);
  ++counters_.filtered[why];
  const uint64_t limit = uint64_t{spec_.max_rejected_steps} * spec_.groups_per_step;
  const uint64_t of_source = ++rejected_of_source_[group.row.source];
  const std::string source = SourceName(group);
  DropGroup(group, "filtered");
  ++rejected_in_a_row_;
  if (limit == 0 || !failure_.ok()) return;
  const auto counts = [&] {
    std::string text;
    for (const auto& [reason, count] : counters_.filtered)
      absl::StrAppend(&text, text.empty() ? "" : ", ", absl::StrReplaceAll(reason, {{"_", " "}}),
                      " ", count);
    return text;
  };
  if (rejected_in_a_row_ >= limit) {
    Fail("no_signal",
         ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NO_SIGNAL",
                    .catalogue = "SLUICE-QUEUE-0003",
                    .hint = "check the reward and the difficulty of the prompts"},
                   absl::StrCat(rejected_in_a_row_,
                                " groups in a row were rejected by the filter (in all: ", counts(),
                                ")")));
  } else if (of_source == limit) {
    RaiseAlarm("no_signal_source",
               absl::StrCat("the last ", of_source, " groups of data source ", source,
                            " were all rejected by the filter, others were not (in all: ", counts(),
                            "); check its answers and its difficulty, or take it out"));
  }
}

void Job::Erase(Group& group) {
  RemoveIndexes(group);
  accepted_.erase({group.cut_key, group.id.ordinal});
  if (group.slot >= 0) slots_.Free(group.slot, group.id.ordinal);
  stored_bytes_ -= group.stored();
  if (!spec_.rows_only) reserved_bytes_ -= spec_.group_bytes();
  const auto prompt = by_prompt_.find({group.row.source, group.row.index});
  prompt->second.erase(group.id.ordinal);
  if (prompt->second.empty()) by_prompt_.erase(prompt);
  groups_.erase(group.id.ordinal);
}

}  // namespace sluice::queue
