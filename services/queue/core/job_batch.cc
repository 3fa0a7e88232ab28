#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
constexpr uint64_t kSliceBytes = 8 << 20;
constexpr uint64_t kInlineBytes = 64;
constexpr size_t kFreedBatchesKept = 1024;

// A test makes the cut blind to age, to see Apply refuse what the cut should have.
bool CutIsBlind() {
#ifdef SLUICE_FAILPOINTS
  return !HitFailpoint("queue.cut.keep_over_age").ok();
#else
  return false;
#endif
}
}  // namespace

// The cut. ------------------------------------------------------------------------------------------------------------

std::optional<std::vector<Verdict>> Job::JudgeGroup(Group& group, int64_t k) {
  std::vector<Verdict> verdicts(group.members.size());
  std::string reason;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    // What still runs can gain tokens of newer versions; only one token too old ends it where the statistic is strict.
    const bool judged = member.state == MemberState::kSealed || (spec_.statistic == Statistic::kStrict && member.state != MemberState::kDropped);
    if (!judged) continue;
    verdicts[m] = Judge(member, k, spec_, branch_);
    if (verdicts[m].masked_count > 0 && CutIsBlind()) {
      Spec blind = spec_;
      blind.max_staleness = ~0u;
      verdicts[m] = Judge(member, k, blind, Branch());
    }
    if (verdicts[m].legal) continue;
    reason = verdicts[m].reason;
    RemoveIndexes(group);
    EndMember(group, m, reason);
    AddIndexes(group);
  }
  if (group.standing() < spec_.group_min) {
    DropGroup(group, reason);
    return std::nullopt;
  }
  return verdicts;
}

std::vector<double> Job::Pool(const Group& group) const {
  std::vector<double> pool;
  for (uint64_t ordinal : by_prompt_.at({group.row.source, group.row.index})) {
    const Group& other = *groups_.at(ordinal);
    for (const GroupMember& member : other.members) {
      const bool in_batch = &other == &group && member.state != MemberState::kDropped;
      if (!in_batch && member.task_reward) pool.push_back(*member.task_reward);
    }
  }
  return pool;
}

// The group gets a slot of step k: a free one, or that of a group it overtakes, which takes its own in exchange.
void Job::TakeSlot(Group& group, int64_t k) {
  if (group.slot == k) return;
  if (!slots_.full(k)) return MoveSlot(group, k);
  const std::set<uint64_t>& holders = slots_.holders(k);
  const auto overtaken = std::find_if(holders.rbegin(), holders.rend(), [&](uint64_t o) { return groups_.at(o)->state != GroupState::kInBatch; });
  SLUICE_CHECK(overtaken != holders.rend());
  Group& other = *groups_.at(*overtaken);
  const int64_t mine = group.slot;
  RemoveIndexes(other);
  slots_.Free(k, other.id.ordinal);
  slots_.Free(mine, group.id.ordinal);
  slots_.Take(mine, other.id.ordinal);
  slots_.Take(k, group.id.ordinal);
  other.slot = mine;
  group.slot = k;
  AddIndexes(other);
}

void Job::Freeze(Batch& batch, Group& group, std::vector<Verdict> verdicts) {
  TakeSlot(group, batch.k);
  FrozenGroup frozen{.id = group.id, .row = group.row, .size = static_cast<uint32_t>(group.members.size()), .pool = Pool(group)};
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped) continue;
    Verdict& verdict = verdicts[m];
    frozen.members.push_back({.member = m,
                              .attempt = member.attempt,
                              .tokens = group.prompt.tokens() + member.log.tokens(),
                              .trained = verdict.trained,
                              .masked_count = verdict.masked_count,
                              .crc32c = member.log.crc32c(),
                              .masked = std::move(verdict.masked),
                              .oldest = verdict.oldest,
                              .newest = verdict.newest,
                              .histogram = std::move(verdict.histogram)});
  }
  batch.groups.push_back(std::move(frozen));
  accepted_.erase({group.cut_key, group.id.ordinal});
  group.state = GroupState::kInBatch;
  group.since = now_;
  group.batch = batch.k;
}

bool Job::SourcesEnded() const { return prompts_.exhausted() && open_.empty(); }

