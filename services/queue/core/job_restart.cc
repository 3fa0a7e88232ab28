#include <algorithm>

#include "services/queue/core/job.h"

namespace sluice::queue {

void Job::OnRestarted(const Restarted& input) {
  queue_incarnation_ = input.incarnation;
  engines_.clear();
  parked_.clear();
  leases_.Rearm(now_);
  for (const auto& [ordinal, group] : groups_) {
    for (GroupMember& member : group->members) member.progress = now_;
  }
  for (auto& [generation, seen] : generation_seen_) seen = now_;
  space_ = Space::kOk;
  share_bytes_ = ~uint64_t{0};  // Until the daemon tells.
  effects_->watch = true;
  if (spec_.durability == Durability::kMetadata && !spec_.rows_only) LosePayload();
}

void Job::OnDiskSpace(const DiskSpace& input) { space_ = input.space; }

// Members go back to the source as those of a trainer's lost work do: their prompt is drawn again,
// whatever it failed before.
void Job::LoseGroup(Group& group) {
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state != MemberState::kDropped) EndMember(group, m, "lost");
  }
  for (uint32_t t = 0; t < group.tasks.size(); ++t) EndTask(group, kWholeGroup, t);
  if (!group.own) prompts_.Return(group.row);
  Erase(group);
}

// What runs is sent again by its holders, or sampled anew. Frozen batches keep their lists: a
// trainer that has read one may apply it; to any other Get says GONE, and it asks for a restore.
void Job::LosePayload() {
  std::vector<Group*> groups;
  for (const auto& [ordinal, group] : groups_) {
    if (group->state != GroupState::kInBatch) {
      groups.push_back(group.get());
    } else {
      group->payload_lost = group->lost();
    }
  }
  std::sort(groups.begin(), groups.end(),
            [](const Group* a, const Group* b) { return a->id.ordinal < b->id.ordinal; });
  for (Group* group : groups) {
    RemoveIndexes(*group);
    stored_bytes_ -= group->prompt.bytes() + group->field_bytes;
    group->prompt = TokenLog();
    group->fields.clear();
    group->field_bytes = 0;
    for (uint32_t t = 0; t < group->tasks.size(); ++t) {
      EndTask(*group, kWholeGroup, t);
      ResetTask(t, Granularity::kGroup, group->tasks[t]);
    }
    for (uint32_t m = 0; m < group->members.size(); ++m) {
      GroupMember& member = group->members[m];
      if (member.state == MemberState::kDropped) continue;
      if (member.state == MemberState::kSealed) {
        EndMember(*group, m, "lost");
        continue;
      }
      stored_bytes_ -= member.stored();
      ledger_.tokens_generated -= static_cast<int64_t>(member.generated);
      member.generated = 0;
      member.log = TokenLog();
      member.fields.clear();
      member.field_bytes = 0;
      member.state = MemberState::kReserved;
      member.since = now_;
    }
    AddIndexes(*group);
    if (group->standing() < spec_.group_min) LoseGroup(*group);
  }
  // An Admit repeated from before is answered with the prefix that is there now: none.
  for (auto& [worker, answers] : kept_) {
    for (auto& [request, reply] : answers) {
      auto* const admitted = std::get_if<AdmitAnswer>(&reply);
      if (admitted == nullptr) continue;
      for (queue::Grant& grant : admitted->grants) {
        for (Member& member : grant.members) member.prefix = 0;
      }
    }
  }
}

}  // namespace sluice::queue
