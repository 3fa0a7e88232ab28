#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {

absl::StatusOr<RestoreAnswer> Job::OnRestore(const Caller& caller, const Restore& input) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, WorkerRole::kTrainer));
  if (restored_ == caller.incarnation) {
    ++counters_.repeats["Restore"];
    RestoreAnswer again = restore_answer_;
    again.repeat = true;
    return again;
  }
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
  Cursor cursor;
  cursor.ledger.hash = std::string(32, '\0');
  if (!input.cursor.empty()) {
    SLUICE_ASSIGN_OR_RETURN(cursor, DecodeCursor(input.cursor));
    if (cursor.job != options_.id)
      return Error(absl::StatusCode::kInvalidArgument, "BAD_CURSOR",
                   absl::StrCat("the cursor is of job ", cursor.job));
  }
  const bool lost = next_group_ == 0 && version_ == 0 && cursor.version > 0;
  RestoreMode mode = input.mode;
  if (mode != RestoreMode::kReplay && mode != RestoreMode::kRequeue)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODE", "mode is unset");
  if (!lost && cursor.version > version_) {
    return Error(absl::StatusCode::kFailedPrecondition, "BAD_CURSOR",
                 absl::StrCat("the cursor is of version ", cursor.version,
                              "; the job never went beyond ", version_));
  }
  if (!lost && cursor.version >= durable_ && HashAt(cursor.version) != cursor.ledger.hash) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat("the cursor's ledger hash is not H(", cursor.version, ")"));
  }
  int64_t fork = cursor.version;
  if (lost) {
    SLUICE_RETURN_IF_ERROR(RestoreLost(cursor));
    mode = RestoreMode::kRequeue;
  } else {
    if (!input.checkpoint.empty() && cursor.version > durable_) MakeDurable(cursor.version);
    if (cursor.version < durable_) mode = RestoreMode::kRequeue;
    const bool lost_payload =
        std::any_of(batches_.lower_bound(cursor.version), batches_.end(), [&](const auto& batch) {
          return std::any_of(
              batch.second.groups.begin(), batch.second.groups.end(),
              [&](const FrozenGroup& frozen) { return Find(frozen.id)->payload_lost; });
        });
    if (lost_payload) mode = RestoreMode::kRequeue;
    if (mode == RestoreMode::kReplay) fork = next_cut_;
  }
  branch_.Fork(caller.incarnation, fork);
  if (mode == RestoreMode::kReplay) {
    RestoreReplay(cursor.version);
  } else if (!lost) {
    RestoreRequeue(cursor.version, cursor.ledger.hash);
  }
  replay_end_ = fork;
  restored_ = caller.incarnation;
  reached_[caller.incarnation] = version_;
  failure_ = absl::OkStatus();
  rejected_in_a_row_ = 0;
  unusable_.clear();
  unscorable_.clear();
  effects_->watch = true;
  restore_answer_ = {
      .mode = mode, .version = version_, .end = fork, .fork = fork, .ledger = ledger_};
  if (published_)
    restore_answer_.published.push_back({.policy = 0, .version = *published_, .verified = true});
  return restore_answer_;
}

absl::Status Job::RestoreLost(const Cursor& cursor) {
  if (cursor.prompts.drawn.size() != spec_.sources.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CURSOR",
                 absl::StrCat("the cursor knows ", cursor.prompts.drawn.size(),
                              " sources, the job has ", spec_.sources.size()));
  }
  for (const std::vector<RowRef>* const rows :
       {&cursor.prompts.again, &cursor.prompts.quarantined, &cursor.live}) {
    for (const RowRef& row : *rows) {
      if (prompts_.Has(row)) continue;
      return Error(absl::StatusCode::kInvalidArgument, "BAD_CURSOR",
                   absl::StrCat("the cursor names row ", row.index, " of source ", row.source,
                                ", which the data does not have"));
    }
  }
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
  next_group_ = cursor.next_group;
  version_ = next_cut_ = durable_ = cursor.version;
  durable_hash_ = cursor.ledger.hash;
  return absl::OkStatus();
}

void Job::Unapply(Batch& batch) {
  if (!batch.applied) return;
  CountApplied(batch, -1);
  batch.applied = batch.skipped = false;
}

// The batches from `version` on come again as they were frozen.
void Job::RestoreReplay(int64_t version) {
  for (auto it = batches_.lower_bound(version); it != batches_.end(); ++it) Unapply(it->second);
  version_ = version;
  ledger_.hash = HashAt(version);
}

void Job::GiveBack(const Batch& batch) {
  for (const FrozenGroup& frozen : batch.groups) {
    Group& group = *Find(frozen.id);
    if (spec_.rows_only) {
      prompts_.Return(group.row);
      EndMember(group, 0, "lost");
      Erase(group);
      continue;
    }
    if (group.payload_lost) {
      LoseGroup(group);
      continue;
    }
    group.state = GroupState::kAccepted;
    group.since = now_;
    group.batch = -1;
    accepted_.insert({group.cut_key, group.id.ordinal});
    if (group.slot >= 0) continue;
    group.slot = *slots_.LowestFree(batch.k, std::numeric_limits<int64_t>::max());
    slots_.Take(group.slot, group.id.ordinal);
  }
}

// The groups of all batches from `version` on compete anew; prompts of those already freed go back
// to the source, their first groups stay in the ledger as durable on the old branch.
void Job::RestoreRequeue(int64_t version, const std::string& hash) {
  while (!batches_.empty() && batches_.rbegin()->first >= version) {
    const auto last = std::prev(batches_.end());
    Unapply(last->second);
    if (last->second.lease) leases_.End(*last->second.lease, LeaseEnd::kReleased);
    GiveBack(last->second);
    batches_.erase(last);
  }
  if (version < durable_) {
    for (auto it = freed_rows_.lower_bound(version); it != freed_rows_.end();
         it = freed_rows_.erase(it)) {
      for (const RowRef& row : it->second) prompts_.Return(row);
    }
    durable_ = ledger_.durable_version = version;
    durable_hash_ = hash;
  }
  version_ = next_cut_ = version;
  ledger_.hash = HashAt(version);
  // Tokens beyond the fork are off the branch now.
  const std::set<std::pair<int64_t, uint64_t>> accepted = accepted_;
  for (const auto& [oldest, ordinal] : accepted) JudgeGroup(*groups_.at(ordinal), version);
  const std::set<std::pair<int64_t, uint64_t>> open = open_;
  for (const auto& [slot, ordinal] : open) {
    Group& group = *groups_.at(ordinal);
    if (JudgeGroup(group, version)) Settle(group, "off_branch");
  }
  Evict();
}

std::string Job::MakeCursor() const {
  Cursor cursor{.job = options_.id,
                .version = version_,
                .ledger = ledger_,
                .next_group = next_group_,
                .incarnation = gang_,
                .prompts = prompts_.progress()};
  std::vector<const Group*> live;
  for (const auto& [ordinal, group] : groups_) {
    if (group->state != GroupState::kInBatch || !batches_.at(group->batch).applied)
      live.push_back(group.get());
  }
  std::sort(live.begin(), live.end(), [](const Group* a, const Group* b) { return a->id < b->id; });
  for (const Group* group : live) {
    if (!group->own) cursor.live.push_back(group->row);
  }
  return EncodeCursor(cursor);
}

}  // namespace sluice::queue
