#include <algorithm>

#include "services/queue/core/job.h"

// Handles groups that are late and members that make no progress. A group is overdue once it has
// been open for the straggler time T (Spec::wait). What happens then depends on the policy:
//   wait    its step was held for it until now, and goes on without it
//   drop    it is dropped, unless it only waits for scores; its prompt is drawn again up to
//           `reissues` times, then quarantined
//   mask    nothing: it is sampled further under new weights, and tokens that are too old at the
//           cut are masked
//   shrink  it is accepted as soon as G_min members are scored; the others are dropped
// Under each policy a member whose holder stored nothing for 10 T is given to another rollout,
// which continues from its prefix; after `reissues` more such holders in a row it is dropped as a
// straggler. So each member ends, even if no rollout ever finishes it.
namespace sluice::queue {

void Job::HandleStragglers() {
  while (const Group* const group = groups_.NextOverdue(now_)) HandleOverdue(*group);
  for (;;) {
    const auto [group, member] = groups_.NextStalled(now_);
    if (group == nullptr) return;
    HandleStalled(*group, member);
  }
}

void Job::HandleOverdue(const Group& group) {
  // A group that only waits for its scores is late too, but dropping it would gain nothing.
  const bool samples =
      std::any_of(group.members.begin(), group.members.end(), [](const GroupMember& m) {
        return m.state == MemberState::kReserved || m.state == MemberState::kRunning;
      });
  if (spec_.straggler == Straggler::kDrop && samples) return DropGroup(group, "straggler");
  if (spec_.straggler == Straggler::kShrink) DropOrCompleteGroup(group, "straggler");
}

void Job::ShrinkGroup(const Group& group) {
  const uint32_t scored = group.scored();
  if (scored < spec_.group_min || scored == group.standing()) return;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state != MemberState::kDropped && !member.scored()) EndMember(group, m, "shrunk");
  }
  ++counters_.shrunk;
}

void Job::HandleStalled(const Group& group, uint32_t index) {
  ++counters_.stalled;
  const uint32_t stalls = groups_.CountStall(group, index);
  if (stalls > spec_.reissues) return DropMember(group, index, "straggler");

  const GroupMember& member = group.members[index];
  effects_->cancel.push_back({{group.id, index, member.attempt}, "straggler", member.worker});
  EndLease(*member.lease, LeaseEnd::kExpired, ReleaseReason::kLost, absl::ZeroDuration());
}

}  // namespace sluice::queue
