#include <algorithm>

#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// The cut: accepted groups become a batch, and what no later batch can train is dropped.
namespace sluice::queue {
namespace {
// With this failpoint the cut ignores the age of tokens, and whether their versions are on the
// branch. A test uses it to see that Apply refuses what the cut should have masked.
bool CutIgnoresAge() { return !HitFailpoint("queue.cut.keep_over_age").ok(); }
}  // namespace

std::optional<std::vector<Verdict>> Job::JudgeGroup(const Group& group, int64_t k) {
  std::vector<Verdict> verdicts(group.members.size());
  std::string reason;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    // A member that still runs can gain tokens of newer versions, so its age says little yet. Only
    // where the statistic is strict does a single token that is too old end it.
    const GroupMember& member = group.members[m];
    const bool judged =
        member.state == MemberState::kSealed ||
        (spec_.statistic == Statistic::kStrict && member.state != MemberState::kDropped);
    if (!judged) continue;

    verdicts[m] = Judge(member, k, spec_, engines_.branch());
    if (verdicts[m].masked_count > 0 && CutIgnoresAge()) {
      Spec any_age = spec_;
      any_age.max_staleness = ~0u;
      verdicts[m] = Judge(member, k, any_age, Branch());
    }
    if (verdicts[m].trainable) continue;
    reason = verdicts[m].reason;
    EndMember(group, m, reason);
  }
  if (group.reachable() >= spec_.group_min) return verdicts;
  DropGroup(group, reason);
  return std::nullopt;
}

// The rewards of other answers to the same prompt, which an advantage may compare with.
std::vector<double> Job::CollectPool(const Group& group) const {
  std::vector<double> pool;
  for (uint64_t ordinal : groups_.OrdinalsOfRow(group.row)) {
    // Groups of earlier batches stay until a checkpoint, which depends on the clock. Deterministic
    // jobs leave them out.
    const Group& other = groups_.at(ordinal);
    const bool timeless = !spec_.deterministic || other.state == GroupState::kAccepted ||
                          other.batch == batches_.next_cut();
    for (const GroupMember& member : other.members) {
      const bool in_batch = &other == &group && member.state != MemberState::kDropped;
      if (!in_batch && timeless && member.task_reward) pool.push_back(*member.task_reward);
    }
  }
  return pool;
}

void Job::FreezeGroup(Batch& batch, const Group& group, std::vector<Verdict> verdicts) {
  groups_.TakeSlotForCut(group, batch.k);
  FrozenGroup frozen{.id = group.id,
                     .row = group.row,
                     .size = static_cast<uint32_t>(group.members.size()),
                     .pool = CollectPool(group)};
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped) continue;
    Verdict& verdict = verdicts[m];
    admission_.CountTooOld(verdict.masked_count);
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
  groups_.PutInBatch(group, batch.k, now_);
}

// Straggler policy wait: whether a group with a slot of step k or of an earlier step is still open
// and not overdue.
bool Job::IsHeldUp(int64_t k) const {
  if (spec_.straggler != Straggler::kWait) return false;
  const auto& open = groups_.open();
  for (auto it = open.begin(); it != open.end() && it->first <= k; ++it) {
    if (!groups_.at(it->second).overdue) return true;
  }
  return false;
}

bool Job::SourcesEnded() const { return prompts_.exhausted() && groups_.open().empty(); }

void Job::FillBatch(int64_t k, bool stream) {
  const Batch* const begun = batches_.Find(k);
  if (begun != nullptr && begun->closed) return;
  const size_t needed = spec_.groups_per_step - (begun == nullptr ? 0 : begun->groups.size());
  if (spec_.rows_only) {
    Batch& batch = batches_.FindOrBegin(k);
    FillWithRows(batch);
    if (batch.groups.empty()) batches_.EraseEmpty(k);
    return;
  }

  // Without streaming a batch is cut as a whole, once there are enough groups. The last batch may
  // be smaller.
  const auto& accepted = groups_.accepted();
  const bool held_up = IsHeldUp(k);
  const bool too_few = accepted.size() < needed && !SourcesEnded();
  if (accepted.empty() || (!stream && (held_up || too_few))) return;

  std::vector<std::pair<const Group*, std::vector<Verdict>>> chosen;
  chosen.reserve(std::min(needed, accepted.size()));
  for (auto it = accepted.begin(); it != accepted.end() && chosen.size() < needed;) {
    // The iterator moves on first: judging may drop the group.
    const Group& group = groups_.at((it++)->second);
    // While the step waits for its own groups (policy wait), groups of later steps do not replace
    // them.
    if (held_up && group.slot > k) continue;
    if (auto verdicts = JudgeGroup(group, k)) chosen.emplace_back(&group, *std::move(verdicts));
  }
  if (chosen.empty() || (!stream && chosen.size() < needed && !SourcesEnded())) return;

  Batch& batch = batches_.FindOrBegin(k);
  batch.groups.reserve(batch.groups.size() + chosen.size());
  for (auto& [group, verdicts] : chosen) FreezeGroup(batch, *group, std::move(verdicts));
  const bool full = batch.groups.size() == spec_.groups_per_step;
  if (full || (SourcesEnded() && accepted.empty())) CloseBatch(batch);
}

// Supervised rows: groups of one member, without tokens. Their only content is the row.
void Job::FillWithRows(Batch& batch) {
  while (batch.groups.size() < spec_.groups_per_step) {
    const std::optional<RowRef> row = prompts_.Next(batch.k);
    if (!row) break;
    const Group& group = groups_.OpenSupervised(queue_incarnation_, *row, batch.k, now_);
    ++ledger_.accepted;
    ++ledger_.live;
    batch.groups.push_back(
        {.id = group.id, .row = *row, .size = 1, .members = {{.member = 0, .attempt = 1}}});
  }
  if (!batch.groups.empty()) CloseBatch(batch);
}

void Job::CloseBatch(Batch& batch) {
  batches_.Close(batch);
  for (const FrozenGroup& frozen : batch.groups) groups_.FreeSlot(*groups_.Find(frozen.id));

  // With max_staleness 0 the groups that the step left over fit no later step.
  if (spec_.max_staleness == 0) {
    const auto& steps = groups_.slots().steps();
    while (!steps.empty() && steps.begin()->first <= batch.k)
      DropGroup(groups_.at(*steps.begin()->second.begin()), "stale");
  }
  MoveLateSlots();
  DropUntrainable();
}

// Drops what no batch to come can train.
void Job::DropUntrainable() {
  const int64_t next_cut = batches_.next_cut();
  const int64_t bound = next_cut - int64_t{spec_.max_staleness};  // Lower versions are too old.
  const auto& accepted = groups_.accepted();
  for (auto it = accepted.begin(); it != accepted.end() && it->first < bound;)
    JudgeGroup(groups_.at((it++)->second), next_cut);

  std::vector<uint64_t> aged;
  for (const auto& [slot, ordinal] : groups_.open()) {
    const auto& members = groups_.at(ordinal).members;
    if (std::any_of(members.begin(), members.end(),
                    [&](const GroupMember& m) { return m.log.oldest() < bound; }))
      aged.push_back(ordinal);
  }
  for (uint64_t ordinal : aged) {
    const Group& group = groups_.at(ordinal);
    if (JudgeGroup(group, next_cut)) DropOrCompleteGroup(group, "stale");
  }
}

}  // namespace sluice::queue
