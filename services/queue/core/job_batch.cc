#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
constexpr uint64_t kSliceBytes = 8 << 20;
constexpr size_t kFreedBatchesKept = 1024;
}  // namespace

// Handing out. ------------------------------------------------------------------------------------

void Job::OnAcquire(const Event& event, const AcquireBatch& input) {
  absl::Status status = Fence(event.caller, WorkerRole::kTrainer);
  if (status.ok()) status = Listed(event.caller, WorkerRole::kTrainer);
  if (status.ok()) status = NeedRestored();
  if (status.ok() && input.k < 0)
    status = Error(absl::StatusCode::kInvalidArgument, "BAD_STEP", absl::StrCat("k ", input.k));
  if (status.ok() && input.k > version_ + 1) {
    status = Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                   absl::StrCat("k ", input.k, "; K is ", version_, ", K + 1 may be prefetched"));
  }
  if (!status.ok()) return Answer(event.call, status);
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryAcquire(const Caller& caller, const AcquireBatch& input) {
  const int64_t k = input.k;
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (!failure_.ok()) return failure_;
  if (spec_.max_steps > 0 && k >= spec_.max_steps) {
    return Error(absl::StatusCode::kOutOfRange, "END",
                 absl::StrCat("the job ends with step ", spec_.max_steps - 1));
  }
  // Where a slice ends is a matter of time.
  const bool stream = input.stream && !spec_.deterministic;
  if (k == next_cut_) Fill(k, stream);
  const auto it = batches_.find(k);
  if (it == batches_.end()) {
    if (k < next_cut_)
      return Error(absl::StatusCode::kNotFound, "GONE",
                   absl::StrCat("batch ", k, " is durable and freed"));
    if (k == next_cut_ && SourcesEnded() && accepted_.empty()) return DescribeEnd(k);
    return std::nullopt;
  }
  Batch& batch = it->second;
  if (input.from > batch.groups.size()) {
    return Error(
        absl::StatusCode::kInvalidArgument, "BAD_PLACE",
        absl::StrCat("from ", input.from, "; batch ", k, " has ", batch.groups.size(), " groups"));
  }
  const bool ready = batch.closed || (stream && batch.groups.size() > input.from);
  if (!ready) return std::nullopt;
  return Slice(caller, batch, input.from);
}

// The data is used up before batch k. Where no batch was cut, or no row is left although epochs
// are, that is a failure, and what became of the groups says why.
absl::Status Job::DescribeEnd(int64_t k) const {
  if (k > 0 && prompts_.quarantined() < prompts_.rows()) {
    return Error(absl::StatusCode::kOutOfRange, "END",
                 absl::StrCat("all ", spec_.epochs, " epochs are trained; there is no batch ", k));
  }
  std::string dropped;
  for (const auto& [reason, count] : ledger_.dropped) {
    if (count > 0) absl::StrAppend(&dropped, dropped.empty() ? "" : ", ", count, " as ", reason);
  }
  const UnscorableRun* const unscorable = LongestUnscorable();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NOTHING_TRAINED",
       .catalogue = "SLUICE-QUEUE-0010",
       .hint = "see the alarms among `sluice job events`"},
      absl::StrCat(k > 0 ? "every row of the data is quarantined"
                         : "the data is used up and not one group of it could be trained",
                   "; of ", ledger_.accepted,
                   " answers there were dropped: ", dropped.empty() ? "none" : dropped,
                   unscorable == nullptr ? "" : absl::StrCat("; ", unscorable->Describe())));
}

