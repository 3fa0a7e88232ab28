#include "services/queue/core/job.h"

// Restarted: the daemon came back and goes on with this job.
namespace sluice::queue {

void Job::OnRestarted(const Restarted& input) {
  queue_incarnation_ = input.incarnation;

  // Nobody could call while the daemon was away, so connections are gone, and leases and the times
  // without progress begin anew.
  engines_.Clear();
  parked_.Clear();
  leases_.RestartAll(now_);
  groups_.NoteProgressOfAll(now_);
  tasks_.NoteCallOfEachGeneration(now_);

  // The daemon tells disk space and memory share anew.
  space_ = Space::kOk;
  share_bytes_ = ~uint64_t{0};
  effects_->watch = true;
  if (spec_.durability == Durability::kMetadata && !spec_.rows_only) RemoveLostPayload();
}

// At level metadata the payload did not come back. Rollouts send the members that they hold again,
// or sample them anew; sealed members are lost. Frozen batches keep their lists, because a trainer
// that has read one may still apply it. Any other trainer gets GONE from Get, and calls Restore.
void Job::RemoveLostPayload() {
  for (const Group* group : groups_.OldestFirst()) {
    if (group->state == GroupState::kInBatch) {
      groups_.NotePayloadLost(*group);
      continue;
    }
    groups_.RemoveLostPayload(*group);
    tasks_.RestartGroupTasks(*group, now_);
    for (uint32_t m = 0; m < group->members.size(); ++m) {
      const GroupMember& member = group->members[m];
      if (member.state == MemberState::kDropped) continue;
      if (member.state == MemberState::kSealed) {
        EndMember(*group, m, "lost");
        continue;
      }
      ledger_.tokens_generated -= static_cast<int64_t>(member.generated);
      groups_.RemoveLostPayload(*group, m, now_);
    }
    // A second wave would not help: with all answers of the first one lost, nothing decides on it.
    if (group->standing() < spec_.group_min) DropLostGroup(*group);
  }

  // An Admit that comes again is answered with the prefix that is there now: none.
  callers_.ForgetPrefixes();
}

}  // namespace sluice::queue