void Job::Fill(int64_t k, bool stream) {
  const auto existing = batches_.find(k);
  if (existing != batches_.end() && existing->second.closed) return;
  const size_t begun = existing == batches_.end() ? 0 : existing->second.groups.size();
  const size_t needed = spec_.groups_per_step - begun;
  if (spec_.rows_only) {
    Batch& batch = batches_[k];
    batch.k = k;
    FillRows(batch);
    if (batch.groups.empty()) batches_.erase(k);
    return;
  }
  if (accepted_.empty() || (!stream && accepted_.size() < needed && !SourcesEnded())) return;
  std::vector<std::pair<Group*, std::vector<Verdict>>> chosen;
  for (auto it = accepted_.begin(); it != accepted_.end() && chosen.size() < needed;) {
    Group& group = *groups_.at((it++)->second);
    if (auto verdicts = JudgeGroup(group, k)) chosen.emplace_back(&group, *std::move(verdicts));
  }
  if (chosen.empty() || (!stream && chosen.size() < needed && !SourcesEnded())) return;
  Batch& batch = batches_[k];
  batch.k = k;
  for (auto& [group, verdicts] : chosen) Freeze(batch, *group, std::move(verdicts));
  if (batch.groups.size() == spec_.groups_per_step || (SourcesEnded() && accepted_.empty())) CloseBatch(batch);
}

// Supervised rows: groups of one, accepted at birth, without tokens; their only content is the row.
void Job::FillRows(Batch& batch) {
  while (batch.groups.size() < spec_.groups_per_step) {
    const std::optional<RowRef> row = prompts_.Next();
    if (!row) break;
    Group& group = OpenGroup(*row, -1, 1);
    group.members[0].state = MemberState::kSealed;
    group.members[0].granted = true;
    group.state = GroupState::kInBatch;
    group.batch = batch.k;
    ++ledger_.accepted;
    ++ledger_.live;
    batch.groups.push_back({.id = group.id, .row = *row, .size = 1, .members = {{.member = 0, .attempt = 1}}});
  }
  if (!batch.groups.empty()) CloseBatch(batch);
}

void Job::CloseBatch(Batch& batch) {
  const std::string canonical = CanonicalBytes(batch.groups);
  batch.crc32c = Crc32c(canonical);
  batch.hash = NextHash(HashAt(batch.k), batch.k, canonical);
  batch.closed = true;
  next_cut_ = batch.k + 1;
  for (const FrozenGroup& frozen : batch.groups) {
    Group& group = *Find(frozen.id);
    if (group.slot >= 0) slots_.Free(group.slot, group.id.ordinal);
    group.slot = -1;
  }
  if (spec_.max_staleness == 0) {
    // On-policy, what the step left over fits no later one.
    while (!slots_.steps().empty() && slots_.steps().begin()->first <= batch.k) {
      DropGroup(*groups_.at(*slots_.steps().begin()->second.begin()), "stale");
    }
  }
  Reslot();
  Evict();
}

// Drops what no batch to come can train.
void Job::Evict() {
  for (auto it = accepted_.begin(); it != accepted_.end() && it->first < next_cut_ - int64_t{spec_.max_staleness};) {
    JudgeGroup(*groups_.at((it++)->second), next_cut_);
  }
  const std::vector<std::pair<int64_t, uint64_t>> open(open_.begin(), open_.end());
  for (const auto& [slot, ordinal] : open) {
    Group& group = *groups_.at(ordinal);
    if (JudgeGroup(group, next_cut_)) Settle(group, "stale");
  }
}

// Handing out. --------------------------------------------------------------------------------------------------------

