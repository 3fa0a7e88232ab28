#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/job.h"

// FindViolations: checks the ledger and the indexes against numbers computed anew from the groups,
// batches and leases.
namespace sluice::queue {
namespace {
// Collects broken rules.
class Audit {
 public:
  // `what` describes the broken rule.
  template <typename... T>
  void Expect(bool holds, T&&... what) {
    if (!holds) broken_.push_back(absl::StrCat(std::forward<T>(what)...));
  }
  std::vector<std::string> Finish() && { return std::move(broken_); }

 private:
  std::vector<std::string> broken_;
};

// What the groups add up to.
struct GroupSums {
  int64_t live = 0, applied = 0;  // Members, as in the ledger.
  uint64_t stored = 0, reserved = 0;
  size_t open = 0, accepted = 0, unheld = 0;  // Groups, as in the indexes.
  size_t member_leases = 0, task_leases = 0;
};

size_t CountLeases(const std::vector<TaskProgress>& tasks) {
  return std::count_if(tasks.begin(), tasks.end(),
                       [](const TaskProgress& task) { return task.lease.has_value(); });
}

void CheckMember(const Group& group, uint32_t m, const Spec& spec, const LeaseTable& leases,
                 Audit& audit) {
  const GroupMember& member = group.members[m];
  const std::string name = absl::StrCat(group.id.hex(), "/", m);
  const LeaseEntry* const lease = member.lease ? leases.Find(*member.lease) : nullptr;
  audit.Expect(!member.lease || (lease != nullptr && lease->member == m), name,
               " holds a lease that is not there");
  audit.Expect(!member.lease || member.state == MemberState::kReserved ||
                   member.state == MemberState::kRunning,
               name, " holds a lease but does not run");
  audit.Expect(group.state == GroupState::kOpen || member.state == MemberState::kSealed ||
                   member.state == MemberState::kDropped,
               name, " runs in a group that is complete");
  const uint64_t held = group.prompt.bytes() + member.stored();
  audit.Expect(spec.rows_only || held <= spec.member_bytes(), name, " stores ", held, " B of ",
               spec.member_bytes(), " reserved");
}

// `batch`: the group's, null if there is none.
void CheckGroup(const Group& group, const Batch* batch, const Spec& spec, const GroupTable& table,
                Audit& audit) {
  const uint64_t ordinal = group.id.ordinal;
  const std::string name = group.id.hex();
  const bool in_batch = group.state == GroupState::kInBatch;
  audit.Expect(in_batch == (group.batch >= 0) && (!in_batch || batch != nullptr), name,
               " is in batch ", group.batch, ", which is not there");
  audit.Expect(group.slot < 0 || table.slots().holders(group.slot).contains(ordinal), name,
               " says it holds a slot of step ", group.slot);
  audit.Expect(group.slot >= 0 || in_batch, name, " has no slot and is in no batch");

  const bool open = group.state == GroupState::kOpen;
  audit.Expect(open || group.complete(), name, " is ", Name(group.state), " but not complete");
  audit.Expect(group.undrawn == 0 || (open && group.members.size() == spec.first_wave &&
                                      group.members.size() + group.undrawn == spec.group_size),
               name, " is ", Name(group.state), " with ", group.members.size(), " members and ",
               group.undrawn, " that are not drawn");
  audit.Expect(group.undrawn == 0 || !group.complete(), name, " waits for no score of its first ",
               "wave, but its second one is not decided");
  const uint32_t least = spec.rows_only ? 1 : spec.group_min;
  audit.Expect(open || group.standing() >= least, name, " has ", group.standing(),
               " members left, wanted at least ", least);
  audit.Expect(!open || table.open().contains({group.slot, ordinal}), name,
               " is open but not indexed");
  audit.Expect(
      group.state != GroupState::kAccepted || table.accepted().contains({group.cut_key, ordinal}),
      name, " is accepted but not indexed");
}

void AddToSums(const Group& group, bool applied, const Spec& spec, GroupSums& sums) {
  for (const GroupMember& member : group.members) {
    const bool counts = member.granted && member.state != MemberState::kDropped;
    (applied ? sums.applied : sums.live) += counts;
    sums.member_leases += member.lease.has_value();
    sums.task_leases += CountLeases(member.tasks);
  }
  sums.task_leases += CountLeases(group.tasks);
  sums.open += group.state == GroupState::kOpen;
  sums.accepted += group.state == GroupState::kAccepted;
  sums.unheld += group.state == GroupState::kOpen && group.has_unheld();
  sums.stored += group.stored();
  sums.reserved += spec.rows_only ? 0 : spec.group_bytes();
}

void CheckSums(const GroupSums& sums, const GroupTable& table, const Spec& spec, Audit& audit) {
  audit.Expect(sums.open == table.open().size() && sums.accepted == table.accepted().size() &&
                   sums.unheld == table.unheld().size(),
               "an index holds groups that are gone");
  audit.Expect(sums.stored == table.stored_bytes() && sums.reserved == table.reserved_bytes(),
               "bytes: stored ", table.stored_bytes(), " (counted ", sums.stored, "), reserved ",
               table.reserved_bytes(), " (counted ", sums.reserved, ")");
  audit.Expect(
      spec.rows_only || (sums.stored <= sums.reserved && sums.reserved <= spec.quota_bytes),
      "bytes: stored ", sums.stored, " <= reserved ", sums.reserved, " <= quota ", spec.quota_bytes,
      " does not hold");
}

void CheckLedger(const GroupSums& sums, const Ledger& ledger, const BatchLine& batches,
                 Audit& audit) {
  audit.Expect(sums.live == ledger.live, "ledger: live ", ledger.live, ", counted ", sums.live);
  audit.Expect(sums.applied == ledger.applied, "ledger: applied ", ledger.applied, ", counted ",
               sums.applied);
  audit.Expect(ledger.gap() == 0,
               "ledger: accepted - durable - applied - live - dropped = ", ledger.gap());
  audit.Expect(ledger.hash == batches.HashAt(batches.version()), "ledger: hash is not H(K)");
}

void CheckSlots(const GroupTable& table, Audit& audit) {
  const SlotTable& slots = table.slots();
  for (const auto& [step, holders] : slots.steps()) {
    audit.Expect(holders.size() <= slots.limit(), "slots: ", holders.size(), " of ", slots.limit(),
                 " used in step ", step);
    for (uint64_t ordinal : holders) {
      const Group* const group = table.FindOrdinal(ordinal);
      audit.Expect(group != nullptr && group->slot == step, "slots: step ", step,
                   " is held by a group that is gone");
    }
  }
}

void CheckFrozen(const Batch& batch, const FrozenGroup& frozen, const Group& group,
                 const Spec& spec, const Branch& branch, Audit& audit) {
  audit.Expect(frozen.members.size() == group.standing(), "batch ", batch.k, " lists ",
               frozen.members.size(), " members of ", frozen.id.hex());
  for (const FrozenMember& member : frozen.members) {
    const GroupMember& stored = group.members[member.member];
    audit.Expect(stored.log.crc32c() == member.crc32c, "batch ", batch.k,
                 ": a member's bytes changed after the cut");
    audit.Expect(
        batch.applied || CountOutOfBounds(stored, member.masked, batch.k, spec, branch) == 0,
        "batch ", batch.k, " holds tokens beyond max_staleness");
  }
}

void CheckBatches(const BatchLine& batches, const GroupTable& table, const Spec& spec,
                  const Branch& branch, Audit& audit) {
  std::string hash = batches.durable_hash();
  for (const auto& [k, batch] : batches.batches()) {
    audit.Expect(batch.applied == (k < batches.version()), "batch ", k, " is ",
                 batch.applied ? "" : "not ", "applied at K = ", batches.version());
    audit.Expect(batch.closed == (k < batches.next_cut()), "batch ", k, " is ",
                 batch.closed ? "" : "not ", "closed");
    for (const FrozenGroup& frozen : batch.groups) {
      const Group* const group = table.Find(frozen.id);
      audit.Expect(group != nullptr && group->batch == k, "batch ", k, " lists ", frozen.id.hex(),
                   ", which is not in it");
      if (group != nullptr && !spec.rows_only)
        CheckFrozen(batch, frozen, *group, spec, branch, audit);
    }
    if (!batch.closed) continue;
    hash = NextHash(hash, k, CanonicalBytes(batch.groups));
    audit.Expect(hash == batch.hash, "batch ", k, ": its hash is not H(", k + 1, ")");
  }
}
}  // namespace

std::vector<std::string> Job::FindViolations() const {
  Audit audit;
  GroupSums sums;
  for (const Group* const group : groups_.OldestFirst()) {
    const Batch* const batch = batches_.Find(group->batch);
    const bool applied = group->state == GroupState::kInBatch && batch != nullptr && batch->applied;
    CheckGroup(*group, batch, spec_, groups_, audit);
    for (uint32_t m = 0; m < group->members.size(); ++m)
      CheckMember(*group, m, spec_, leases_, audit);
    AddToSums(*group, applied, spec_, sums);
  }
  CheckSums(sums, groups_, spec_, audit);
  CheckLedger(sums, ledger_, batches_, audit);
  CheckSlots(groups_, audit);
  CheckBatches(batches_, groups_, spec_, engines_.branch(), audit);

  // Each lease is held by a member, a task or a batch.
  const auto& batches = batches_.batches();
  const size_t batch_leases = std::count_if(batches.begin(), batches.end(), [](const auto& entry) {
    return entry.second.lease.has_value();
  });
  audit.Expect(sums.member_leases + sums.task_leases + batch_leases == leases_.size(),
               "leases: ", leases_.size(), " live, ", sums.member_leases, " of trajectories, ",
               sums.task_leases, " of tasks, ", batch_leases, " of batches");
  return std::move(audit).Finish();
}

}  // namespace sluice::queue
