#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Apply: the trainer has trained the batch of step K.
namespace sluice::queue {

absl::StatusOr<ApplyAnswer> Job::OnApply(const Caller& caller, const queue::Apply& input) {
  SLUICE_RETURN_IF_ERROR(callers_.CheckNotFenced(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(CheckRestored());

  ApplyAnswer answer{.repeat = input.k < batches_.version()};
  if (answer.repeat) {
    const Batch* const batch = batches_.Find(input.k);
    if (batch != nullptr && batch->crc32c != input.crc32c) {
      return Error(absl::StatusCode::kAlreadyExists, "CONFLICT",
                   absl::StrCat("batch ", input.k, " was applied with another CRC"));
    }
    ++counters_.repeats["Apply"];
  } else {
    SLUICE_RETURN_IF_ERROR(ApplyBatch(caller, input));
  }
  answer.version = batches_.version();
  answer.ledger = ledger_;
  if (input.want_cursor && input.k == batches_.version() - 1) answer.cursor = MakeCursor();
  return answer;
}

absl::Status Job::ApplyBatch(const Caller& caller, const queue::Apply& input) {
  const int64_t version = batches_.version();
  Batch* const batch = batches_.Find(input.k);
  if (input.k > version || batch == nullptr || !batch->closed) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "NOT_YET",
        absl::StrCat("batch ", input.k, " cannot be applied yet: step ", version, " is next",
                     input.k == version ? ", and its batch is not closed" : ""));
  }
  if (batch->lease != input.lease)
    return Error(
        absl::StatusCode::kAborted, "LEASE_LOST",
        absl::StrCat("batch ", input.k, ": the lease is not the current one; acquire it again"));
  SLUICE_RETURN_IF_ERROR(callers_.CheckListed(caller, WorkerRole::kTrainer));
  if (batch->crc32c != input.crc32c) {
    return Error(
        absl::StatusCode::kDataLoss, "BAD_CRC",
        absl::StrCat("batch ", input.k, " has CRC ", batch->crc32c, ", not ", input.crc32c));
  }
  SLUICE_RETURN_IF_ERROR(CheckStaleness(*batch));

  leases_.End(*batch->lease, LeaseEnd::kDone);
  batch->lease.reset();
  batches_.Apply(*batch, /*skipped=*/!input.skipped.empty());
  CountApplied(*batch, 1);
  ledger_.hash = batch->hash;
  engines_.RaiseReached(callers_.trainer_incarnation(), batches_.version());
  std::set<uint32_t> generations;
  for (const FrozenGroup& frozen : batch->groups) {
    failures_.NoteTrained(frozen.row);
    const Group& group = *groups_.Find(frozen.id);
    prompts_.NoteTrained(ResultOf(group, input.k, spec_));
    if (group.generation) generations.insert(*group.generation);
  }
  lineage_.NoteStep(input.k, generations);
  prompts_.NoteStep(input.k);
  if (admission_.CountStep(now_, {.ess = input.ess, .kl = input.kl}))
    failures_.RaiseAlarm("max_staleness_too_small", admission_.MakeAdvice());
  effects_->watch = true;
  return absl::OkStatus();
}

// The cut has masked what is too old. This checks it again: it is the last chance to find a fault
// of the cut before the step is published.
absl::Status Job::CheckStaleness(const Batch& batch) {
  for (const FrozenGroup& frozen : batch.groups) {
    const Group& group = *groups_.Find(frozen.id);
    for (const FrozenMember& member : frozen.members) {
      const uint64_t over = CountOutOfBounds(group.members[member.member], member.masked, batch.k,
                                             spec_, engines_.branch());
      if (over == 0) continue;

      ++counters_.violations["staleness"];
      const TrajectoryRef ref{frozen.id, member.member, member.attempt};
      const std::string message =
          absl::StrCat("step ", batch.k, " would train ", over, " tokens of ", ref.str(),
                       " beyond max_staleness ", spec_.max_staleness);
      failures_.RaiseAlarm("stale_batch", message);
      return ErrorWith(absl::StatusCode::kFailedPrecondition,
                       {.reason = "STALE",
                        .catalogue = "SLUICE-QUEUE-0004",
                        .hint = "do not publish this step; go back to the last checkpoint"},
                       message);
    }
  }
  return absl::OkStatus();
}

// `sign`: 1 when the batch is trained, -1 when a restore takes that back. Counters that only tell
// what happened are not taken back.
void Job::CountApplied(const Batch& batch, int sign) {
  int64_t members = 0;
  for (const FrozenGroup& frozen : batch.groups) {
    const Group& group = *groups_.Find(frozen.id);
    members += static_cast<int64_t>(frozen.members.size());
    if (batch.skipped) continue;
    for (const FrozenMember& member : frozen.members) {
      const GroupMember& stored = group.members[member.member];
      ledger_.tokens_trained += sign * static_cast<int64_t>(member.trained);
      ledger_.tokens_masked += sign * static_cast<int64_t>(member.masked_count);
      for (const auto& [age, count] : member.histogram) staleness_[age] += sign * count;
      if (member.trained == 0) continue;

      LengthBin& bin = LengthBinOf(group, stored);
      bin.trained += sign;
      bin.trained_tokens += sign * static_cast<int64_t>(stored.generated);
      if (sign < 0) continue;
      ++counters_.at_cut[batch.k - member.oldest.number];
      ++counters_.in_flight[std::max<int64_t>(0, stored.sealed_at - member.oldest.number)];
      ++counters_.in_queue[std::max<int64_t>(0, batch.k - stored.sealed_at)];
      if (member.masked_count > 0) counters_.tokens_dropped["masked"] += member.masked_count;
    }
  }
  ledger_.live -= sign * members;
  ledger_.applied += sign * members;
}

// What a checkpoint of version K keeps of the job.
std::string Job::MakeCursor() const {
  Cursor cursor{.job = options_.id,
                .version = batches_.version(),
                .ledger = ledger_,
                .next_group = groups_.next_ordinal(),
                .incarnation = callers_.trainer_incarnation(),
                .prompts = prompts_.progress(),
                .live = {},
                .lineage = lineage_.Until(batches_.version())};
  for (const Group* group : groups_.OldestFirst()) {
    const bool trained =
        group->state == GroupState::kInBatch && batches_.Find(group->batch)->applied;
    if (!trained && !group->own) cursor.live.push_back(group->row);
  }
  return EncodeCursor(cursor);
}

}  // namespace sluice::queue
