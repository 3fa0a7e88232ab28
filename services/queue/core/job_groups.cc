#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// The ways in which members and groups end, for calls and for timers.
namespace sluice::queue {
namespace {
// Whether no answer is better than another: there are fewer than two rewards, or their sample
// standard deviation (ddof 1) is at most 1e-6 (DAPO's dynamic sampling).
bool HasNoSignal(const std::vector<double>& rewards) {
  if (rewards.size() < 2) return true;
  double mean = 0, squares = 0;
  for (double reward : rewards) mean += reward / rewards.size();
  for (double reward : rewards) squares += (reward - mean) * (reward - mean);
  return std::sqrt(squares / (rewards.size() - 1)) <= 1e-6;
}

uint64_t CountTrainable(const GroupMember& member) {
  uint64_t tokens = 0;
  ForEachTrainable(member,
                   [&](uint64_t, uint64_t count, const PolicyVersion&) { tokens += count; });
  return tokens;
}

std::vector<double> RewardsOf(const Group& group) {
  std::vector<double> rewards;
  for (const GroupMember& member : group.members) {
    if (member.state == MemberState::kSealed) rewards.push_back(member.task_reward.value_or(0));
  }
  return rewards;
}

// Why the group filter rejects a complete group. None: it is accepted.
std::optional<std::string> FindRejection(const Group& group, Filter filter) {
  // The verdict of a group's task is "accept", "reject" or "reject:REASON".
  const auto verdict = group.fields.find("verdict");
  if (verdict != group.fields.end() && verdict->second.bytes.view() != "accept") {
    const absl::string_view text = verdict->second.bytes.view();
    return text == "reject" ? "verdict" : std::string(absl::StripPrefix(text, "reject:"));
  }

  const std::vector<double> rewards = RewardsOf(group);
  if (filter != Filter::kSignal || !HasNoSignal(rewards)) return std::nullopt;
  return rewards[0] == 0 ? "all_zero" : rewards[0] == 1 ? "all_one" : "other";
}
}  // namespace

void Job::EndMember(const Group& group, uint32_t index, const std::string& reason) {
  const GroupMember& member = group.members[index];
  if (member.granted) {
    --ledger_.live;
    ++ledger_.dropped[reason];
    const uint64_t tokens = CountTrainable(member);
    counters_.tokens_dropped[reason] += static_cast<int64_t>(tokens);
    if (reason == "stale") admission_.CountTooOld(tokens);
  }
  if (member.lease) {
    effects_->cancel.push_back({{group.id, index, member.attempt}, reason, member.worker});
    leases_.End(*member.lease, LeaseEnd::kDropped);
  }
  tasks_.EndTasks(group, index);
  groups_.DropMember(group, index, reason, now_);
}

void Job::DropMember(const Group& group, uint32_t index, const std::string& reason) {
  EndMember(group, index, reason);
  DropOrCompleteGroup(group, reason);
}

void Job::DropGroup(const Group& group, const std::string& reason) {
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state != MemberState::kDropped) EndMember(group, m, reason);
  }
  tasks_.EndTasks(group, kWholeGroup);

  failures_.NoteDropped(group.row, SourceName(group), reason);
  if (IsReissued(reason) && !group.own) {
    const Prompts::Fate fate = prompts_.Reissue(group.row);
    if (fate == Prompts::Fate::kAgain) ++counters_.reissued;
    if (fate == Prompts::Fate::kQuarantined) {
      failures_.NoteQuarantined(
          group.row, SourceName(group), reason,
          absl::StrCat("failed ", group.row.occurrence + 1, " times, last as ", reason));
    }
  }
  groups_.Erase(group);
}

// If the row itself is at fault, another try would not help, so the row is quarantined at once.
void Job::DropUnscorable(const Group& group, const std::string& cause, bool row_at_fault) {
  const bool quarantined = row_at_fault && !group.own && prompts_.Quarantine(group.row);
  failures_.NoteUnscorable(group.row, SourceName(group), cause);
  if (quarantined) {
    failures_.NoteQuarantined(group.row, SourceName(group), "unscorable",
                              absl::StrCat("cannot be scored (", cause, ")"));
  }
  DropGroup(group, "unscorable");
}

void Job::DropLostGroup(const Group& group) {
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state != MemberState::kDropped) EndMember(group, m, "lost");
  }
  tasks_.EndTasks(group, kWholeGroup);
  if (!group.own) prompts_.Return(group.row);
  groups_.Erase(group);
}

void Job::DropOrCompleteGroup(const Group& group, const std::string& reason) {
  if (group.state != GroupState::kOpen) return;
  if (group.reachable() < spec_.group_min) return DropGroup(group, reason);
  if (group.overdue && spec_.straggler == Straggler::kShrink) ShrinkGroup(group);
  tasks_.QueueReadyOfGroup(group, now_);
  if (!group.complete()) return;

  if (group.undrawn > 0 && NeedsSecondWave(group)) {
    ++counters_.second_waves;
    return groups_.AddSecondWave(group, now_);
  }
  CompleteGroup(group);
}

// The outcome is open as long as rewards differ, or too few are known: then more answers teach
// more. Under the policy shrink, a group that is late takes what it has.
bool Job::NeedsSecondWave(const Group& group) const {
  const std::vector<double> rewards = RewardsOf(group);
  if (group.overdue && spec_.straggler == Straggler::kShrink && rewards.size() >= spec_.group_min)
    return false;
  if (rewards.size() < std::max(spec_.group_min, 2u)) return true;
  return !HasNoSignal(rewards);
}

void Job::CompleteGroup(const Group& group) {
  if (group.undrawn > 0) {
    ++counters_.first_waves_only;
    counters_.answers_saved += group.undrawn;
    groups_.LeaveOutSecondWave(group);
  }
  const std::optional<std::string> rejection = FindRejection(group, spec_.filter);
  if (rejection) {
    failures_.NoteRejected(group.row, SourceName(group), *rejection);
    prompts_.NoteRejected(ResultOf(group, group.slot, spec_));
    return DropGroup(group, "filtered");
  }
  failures_.NoteAccepted(group.row);
  tasks_.MarkScored(group.row);
  groups_.Accept(group, now_);
}

// Rows, sources and lengths. ----------------------------------------------------------------------

Row Job::ReadRow(const Group& group) const {
  return group.own ? *group.own : prompts_.Read(group.row);
}

const std::string& Job::SourceName(const Group& group) const {
  return group.own ? group.own->source : spec_.sources[group.row.source].name;
}

// The bin of the member's source and length; there is one per eighth of the longest answer allowed.
LengthBin& Job::LengthBinOf(const Group& group, const GroupMember& member) {
  const uint64_t longest =
      spec_.sampling.max_tokens > 0 ? spec_.sampling.max_tokens : spec_.member_tokens;
  const size_t eighth =
      std::min<uint64_t>(7, 8 * member.generated / std::max<uint64_t>(1, longest));
  return counters_.lengths[SourceName(group)][eighth];
}

}  // namespace sluice::queue
