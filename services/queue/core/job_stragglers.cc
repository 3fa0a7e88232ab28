#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/job.h"

// What time does to groups that are late and to members that stand still. A group is overdue once
// it has been open for the straggler time T (`wait`):
//   wait    its step is held for it until then, and goes on without it after
//   drop    it is dropped; its prompt is drawn again up to `reissues` times, then quarantined
//   mask    nothing: it goes on under new weights, and what is too old at the cut leaves the mask
//   shrink  it is accepted as soon as G_min members are scored; the others are dropped
// Under each of them a member whose holder stored nothing for 10 T is taken from it and goes on
// elsewhere from its prefix; after `reissues` more such holders in a row it is dropped as a
// straggler. So a member that never ends ends all the same.
namespace sluice::queue {
namespace {
constexpr uint32_t kStarved = 5;  // Draws in a row that were not trained, until it is said aloud.
}  // namespace

void Job::LookAtStragglers() {
  while (!overdue_.empty() && overdue_.front().first <= now_) {
    const auto it = groups_.find(overdue_.front().second);
    overdue_.pop_front();
    if (it != groups_.end() && it->second->state == GroupState::kOpen) Overdue(*it->second);
  }
  while (!stalling_.empty() && stalling_.begin()->first <= now_) {
    const auto [ordinal, index] = stalling_.begin()->second;
    stalling_.erase(stalling_.begin());
    const auto it = groups_.find(ordinal);
    if (it == groups_.end() || !it->second->members[index].lease) continue;
    const Instant due = it->second->members[index].progress + spec_.stalled_after();
    if (due > now_) {
      stalling_.insert({due, {ordinal, index}});
    } else {
      Stall(*it->second, index);
    }
  }
}

void Job::Overdue(Group& group) {
  group.overdue = true;
  const bool late =
      std::any_of(group.members.begin(), group.members.end(), [](const GroupMember& m) {
        return m.state == MemberState::kReserved || m.state == MemberState::kRunning;
      });
  if (spec_.straggler == Straggler::kDrop && late) return DropGroup(group, "straggler");
  if (spec_.straggler == Straggler::kShrink) Settle(group, "straggler");
}

void Job::Shrink(Group& group) {
  const uint32_t scored = group.scored();
  if (scored < spec_.group_min || scored == group.standing()) return;
  RemoveIndexes(group);
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state != MemberState::kDropped && !member.scored()) EndMember(group, m, "shrunk");
  }
  AddIndexes(group);
  ++counters_.shrunk;
}

void Job::Stall(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  ++counters_.stalled;
  if (++member.stalls > spec_.reissues) return DropMember(group, index, "straggler");
  effects_->cancel.push_back({{group.id, index, member.attempt}, "straggler", member.worker});
  EndLease(*member.lease, LeaseEnd::kExpired, ReleaseReason::kLost, absl::ZeroDuration());
}

// The holder of the lease stored something.
void Job::Progressed(const Id16& lease) {
  const LeaseEntry* entry = leases_.Find(lease);
  if (entry != nullptr && entry->kind == LeaseKind::kTrajectory)
    groups_.at(entry->group)->members[entry->member].progress = now_;
}

void Job::CountStarved(const Group& group, const std::string& reason) {
  const bool looked_at = reason == "filtered" || reason == "closed" ||
                         reason == "prompt_too_long" || reason == "bad_row";
  if (group.own || looked_at) return;
  const uint32_t count = ++starved_[{group.row.source, group.row.index}];
  if (count != kStarved) return;
  RaiseAlarm("starved",
             absl::StrCat("prompt ", SourceName(group), ":", group.row.index, " was drawn ", count,
                          " times in a row and never trained, last dropped as ", reason));
}

}  // namespace sluice::queue