AcquireBatchAnswer Job::Slice(const Caller& caller, Batch& batch, uint32_t from) {
  if (!batch.lease && !batch.applied) {
    batch.lease = leases_
                      .Grant({.kind = LeaseKind::kBatch,
                              .batch = batch.k,
                              .worker = caller.worker,
                              .incarnation = caller.incarnation},
                             now_)
                      .id;
  }
  AcquireBatchAnswer answer{.filled = true, .k = batch.k, .from = from, .closed = batch.closed};
  if (batch.lease) answer.lease = {*batch.lease, leases_.ttl()};
  if (batch.closed) answer.size = batch.groups.size(), answer.crc32c = batch.crc32c;
  uint64_t bytes = 0;
  uint32_t place = from;
  for (; place < batch.groups.size() && (place == from || bytes < kSliceBytes); ++place) {
    const FrozenGroup& frozen = batch.groups[place];
    const Group& group = *Find(frozen.id);
    BatchGroup out{.group = frozen.id, .size = frozen.size, .pool = frozen.pool};
    out.row = spec_.rows_only
                  ? RowOf(group)
                  : Row{.ref = group.own ? group.own->ref : group.row, .source = SourceName(group)};
    for (const FrozenMember& member : frozen.members) {
      const GroupMember& stored = group.members[member.member];
      out.members.push_back({.member = member.member,
                             .attempt = member.attempt,
                             .tokens = member.tokens,
                             .trained = member.trained,
                             .crc32c = member.crc32c,
                             .masked = member.masked,
                             .oldest = member.oldest,
                             .newest = member.newest,
                             .finish = stored.finish});
      for (const auto& [name, field] : stored.fields) {
        if (field.bytes.size <= kInlineBytes) out.members.back().fields.push_back(field);
      }
      bytes += 256 + 16 * member.masked.size() + 128 * out.members.back().fields.size();
    }
    bytes += 128 + out.row.json.size() + 8 * out.pool.size();
    answer.groups.push_back(std::move(out));
  }
  answer.repeat = place <= batch.handed && place > from;
  batch.handed = std::max(batch.handed, place);
  if (answer.repeat) ++counters_.repeats["AcquireBatch"];
  return answer;
}

// Training. ---------------------------------------------------------------------------------------

std::string Job::HashAt(int64_t version) const {
  return version == durable_ ? durable_hash_ : batches_.at(version - 1).hash;
}

void Job::CountApplied(const Batch& batch, int sign) {
  int64_t members = 0;
  for (const FrozenGroup& frozen : batch.groups) {
    const Group& group = *Find(frozen.id);
    for (const FrozenMember& member : frozen.members) {
      ++members;
      if (batch.skipped) continue;
      ledger_.tokens_trained += sign * static_cast<int64_t>(member.trained);
      ledger_.tokens_masked += sign * static_cast<int64_t>(member.masked_count);
      for (const auto& [age, count] : member.histogram) staleness_[age] += sign * count;
      if (member.trained > 0) {
        LengthBin& bin = counters_.lengths[SourceName(group)][Octile(group.members[member.member])];
        bin.trained += sign;
        bin.trained_tokens += sign * static_cast<int64_t>(group.members[member.member].generated);
      }
      if (sign < 0 || member.trained == 0) continue;
      const int64_t sealed_at = group.members[member.member].sealed_at;
      ++counters_.at_cut[batch.k - member.oldest.number];
      ++counters_.in_flight[std::max<int64_t>(0, sealed_at - member.oldest.number)];
      ++counters_.in_queue[std::max<int64_t>(0, batch.k - sealed_at)];
      if (member.masked_count > 0) counters_.tokens_dropped["masked"] += member.masked_count;
    }
  }
  ledger_.live -= sign * members;
  ledger_.applied += sign * members;
}