void Job::OnAcquire(const Event& event, const AcquireBatch& input) {
  absl::Status status = Fence(event.caller, WorkerRole::kTrainer);
  if (status.ok()) status = Listed(event.caller, WorkerRole::kTrainer);
  if (status.ok()) status = NeedRestored();
  if (status.ok() && input.k < 0) status = Error(absl::StatusCode::kInvalidArgument, "BAD_STEP", absl::StrCat("k ", input.k));
  if (status.ok() && input.k > version_ + 1) {
    status = Error(absl::StatusCode::kFailedPrecondition, "NOT_YET", absl::StrCat("k ", input.k, "; K is ", version_, ", K + 1 may be prefetched"));
  }
  if (!status.ok()) return Answer(event.call, status);
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryAcquire(const Caller& caller, const AcquireBatch& input) {
  const int64_t k = input.k;
  if (phase_ >= Phase::kClosed) return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (!failure_.ok()) return failure_;
  if (spec_.max_steps > 0 && k >= spec_.max_steps) {
    return Error(absl::StatusCode::kOutOfRange, "END", absl::StrCat("the job ends with step ", spec_.max_steps - 1));
  }
  if (k >= next_cut_ && k == next_cut_) Fill(k, input.stream);
  const auto it = batches_.find(k);
  if (it == batches_.end()) {
    if (k < next_cut_) return Error(absl::StatusCode::kNotFound, "GONE", absl::StrCat("batch ", k, " is durable and freed"));
    if (k == next_cut_ && SourcesEnded() && accepted_.empty()) {
      return Error(absl::StatusCode::kOutOfRange, "END", absl::StrCat("all ", spec_.epochs, " epochs are trained; there is no batch ", k));
    }
    return std::nullopt;
  }
  Batch& batch = it->second;
  if (input.from > batch.groups.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_PLACE", absl::StrCat("from ", input.from, "; batch ", k, " has ", batch.groups.size(), " groups"));
  }
  const bool ready = batch.closed || (input.stream && batch.groups.size() > input.from);
  if (!ready) return std::nullopt;
  return Slice(caller, batch, input.from);
}

AcquireBatchAnswer Job::Slice(const Caller& caller, Batch& batch, uint32_t from) {
  if (!batch.lease && !batch.applied) {
    batch.lease = leases_.Grant({.kind = LeaseKind::kBatch, .batch = batch.k, .worker = caller.worker, .incarnation = caller.incarnation}, now_).id;
  }
  AcquireBatchAnswer answer{.filled = true, .k = batch.k, .from = from, .closed = batch.closed};
  if (batch.lease) answer.lease = {*batch.lease, leases_.ttl()};
  if (batch.closed) answer.size = batch.groups.size(), answer.crc32c = batch.crc32c;
  uint64_t bytes = 0;
  uint32_t place = from;
  for (; place < batch.groups.size() && (place == from || bytes < kSliceBytes); ++place) {
    const FrozenGroup& frozen = batch.groups[place];
    const Group& group = *Find(frozen.id);
    BatchGroup out{.group = frozen.id, .row = prompts_.Read(frozen.row), .size = frozen.size, .pool = frozen.pool};
    if (!spec_.rows_only) out.row.json.clear();
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

WaitEdge Job::GroupEdge(const Node& waiter, const Group& group, Instant since) const {
  WaitEdge edge{.waiter = waiter, .since = now_ - since};
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped || member.scored()) continue;
    const std::string ref = TrajectoryRef{group.id, m, member.attempt}.str();
    const std::string age = absl::FormatDuration(absl::Trunc(now_ - member.since, absl::Milliseconds(1)));
    if (member.state != MemberState::kSealed) {
      edge.on = {NodeKind::kTrajectory, ref, member.lease ? member.worker : ""};
      edge.cause = member.lease ? absl::StrCat(member.worker, " samples it for ", age, ", ", member.log.tokens(), " tokens stored, attempt ", member.attempt)
                                : "nobody holds it";
      edge.next = member.lease ? "it is sealed, or its lease ends" : "a rollout asks for work";
      return edge;
    }
    for (size_t t = 0; t < member.tasks.size(); ++t) {
      const MemberTask& task = member.tasks[t];
      if (task.state == TaskState::kDone) continue;
      edge.on = {NodeKind::kTask, absl::StrCat(ref, "/", spec_.tasks[t].name), task.lease ? task.worker : ""};
      edge.cause = task.lease ? absl::StrCat(task.worker, " works on it for ", age) : absl::StrCat("no reward worker took it from pool ", spec_.tasks[t].pool, " yet");
      if (!task.cause.empty()) absl::StrAppend(&edge.cause, "; before: ", task.cause);
      edge.next = task.lease ? "its result, or its lease ends" : "a reward worker asks for work";
      return edge;
    }
  }
  edge.on = {NodeKind::kGroup, group.id.hex(), ""};
  edge.cause = "the group is complete";
  return edge;
}

WaitEdge Job::BatchEdge(const Caller& caller, int64_t k, Instant since) const {
  const Node waiter{NodeKind::kCall, absl::StrCat("AcquireBatch ", k), caller.worker};
  WaitEdge edge{.waiter = waiter, .since = now_ - since};
  if (k > next_cut_) {
    edge.on = {NodeKind::kBatch, absl::StrCat(next_cut_), ""};
    edge.cause = absl::StrCat("batch ", next_cut_, " comes first");
    return edge;
  }
  if (!open_.empty()) {
    edge = GroupEdge(waiter, *groups_.at(open_.begin()->second), since);
  } else if (engines_.empty()) {
    edge.on = {NodeKind::kDaemon, "rollout", ""};
    edge.cause = "no rollout has told the version it holds";
    edge.next = "a rollout renews";
    edge.hint = "see whether rollouts run and load the published version";
  } else if (phase_ == Phase::kHold) {
    edge.on = {NodeKind::kJob, options_.id, ""};
    edge.cause = "the job is on hold and admits nothing";
    edge.hint = "resume the job";
  } else {
    const std::optional<int64_t> lowest = Lowest();
    edge.on = {NodeKind::kSlot, absl::StrCat(k), ""};
    edge.cause = absl::StrCat("no group is open for step ", k, "; the lowest engine holds version ", lowest ? absl::StrCat(*lowest) : "none");
    edge.next = "a rollout asks for work";
  }
  const auto begun = batches_.find(k);
  const size_t taken = begun == batches_.end() ? 0 : begun->second.groups.size();
  absl::StrAppend(&edge.cause, "; ", accepted_.size() + taken, " of ", spec_.groups_per_step, " groups are accepted");
  return edge;
}

// Training. -----------------------------------------------------------------------------------------------------------

std::string Job::HashAt(int64_t version) const { return version == durable_ ? durable_hash_ : batches_.at(version - 1).hash; }

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
      if (sign < 0 || member.trained == 0) continue;
      const int64_t sealed_at = group.members[member.member].sealed_at;
      ++counters_.at_cut[batch.k - member.oldest.number];
      ++counters_.in_flight[std::max<int64_t>(0, sealed_at - member.oldest.number)];
      ++counters_.in_queue[std::max<int64_t>(0, batch.k - sealed_at)];
      auto& [trajectories, tokens] = counters_.trained[spec_.sources[frozen.row.source].name];
      ++trajectories;
      tokens += member.trained;
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
      return Error(absl::StatusCode::kAlreadyExists, "CONFLICT", absl::StrCat("batch ", input.k, " was applied with another CRC"));
    }
    ++counters_.repeats["Apply"];
  } else {
    if (input.k > version_ || it == batches_.end() || !it->second.closed) {
      return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                   absl::StrCat("Apply ", input.k, ": K is ", version_, input.k == version_ ? ", and the batch is not closed" : ""));
    }
    Batch& batch = it->second;
    if (batch.lease != input.lease) return Error(absl::StatusCode::kAborted, "LEASE_LOST", absl::StrCat("batch ", input.k, ": the lease is not the current one; acquire it again"));
    SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
    if (batch.crc32c != input.crc32c) {
      return Error(absl::StatusCode::kDataLoss, "BAD_CRC", absl::StrCat("batch ", input.k, " has CRC ", batch.crc32c, ", not ", input.crc32c));
    }
    for (const FrozenGroup& frozen : batch.groups) {
      const Group& group = *Find(frozen.id);
      for (const FrozenMember& member : frozen.members) {
        const uint64_t over = OverAge(group.members[member.member], member.masked, input.k, spec_, branch_);
        if (over == 0) continue;
        ++counters_.violations["staleness"];
        const std::string message = absl::StrCat("step ", input.k, " would train ", over, " tokens of ",
                                                 TrajectoryRef{frozen.id, member.member, member.attempt}.str(), " beyond max_staleness ", spec_.max_staleness);
        effects_->alarms.push_back({"stale_batch", message});
        return ErrorWith(absl::StatusCode::kFailedPrecondition,
                         {.reason = "STALE", .catalogue = "SLUICE-QUEUE-0004", .hint = "do not publish this step; go back to the last checkpoint"}, message);
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
    effects_->watch = true;
  }
  answer.version = version_;
  answer.ledger = ledger_;
  if (input.want_cursor && input.k == version_ - 1) answer.cursor = MakeCursor();
  return answer;
}

