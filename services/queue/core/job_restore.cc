#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Restore: a new trainer group calls it first, with the cursor of the checkpoint from which it goes
// on. The batches since then are handed out again as they were (replay), or their groups go into
// new batches (requeue).
namespace sluice::queue {
namespace {
absl::Status BadCursor(absl::StatusCode code, absl::string_view message) {
  return Error(code, "BAD_CURSOR", message);
}
}  // namespace

absl::Status Job::CheckRestored() const {
  const int64_t trainer_incarnation = callers_.trainer_incarnation();
  if (restored_ >= 0 && restored_ == trainer_incarnation) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "RESTORE_FIRST", .hint = "call Restore with the last checkpoint's cursor"},
      absl::StrCat("the trainer group of incarnation ", trainer_incarnation,
                   " has not called Restore"));
}

absl::StatusOr<RestoreAnswer> Job::OnRestore(const Caller& caller, const Restore& input) {
  SLUICE_RETURN_IF_ERROR(callers_.CheckNotFenced(caller, WorkerRole::kTrainer));
  if (restored_ == caller.incarnation) {
    ++counters_.repeats["Restore"];
    RestoreAnswer again = restore_answer_;
    again.repeat = true;
    return again;
  }
  SLUICE_RETURN_IF_ERROR(callers_.CheckListed(caller, WorkerRole::kTrainer));

  // Without a cursor the job begins anew.
  Cursor cursor;
  cursor.ledger.hash = std::string(32, '\0');
  if (!input.cursor.empty()) {
    SLUICE_ASSIGN_OR_RETURN(cursor, DecodeCursor(input.cursor));
    if (cursor.job != options_.id)
      return BadCursor(
          absl::StatusCode::kInvalidArgument,
          absl::StrCat("the cursor is of job ", cursor.job, ", not of this job, ", options_.id));
  }

  // The queue has lost the job if the trainer has trained steps and the queue has not even opened a
  // group.
  const bool lost = groups_.next_ordinal() == 0 && batches_.version() == 0 && cursor.version > 0;

  RestoreMode mode = input.mode;
  if (mode != RestoreMode::kReplay && mode != RestoreMode::kRequeue)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODE", "mode is unset");
  if (!lost && cursor.version > batches_.version()) {
    return BadCursor(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the cursor is of version ", cursor.version,
                                  "; the job never went beyond ", batches_.version()));
  }
  if (!lost && cursor.version >= batches_.durable() &&
      batches_.HashAt(cursor.version) != cursor.ledger.hash) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat("the cursor's ledger hash is not the queue's hash of version ",
                              cursor.version));
  }

  // A replay needs all groups of its batches, with their payload; else it becomes a requeue. The
  // versions of earlier trainer groups stay on the branch up to the fork. A replay has its fork
  // after the batches that are handed out again, because these give the same weights again.
  int64_t fork = cursor.version;
  if (lost) {
    SLUICE_RETURN_IF_ERROR(RestoreLost(cursor));
    mode = RestoreMode::kRequeue;
  } else {
    if (!input.checkpoint.empty() && cursor.version > batches_.durable())
      MakeDurable(cursor.version);
    if (cursor.version < batches_.durable() || LostPayloadFrom(cursor.version))
      mode = RestoreMode::kRequeue;
    if (mode == RestoreMode::kReplay) fork = batches_.next_cut();
  }
  engines_.AddFork(caller.incarnation, fork);
  if (mode == RestoreMode::kReplay) {
    RestoreReplay(cursor.version);
  } else if (!lost) {
    RestoreRequeue(cursor.version, cursor.ledger.hash);
    prompts_.ResetSampler(cursor.prompts.sampler);
  }

  replay_end_ = fork;
  restored_ = caller.incarnation;
  engines_.SetReached(caller.incarnation, batches_.version());
  failures_.Reset();
  effects_->watch = true;
  restore_answer_ = {
      .mode = mode, .version = batches_.version(), .end = fork, .fork = fork, .ledger = ledger_};
  if (engines_.published())
    restore_answer_.published.push_back(
        {.policy = 0, .version = *engines_.published(), .verified = true});
  return restore_answer_;
}

