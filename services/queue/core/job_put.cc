#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Put: rollouts write pieces and whole fields. What rewards write is in job_put_result.cc.
namespace sluice::queue {

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
  const Group* const group = groups_.Find(record.owner.group);
  if (group == nullptr) {
    // A task's result may have ended its group. If it is sent again, it is a repeat.
    *repeat = record.task && leases_.FindEnd(record.lease) == LeaseEnd::kDone;
    return *repeat ? absl::OkStatus() : GroupGoneError(record.lease, record.owner);
  }
  if (record.owner.member && *record.owner.member >= group->members.size()) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
        absl::StrCat(record.owner.str(), ": the group has ", group->members.size(), " members"));
  }
  if (record.task) return PutResult(caller, record, *group, repeat);
  if (record.piece) return PutPiece(caller, record, *group, watermark, repeat);
  return PutFields(caller, record, *group, repeat);
}

absl::Status Job::PutPiece(const Caller& caller, const Record& record, const Group& group,
                           uint64_t* watermark, bool* repeat) {
  const bool group_owned = !record.owner.member;
  const GroupMember* const member = group_owned ? nullptr : &group.members[*record.owner.member];
  const TokenLog& log = group_owned ? group.prompt : member->log;
  const uint64_t base = group_owned ? 0 : group.prompt.tokens();
  StoredPiece stored{*record.piece, record.fields};
  const Piece& piece = stored.piece;
  *watermark = base + log.tokens();

  // A piece that is stored already needs no lease: its bytes only have to be the same.
  SLUICE_RETURN_IF_ERROR(CheckPiece(stored, group_owned, spec_.policies.size()));
  const bool is_stored = piece.at <= *watermark && piece.count <= *watermark - piece.at;
  if (is_stored) {
    if (!log.Holds(stored, base))
      return ConflictError(record.owner, absl::StrCat("the piece at ", piece.at));
    *repeat = true;
    return absl::OkStatus();
  }

  SLUICE_RETURN_IF_ERROR(CheckLease(caller, record.lease, record.owner, group));
  if (piece.at != *watermark) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "NOT_YET",
        absl::StrCat(record.owner.str(), ": send from token ", *watermark, ", not ", piece.at));
  }
  // The places of a member's tokens go on where the prompt ends, so the prompt cannot grow any more
  // once a member has tokens.
  const bool begun = std::any_of(group.members.begin(), group.members.end(),
                                 [](const GroupMember& m) { return m.log.tokens() > 0; });
  if (group_owned && begun) return ConflictError(record.owner, "the prompt");
  SLUICE_RETURN_IF_ERROR(CheckFollows(piece, log));
  SLUICE_RETURN_IF_ERROR(engines_.CheckStamps(piece));

  uint64_t bytes = 0;
  for (const Field& field : stored.fields) bytes += field.bytes.size;
  const uint64_t held = group.prompt.bytes() + (member ? member->stored() : 0);
  if (held + bytes > spec_.member_bytes()) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), " reserved ", spec_.member_bytes(), " B, holds ",
                              held, ", wants ", bytes, " more; seal it with LENGTH"));
  }

  // A prompt's piece shows progress of the member whose lease it came with.
  groups_.NoteProgress(group, leases_.Find(record.lease)->member, now_);
  if (piece.role == SegmentRole::kSampled) {
    ledger_.tokens_generated += piece.count;
    if (piece.trainable) admission_.CountGenerated(piece.count);
  }
  groups_.AppendPiece(group, record.owner.member, std::move(stored), now_);
  *watermark = base + log.tokens();
  return absl::OkStatus();
}

absl::Status Job::PutFields(const Caller& caller, const Record& record, const Group& group,
                            bool* repeat) {
  if (!record.owner.member)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                 "whole fields belong to a member");
  const GroupMember& member = group.members[*record.owner.member];

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
  if (!differs.empty()) return ConflictError(record.owner, "field " + differs);

  uint64_t bytes = 0;
  for (const Field& field : record.fields) {
    SLUICE_RETURN_IF_ERROR(CheckFinite(field));
    bytes += field.bytes.size;
  }
  if (group.prompt.bytes() + member.stored() + bytes > spec_.member_bytes()) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), " reserved ", spec_.member_bytes(), " B, holds ",
                              group.prompt.bytes() + member.stored(), ", wants ", bytes,
                              " more for whole fields; send less"));
  }

  for (const Field& field : record.fields) groups_.AddField(group, *record.owner.member, field);
  groups_.NoteProgress(group, *record.owner.member, now_);
  return absl::OkStatus();
}

// Errors of a writer's lease. ---------------------------------------------------------------------

// The error for a group that is not in memory. GONE: the caller had finished its work on the group.
// LEASE_LOST: the caller had not, and must stop.
absl::Status Job::GroupGoneError(const Id16& lease, const TrajectoryRef& ref) const {
  const std::optional<LeaseEnd> ended = leases_.FindEnd(lease);
  if (ended != LeaseEnd::kSealed && ended != LeaseEnd::kDone) {
    return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                 absl::StrCat(ref.str(), " was dropped or given to another worker; stop its work"));
  }
  return Error(absl::StatusCode::kNotFound, "GONE",
               absl::StrCat(ref.str(), " is not in the queue"));
}

absl::Status Job::CheckLease(const Caller& caller, const Id16& lease, const TrajectoryRef& ref,
                             const Group& group) {
  const LeaseEntry* const entry = leases_.Find(lease);
  const bool holds = entry != nullptr && entry->kind == LeaseKind::kTrajectory &&
                     entry->group == group.id.ordinal && entry->worker == caller.worker &&
                     entry->incarnation == caller.incarnation &&
                     (!ref.member || (entry->member == *ref.member &&
                                      group.members[*ref.member].attempt == ref.attempt));
  if (!holds)
    return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                 absl::StrCat(ref.str(), ": the lease is not the current one; stop its work"));
  return callers_.CheckListed(caller, WorkerRole::kRollout);
}

absl::Status Job::ConflictError(const TrajectoryRef& ref, const std::string& what) {
  ++counters_.violations["conflict"];
  const std::string message =
      absl::StrCat(ref.str(), ": ", what, " was written before with other bytes");
  failures_.RaiseAlarm("conflict", message);
  return Error(absl::StatusCode::kAlreadyExists, "CONFLICT", message);
}

}  // namespace sluice::queue