absl::StatusOr<ApplyAnswer> Job::OnApply(const Caller& caller, const queue::Apply& input) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(NeedRestored());
  const auto it = batches_.find(input.k);
  ApplyAnswer answer{.repeat = input.k < version_};
  if (answer.repeat) {
    if (it != batches_.end() && it->second.crc32c != input.crc32c) {
      return Error(absl::StatusCode::kAlreadyExists, "CONFLICT",
                   absl::StrCat("batch ", input.k, " was applied with another CRC"));
    }
    ++counters_.repeats["Apply"];
  } else {
    if (input.k > version_ || it == batches_.end() || !it->second.closed) {
      return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                   absl::StrCat("Apply ", input.k, ": K is ", version_,
                                input.k == version_ ? ", and the batch is not closed" : ""));
    }
    Batch& batch = it->second;
    if (batch.lease != input.lease)
      return Error(
          absl::StatusCode::kAborted, "LEASE_LOST",
          absl::StrCat("batch ", input.k, ": the lease is not the current one; acquire it again"));
    SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
    if (batch.crc32c != input.crc32c) {
      return Error(
          absl::StatusCode::kDataLoss, "BAD_CRC",
          absl::StrCat("batch ", input.k, " has CRC ", batch.crc32c, ", not ", input.crc32c));
    }
    for (const FrozenGroup& frozen : batch.groups) {
      const Group& group = *Find(frozen.id);
      for (const FrozenMember& member : frozen.members) {
        const uint64_t over =
            OverAge(group.members[member.member], member.masked, input.k, spec_, branch_);
        if (over == 0) continue;
        ++counters_.violations["staleness"];
        const std::string message =
            absl::StrCat("step ", input.k, " would train ", over, " tokens of ",
                         TrajectoryRef{frozen.id, member.member, member.attempt}.str(),
                         " beyond max_staleness ", spec_.max_staleness);
        RaiseAlarm("stale_batch", message);
        return ErrorWith(absl::StatusCode::kFailedPrecondition,
                         {.reason = "STALE",
                          .catalogue = "SLUICE-QUEUE-0004",
                          .hint = "do not publish this step; go back to the last checkpoint"},
                         message);
      }
    }
    leases_.End(*batch.lease, LeaseEnd::kDone);
    batch.lease.reset();
    batch.applied = true;
    batch.skipped = !input.skipped.empty();
    CountApplied(batch, 1);
    version_ = input.k + 1;
    reached_[gang_] = std::max(reached_[gang_], version_);
    ledger_.hash = batch.hash;
    for (const FrozenGroup& frozen : batch.groups)
      starved_.erase({frozen.row.source, frozen.row.index});
    if (admission_.Applied(now_)) RaiseAlarm("max_staleness_too_small", admission_.Advice());
    effects_->watch = true;
  }
  answer.version = version_;
  answer.ledger = ledger_;
  if (input.want_cursor && input.k == version_ - 1) answer.cursor = MakeCursor();
  return answer;
}

absl::StatusOr<AdvanceVersionAnswer> Job::OnAdvance(const Caller& caller,
                                                    const AdvanceVersion& input) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, WorkerRole::kTrainer));
  if (published_ == input.next) {
    ++counters_.repeats["AdvanceVersion"];
    return AdvanceVersionAnswer{.repeat = true, .current = *published_};
  }
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(NeedRestored());
  if (input.policy != 0)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_POLICY",
                 absl::StrCat("policy ", input.policy, "; the job has one"));
  if (input.next.incarnation != caller.incarnation || input.next.number < 0 ||
      input.next.number > version_) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_VERSION",
                 absl::StrCat("next ", input.next.str(), " must be of incarnation ",
                              caller.incarnation, " and at most K = ", version_));
  }
  if (input.expected != published_ || (published_ && input.next <= *published_)) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "LOST_RACE", .current = published_ ? published_->str() : "none"},
                     absl::StrCat("published is ", published_ ? published_->str() : "none",
                                  ", expected ", input.expected ? input.expected->str() : "none"));
  }
  published_ = input.next;
  effects_->watch = true;
  return AdvanceVersionAnswer{.current = input.next};
}

absl::StatusOr<DurableAnswer> Job::OnDurable(const Caller& caller, const Durable& input) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(NeedRestored());
  if (input.version <= durable_) {
    ++counters_.repeats["Durable"];
    return DurableAnswer{.repeat = true};
  }
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
  if (input.version > version_)
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                 absl::StrCat("Durable ", input.version, ": K is ", version_));
  if (HashAt(input.version) != input.hash) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat("checkpoint ", input.checkpoint, ": its ledger hash is not H(",
                              input.version, ")"));
  }
  MakeDurable(input.version);
  return DurableAnswer{};
}

void Job::MakeDurable(int64_t version) {
  durable_hash_ = HashAt(version);
  durable_ = version;
  ledger_.durable_version = version;
  while (!batches_.empty() && batches_.begin()->first < version) {
    for (const FrozenGroup& frozen : batches_.begin()->second.groups) {
      ledger_.applied -= frozen.members.size();
      ledger_.durable += frozen.members.size();
      if (frozen.row.source != RowRef::kOutside)
        freed_rows_[batches_.begin()->first].push_back(frozen.row);
      Erase(*Find(frozen.id));
    }
    batches_.erase(batches_.begin());
    if (freed_rows_.size() > kFreedBatchesKept) freed_rows_.erase(freed_rows_.begin());
  }
}

}  // namespace sluice::queue