absl::StatusOr<AdvanceVersionAnswer> Job::OnAdvance(const Caller& caller, const AdvanceVersion& input) {
  SLUICE_RETURN_IF_ERROR(Fence(caller, WorkerRole::kTrainer));
  if (published_ == input.next) {
    ++counters_.repeats["AdvanceVersion"];
    return AdvanceVersionAnswer{.repeat = true, .current = *published_};
  }
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(NeedRestored());
  if (input.policy != 0) return Error(absl::StatusCode::kInvalidArgument, "BAD_POLICY", absl::StrCat("policy ", input.policy, "; the job has one"));
  if (input.next.incarnation != caller.incarnation || input.next.number < 0 || input.next.number > version_) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_VERSION",
                 absl::StrCat("next ", input.next.str(), " must be of incarnation ", caller.incarnation, " and at most K = ", version_));
  }
  if (input.expected != published_ || (published_ && input.next <= *published_)) {
    return ErrorWith(absl::StatusCode::kAborted, {.reason = "LOST_RACE", .current = published_ ? published_->str() : "none"},
                     absl::StrCat("published is ", published_ ? published_->str() : "none", ", expected ", input.expected ? input.expected->str() : "none"));
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
  if (input.version > version_) return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET", absl::StrCat("Durable ", input.version, ": K is ", version_));
  if (HashAt(input.version) != input.hash) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC", absl::StrCat("checkpoint ", input.checkpoint, ": its ledger hash is not H(", input.version, ")"));
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
      freed_rows_[batches_.begin()->first].push_back(frozen.row);
      Erase(*Find(frozen.id));
    }
    batches_.erase(batches_.begin());
    if (freed_rows_.size() > kFreedBatchesKept) freed_rows_.erase(freed_rows_.begin());
  }
}

}  // namespace sluice::queue
