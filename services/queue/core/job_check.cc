#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/job.h"

namespace sluice::queue {

// Recomputes from groups, batches and leases what the books and indexes say.
std::vector<std::string> Job::Violations() const {
  std::vector<std::string> broken;
  const auto expect = [&](bool holds, auto&&... what) {
    if (!holds) broken.push_back(absl::StrCat(what...));
  };
  int64_t live = 0, applied = 0;
  uint64_t stored = 0, reserved = 0;
  size_t open = 0, accepted = 0, unheld = 0, trajectories = 0, tasks = 0, batch_leases = 0;
  for (const Group* const listed : groups_.OldestFirst()) {
    const Group& group = *listed;
    const uint64_t ordinal = group.id.ordinal;
    const std::string name = group.id.hex();
    const bool in_batch = group.state == GroupState::kInBatch;
    const Batch* const batch = batches_.Find(group.batch);
    expect(in_batch == (group.batch >= 0) && (!in_batch || batch != nullptr), name, " is in batch ",
           group.batch, ", which is not there");
    expect(group.slot < 0 || groups_.slots().holders(group.slot).contains(ordinal), name,
           " says it holds a slot of step ", group.slot);
    expect(group.slot >= 0 || in_batch, name, " is alive without a slot");
    const bool is_applied = in_batch && batch != nullptr && batch->applied;
    for (uint32_t m = 0; m < group.members.size(); ++m) {
      const GroupMember& member = group.members[m];
      if (member.granted && member.state != MemberState::kDropped) ++(is_applied ? applied : live);
      expect(!member.lease ||
                 (leases_.Find(*member.lease) && leases_.Find(*member.lease)->member == m),
             name, "/", m, " holds a lease that is not there");
      expect(!member.lease || member.state == MemberState::kReserved ||
                 member.state == MemberState::kRunning,
             name, "/", m, " holds a lease but does not run");
      expect(group.state == GroupState::kOpen || member.state == MemberState::kSealed ||
                 member.state == MemberState::kDropped,
             name, "/", m, " runs in a group that is complete");
      trajectories += member.lease.has_value();
      for (const TaskProgress& task : member.tasks) tasks += task.lease.has_value();
      const uint64_t held = group.prompt.bytes() + member.stored();
      expect(spec_.rows_only || held <= spec_.member_bytes(), name, "/", m, " stores ", held,
             " B of ", spec_.member_bytes(), " reserved");
    }
    for (const TaskProgress& task : group.tasks) tasks += task.lease.has_value();
    expect(group.state == GroupState::kOpen || group.complete(), name, " is ", Name(group.state),
           " but not complete");
    expect(group.state == GroupState::kOpen ||
               group.standing() >= (spec_.rows_only ? 1 : spec_.group_min),
           name, " stands with ", group.standing(), " members");
    open += group.state == GroupState::kOpen;
    accepted += group.state == GroupState::kAccepted;
    unheld += group.state == GroupState::kOpen && group.has_unheld();
    expect(group.state != GroupState::kOpen || groups_.open().contains({group.slot, ordinal}), name,
           " is open but not indexed");
    expect(group.state != GroupState::kAccepted ||
               groups_.accepted().contains({group.cut_key, ordinal}),
           name, " is accepted but not indexed");
    stored += group.stored();
    reserved += spec_.rows_only ? 0 : spec_.group_bytes();
  }
  expect(open == groups_.open().size() && accepted == groups_.accepted().size() &&
             unheld == groups_.unheld().size(),
         "an index holds groups that are gone");
  expect(live == ledger_.live, "ledger: live ", ledger_.live, ", counted ", live);
  expect(applied == ledger_.applied, "ledger: applied ", ledger_.applied, ", counted ", applied);
  expect(ledger_.gap() == 0,
         "ledger: accepted - durable - applied - live - dropped = ", ledger_.gap());
  expect(ledger_.hash == batches_.HashAt(batches_.version()), "ledger: hash is not H(K)");
  expect(stored == groups_.stored_bytes() && reserved == groups_.reserved_bytes(), "bytes: stored ",
         groups_.stored_bytes(), " (counted ", stored, "), reserved ", groups_.reserved_bytes(),
         " (counted ", reserved, ")");
  expect(spec_.rows_only || (stored <= reserved && reserved <= spec_.quota_bytes), "bytes: stored ",
         stored, " <= reserved ", reserved, " <= quota ", spec_.quota_bytes, " does not hold");
  for (const auto& [step, holders] : groups_.slots().steps()) {
    expect(holders.size() <= groups_.slots().limit(), "slots: ", holders.size(), " of ",
           groups_.slots().limit(), " used in step ", step);
    for (uint64_t ordinal : holders) {
      const Group* const group = groups_.FindOrdinal(ordinal);
      expect(group != nullptr && group->slot == step, "slots: step ", step,
             " is held by a group that is gone");
    }
  }
  std::string hash = batches_.durable_hash();
  for (const auto& [k, batch] : batches_.batches()) {
    batch_leases += batch.lease.has_value();
    expect(batch.applied == (k < batches_.version()), "batch ", k, " is ",
           batch.applied ? "" : "not ", "applied at K = ", batches_.version());
    expect(batch.closed == (k < batches_.next_cut()), "batch ", k, " is ",
           batch.closed ? "" : "not ", "closed");
    for (const FrozenGroup& frozen : batch.groups) {
      const Group* group = groups_.Find(frozen.id);
      expect(group != nullptr && group->batch == k, "batch ", k, " lists ", frozen.id.hex(),
             ", which is not in it");
      if (group == nullptr || spec_.rows_only) continue;
      expect(frozen.members.size() == group->standing(), "batch ", k, " lists ",
             frozen.members.size(), " members of ", frozen.id.hex());
      for (const FrozenMember& member : frozen.members) {
        expect(group->members[member.member].log.crc32c() == member.crc32c, "batch ", k,
               ": a member's bytes changed after the cut");
        expect(batch.applied || OverAge(group->members[member.member], member.masked, k, spec_,
                                        engines_.branch()) == 0,
               "batch ", k, " holds tokens beyond max_staleness");
      }
    }
    if (!batch.closed) continue;
    hash = NextHash(hash, k, CanonicalBytes(batch.groups));
    expect(hash == batch.hash, "batch ", k, ": its hash is not H(", k + 1, ")");
  }
  expect(trajectories + tasks + batch_leases == leases_.size(), "leases: ", leases_.size(),
         " live, ", trajectories, " of trajectories, ", tasks, " of tasks, ", batch_leases,
         " of batches");
  return broken;
}

}  // namespace sluice::queue