// The queue knows nothing of the job but this cursor.
absl::Status Job::RestoreLost(const Cursor& cursor) {
  if (cursor.prompts.drawn.size() != spec_.sources.size()) {
    return BadCursor(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("the cursor knows ", cursor.prompts.drawn.size(),
                                  " sources, the job has ", spec_.sources.size()));
  }
  for (const std::vector<RowRef>* const rows :
       {&cursor.prompts.again, &cursor.prompts.quarantined, &cursor.live}) {
    for (const RowRef& row : *rows) {
      if (prompts_.HasRow(row)) continue;
      return BadCursor(absl::StatusCode::kInvalidArgument,
                       absl::StrCat("the cursor names row ", row.index, " of source ", row.source,
                                    ", which the data does not have"));
    }
  }

  if (!prompts_.Fits(cursor.prompts)) {
    return BadCursor(absl::StatusCode::kInvalidArgument,
                     "the cursor's sampler does not fit the job's data.order.sampler");
  }

  // What was trained is in the trainer's checkpoint; what lived in the queue is lost.
  const uint64_t event = ledger_.event;
  const std::map<std::string, int64_t> none = ledger_.dropped;  // All reasons, at zero.
  ledger_ = cursor.ledger;
  ledger_.event = event;
  ledger_.dropped.insert(none.begin(), none.end());
  ledger_.durable += ledger_.applied;
  ledger_.applied = 0;
  ledger_.dropped["lost"] += ledger_.live;
  ledger_.live = 0;
  ledger_.durable_version = cursor.version;

  prompts_.Reset(cursor.prompts);
  for (const RowRef& row : cursor.live) prompts_.Return(row);
  groups_.SetNextOrdinal(cursor.next_group);
  batches_.Begin(cursor.version, cursor.ledger.hash);
  lineage_.Reset(cursor.lineage);
  return absl::OkStatus();
}

bool Job::LostPayloadFrom(int64_t version) const {
  const auto& batches = batches_.batches();
  return std::any_of(batches.lower_bound(version), batches.end(), [&](const auto& batch) {
    return std::any_of(
        batch.second.groups.begin(), batch.second.groups.end(),
        [&](const FrozenGroup& frozen) { return groups_.Find(frozen.id)->payload_lost; });
  });
}

void Job::UnapplyBatch(Batch& batch) {
  if (!batch.applied) return;
  CountApplied(batch, -1);
  batches_.Unapply(batch);
}

// The batches from `version` on come again as they were frozen.
void Job::RestoreReplay(int64_t version) {
  for (int64_t k = version; k < batches_.version(); ++k) UnapplyBatch(*batches_.Find(k));
  batches_.StartReplay(version);
  ledger_.hash = batches_.HashAt(version);
}

// The groups of the batch are accepted again, and later cuts choose among them anew.
void Job::ReturnGroups(const Batch& batch) {
  for (const FrozenGroup& frozen : batch.groups) {
    const Group& group = *groups_.Find(frozen.id);
    if (spec_.rows_only) {
      prompts_.Return(group.row);
      EndMember(group, 0, "lost");
      groups_.Erase(group);
    } else if (group.payload_lost) {
      DropLostGroup(group);
    } else {
      groups_.TakeFromBatch(group, now_);
    }
  }
}

// The groups of all batches from `version` on compete anew. Groups that are freed already have
// their prompts drawn again, and stay in the ledger as durable on the old branch.
void Job::RestoreRequeue(int64_t version, const std::string& hash) {
  while (Batch* const batch = batches_.FindLast(version)) {
    UnapplyBatch(*batch);
    if (batch->lease) leases_.End(*batch->lease, LeaseEnd::kReleased);
    ReturnGroups(*batch);
    batches_.EraseLast();
  }
  if (version < batches_.durable()) {
    for (const RowRef& row : batches_.TakeFreedRows(version)) prompts_.Return(row);
    ledger_.durable_version = version;
  }
  batches_.Rewind(version, hash);
  ledger_.hash = batches_.HashAt(version);

  // Tokens of versions beyond the fork are off the branch now, so all groups are judged again. The
  // loops go over copies of the indexes, because judging changes them.
  const std::set<GroupTable::CutKey> accepted = groups_.accepted();
  for (const auto& [oldest, ordinal] : accepted) JudgeGroup(groups_.at(ordinal), version);
  const std::set<GroupTable::SlotKey> open = groups_.open();
  for (const auto& [slot, ordinal] : open) {
    const Group& group = groups_.at(ordinal);
    if (JudgeGroup(group, version)) DropOrCompleteGroup(group, "off_branch");
  }
  DropUntrainable();
}

}  // namespace sluice::queue
