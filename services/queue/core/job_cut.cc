#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
// A test makes the cut blind to age, to see Apply refuse what the cut should have.
bool CutIsBlind() { return !HitFailpoint("queue.cut.keep_over_age").ok(); }
}  // namespace

// The cut. ----------------------------------------------------------------------------------------

std::optional<std::vector<Verdict>> Job::JudgeGroup(Group& group, int64_t k) {
  std::vector<Verdict> verdicts(group.members.size());
  std::string reason;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    // What still runs can gain tokens of newer versions; only one token too old ends it where the
    // statistic is strict.
    const bool judged =
        member.state == MemberState::kSealed ||
        (spec_.statistic == Statistic::kStrict && member.state != MemberState::kDropped);
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
      // When a batch becomes durable is a matter of time.
      const bool timeless =
          !spec_.deterministic || other.state == GroupState::kAccepted || other.batch == next_cut_;
      if (!in_batch && timeless && member.task_reward) pool.push_back(*member.task_reward);
    }
  }
  return pool;
}

// The group gets a slot of step k: a free one, or that of a group it overtakes, which takes its own
// in exchange.
void Job::TakeSlot(Group& group, int64_t k) {
  if (group.slot == k) return;
  if (!slots_.full(k)) return MoveSlot(group, k);
  // The youngest that still runs; if none does, the youngest that is not in the batch.
  const auto runs = open_.lower_bound({k + 1, 0});
  uint64_t overtaken = 0;
  if (runs != open_.begin() && std::prev(runs)->first == k) {
    overtaken = std::prev(runs)->second;
  } else {
    const std::set<uint64_t>& holders = slots_.holders(k);
    const auto waits = std::find_if(holders.rbegin(), holders.rend(), [&](uint64_t o) {
      return groups_.at(o)->state != GroupState::kInBatch;
    });
    SLUICE_CHECK(waits != holders.rend());
    overtaken = *waits;
  }
  Group& other = *groups_.at(overtaken);
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
  FrozenGroup frozen{.id = group.id,
                     .row = group.row,
                     .size = static_cast<uint32_t>(group.members.size()),
                     .pool = Pool(group)};
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped) continue;
    Verdict& verdict = verdicts[m];
    admission_.TooOld(verdict.masked_count);
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

bool Job::HeldUp(int64_t k) const {
  if (spec_.straggler != Straggler::kWait) return false;
  for (auto it = open_.begin(); it != open_.end() && it->first <= k; ++it) {
    if (!groups_.at(it->second)->overdue) return true;
  }
  return false;
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
  const bool held_up = HeldUp(k);
  if (accepted_.empty() || (!stream && (held_up || (accepted_.size() < needed && !SourcesEnded()))))
    return;
  std::vector<std::pair<Group*, std::vector<Verdict>>> chosen;
  chosen.reserve(std::min(needed, accepted_.size()));
  for (auto it = accepted_.begin(); it != accepted_.end() && chosen.size() < needed;) {
    Group& group = *groups_.at((it++)->second);
    if (held_up && group.slot > k) continue;  // Its turn comes once those before it are done.
    if (auto verdicts = JudgeGroup(group, k)) chosen.emplace_back(&group, *std::move(verdicts));
  }
  if (chosen.empty() || (!stream && chosen.size() < needed && !SourcesEnded())) return;
  Batch& batch = batches_[k];
  batch.k = k;
  batch.groups.reserve(batch.groups.size() + chosen.size());
  for (auto& [group, verdicts] : chosen) Freeze(batch, *group, std::move(verdicts));
  if (batch.groups.size() == spec_.groups_per_step || (SourcesEnded() && accepted_.empty()))
    CloseBatch(batch);
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
    batch.groups.push_back(
        {.id = group.id, .row = *row, .size = 1, .members = {{.member = 0, .attempt = 1}}});
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
  for (auto it = accepted_.begin();
       it != accepted_.end() && it->first < next_cut_ - int64_t{spec_.max_staleness};) {
    JudgeGroup(*groups_.at((it++)->second), next_cut_);
  }
  const int64_t bound = next_cut_ - int64_t{spec_.max_staleness};
  std::vector<uint64_t> aged;
  for (const auto& [slot, ordinal] : open_) {
    const auto& members = groups_.at(ordinal)->members;
    if (std::any_of(members.begin(), members.end(),
                    [&](const GroupMember& m) { return m.log.oldest() < bound; }))
      aged.push_back(ordinal);
  }
  for (uint64_t ordinal : aged) {
    Group& group = *groups_.at(ordinal);
    if (JudgeGroup(group, next_cut_)) Settle(group, "stale");
  }
}

}  // namespace sluice::queue
