#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Get: reads what is stored of groups and members.
namespace sluice::queue {
namespace {
bool IsWanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

// Cuts rows [first, first + count) out of a column of the piece. All its rows have the same size.
Field CutRows(const Field& field, const Piece& piece, uint64_t first, uint64_t count) {
  if (count == piece.count) return field;
  const uint64_t row = field.bytes.size / piece.count;
  Field cut = field;
  cut.bytes.data =
      std::shared_ptr<const char>(field.bytes.data, field.bytes.data.get() + first * row);
  cut.bytes.size = count * row;
  cut.bytes.crc32c = Crc32c(cut.bytes.view());
  if (!cut.shape.empty()) cut.shape[0] = static_cast<int64_t>(count);
  return cut;
}

// The version runs of the tokens [first, last), which are places as in Piece::at.
std::vector<VersionRun> CutRuns(const Piece& piece, uint64_t first, uint64_t last) {
  std::vector<VersionRun> runs;
  uint64_t place = piece.at;
  for (VersionRun run : piece.runs) {
    const uint64_t begin = std::max(place, first), end = std::min(place + run.count, last);
    place += run.count;
    run.count = static_cast<uint32_t>(begin < end ? end - begin : 0);
    if (run.count > 0) runs.push_back(run);
  }
  return runs;
}

void ReadPieces(const TokenLog& log, const TrajectoryRef& owner, const Want& want,
                std::vector<Record>& out) {
  const uint64_t to = want.to == 0 ? ~uint64_t{0} : want.to;
  for (const StoredPiece& stored : log.pieces()) {
    const uint64_t first = std::max(stored.piece.at, want.from),
                   last = std::min(stored.piece.at + stored.piece.count, to);
    if (first >= last) continue;
    Record record{.owner = owner, .piece = stored.piece};
    Piece& piece = *record.piece;
    piece.at = first;
    piece.count = static_cast<uint32_t>(last - first);
    if (piece.count != stored.piece.count) piece.runs = CutRuns(stored.piece, first, last);

    // Columns with rows of different lengths come whole or not at all.
    for (const Field& field : stored.fields) {
      const bool cuttable = field.rows.empty() && field.bytes.size % stored.piece.count == 0;
      if (IsWanted(want.names, field.name) && (cuttable || piece.count == stored.piece.count)) {
        record.fields.push_back(CutRows(field, stored.piece, first - stored.piece.at, piece.count));
      }
    }
    if (!record.fields.empty()) out.push_back(std::move(record));
  }
}
}  // namespace

absl::StatusOr<ReadAnswer> Job::Read(const Caller& caller, bool controller, const Id16& lease,
                                     const std::vector<Want>& wants) const {
  const LeaseEntry* entry = leases_.Find(lease);
  if (!controller) {
    // A fenced caller is told so, whatever lease it names.
    if (callers_.IsFenced(caller)) return callers_.CheckKnown(caller);

    // The ranks of a trainer group share the lease of a batch. Other leases are their holder's
    // alone.
    const bool holds = entry != nullptr && entry->incarnation == caller.incarnation &&
                       (entry->worker == caller.worker || entry->kind == LeaseKind::kBatch);
    if (!holds)
      return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                   "Get: the lease is not the current one");
    SLUICE_RETURN_IF_ERROR(callers_.CheckKnown(caller));
  }

  ReadAnswer answer;
  for (const Want& want : wants) {
    const Group* group = groups_.Find(want.owner.group);
    const bool absent =
        group == nullptr || (want.owner.member && *want.owner.member >= group->members.size());
    const GroupMember* member =
        absent || !want.owner.member ? nullptr : &group->members[*want.owner.member];
    const bool other =
        member != nullptr && (member->state == MemberState::kDropped ||
                              (want.owner.attempt != 0 && want.owner.attempt != member->attempt));
    const bool lost = !absent && (member != nullptr ? member->lost() : group->prompt.lost());
    if (absent || other || lost) {
      answer.missing.push_back(want);
      continue;
    }

    if (!controller) {
      const bool covered = entry->kind == LeaseKind::kBatch ? group->batch == entry->batch
                                                            : group->id.ordinal == entry->group;
      if (!covered && !HoldsLeaseOn(caller, *group))
        return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                     absl::StrCat("Get: the lease does not cover ", want.owner.str()));
    }

    if (member == nullptr) {
      ReadPieces(group->prompt, {.group = group->id}, want, answer.records);
      continue;
    }
    const TrajectoryRef owner{group->id, want.owner.member, member->attempt};
    ReadPieces(member->log, owner, want, answer.records);
    Record whole{.owner = owner};
    for (const auto& [name, field] : member->fields) {
      if (IsWanted(want.names, name)) whole.fields.push_back(field);
    }
    if (!whole.fields.empty()) answer.records.push_back(std::move(whole));
  }
  return answer;
}

// Whether the caller holds any lease on the group: of a member, of a member's task, or of a group's
// task. With it, one Get may read all groups that the caller works on.
bool Job::HoldsLeaseOn(const Caller& caller, const Group& group) const {
  const auto mine = [&](const std::optional<Id16>& lease) {
    const LeaseEntry* entry = lease ? leases_.Find(*lease) : nullptr;
    return entry != nullptr && entry->worker == caller.worker &&
           entry->incarnation == caller.incarnation;
  };
  const auto any_task = [&](const std::vector<TaskProgress>& tasks) {
    return std::any_of(tasks.begin(), tasks.end(),
                       [&](const TaskProgress& task) { return mine(task.lease); });
  };
  return any_task(group.tasks) ||
         std::any_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
           return mine(member.lease) || any_task(member.tasks);
         });
}

}  // namespace sluice::queue
