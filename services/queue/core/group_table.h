#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/queue/core/group.h"
#include "services/queue/core/slots.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The groups of a job that are in memory, with the slots and the bytes they hold and the indexes
// that find them. Others see groups as constant: the table alone changes them, so that indexes and
// sums always agree with what the groups say. TaskQueue changes only the progress of tasks and the
// generation of a group. Job::FindViolations checks the indexes and sums by computing them anew.
//
//   Open --> open -- Accept --> accepted -- PutInBatch --> in batch
//             ^                  |    ^                      |
//             +----- Reopen -----+    +--- TakeFromBatch ----+
//
// A group is erased from any of these states.
class GroupTable {
 public:
  // Slot and ordinal: orders groups by the step they are meant for, older groups first.
  using SlotKey = std::pair<int64_t, uint64_t>;
  // Cut key and ordinal: orders groups by the oldest version of their tokens, older groups first.
  using CutKey = std::pair<int64_t, uint64_t>;
  struct MemberKey {
    const Group* group = nullptr;
    uint32_t member = 0;
  };

  // `spec` outlives the table.
  explicit GroupTable(const Spec& spec) : spec_(spec), slots_(spec.slots_per_step()) {}

  // Looking up. ----------------------------------------------------------------------------------

  size_t size() const { return groups_.size(); }
  // Null: the group is not in memory.
  const Group* Find(const GroupId& id) const;
  const Group* FindOrdinal(uint64_t ordinal) const;
  // The group must be in memory.
  const Group& at(uint64_t ordinal) const { return *groups_.at(ordinal); }
  // All groups, oldest first.
  std::vector<const Group*> OldestFirst() const;

  const std::set<SlotKey>& open() const { return open_; }
  // Open groups with a member that waits for a rollout: nobody holds it, and it is not sealed.
  const std::set<SlotKey>& unheld() const { return unheld_; }
  // Accepted groups, in the order of the cut.
  const std::set<CutKey>& accepted() const { return accepted_; }
  // Ordinals of the groups of this row; the occurrence does not matter.
  const std::set<uint64_t>& OrdinalsOfRow(const RowRef& row) const;

  const SlotTable& slots() const { return slots_; }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t stored_bytes() const { return stored_bytes_; }
  // The ordinal of the next group.
  uint64_t next_ordinal() const { return next_ordinal_; }
  void SetNextOrdinal(uint64_t ordinal) { next_ordinal_ = ordinal; }

  // A group's life. ------------------------------------------------------------------------------

  // Opens a group of spec.group_size members with a slot of `step`, which has a free one. `own`:
  // the prompt, if it comes from outside; its members all come at once, without waves.
  const Group& Open(uint32_t queue_incarnation, const RowRef& row, std::optional<Row> own,
                    int64_t step, Instant now);
  // Opens a group for a supervised row: one member, sealed and in batch k from the start.
  const Group& OpenSupervised(uint32_t queue_incarnation, const RowRef& row, int64_t k,
                              Instant now);
  // The open group gets the members of its second wave, or none of them.
  void AddSecondWave(const Group& group, Instant now);
  void LeaveOutSecondWave(const Group& group) { GetMutable(group).undrawn = 0; }
  // The group is complete, its waves are decided, and it waits for the cut.
  void Accept(const Group& group, Instant now);
  // An accepted group is to be scored again.
  void Reopen(const Group& group, Instant now);
  // The group joins batch k. It is accepted and has a slot of step k.
  void PutInBatch(const Group& group, int64_t k, Instant now);
  // The group's batch is given up. The group is accepted again; if its slot was freed, it gets one
  // of the batch's step or of the first later step that has one.
  void TakeFromBatch(const Group& group, Instant now);
  // All leases and tasks of the group have ended.
  void Erase(const Group& group);

  // Slots. ---------------------------------------------------------------------------------------

  void MoveSlot(const Group& group, int64_t step);
  // Gives an accepted group a slot of step k: a free one, or that of another group which is not in
  // the batch yet and gets its slot in exchange.
  void TakeSlotForCut(const Group& group, int64_t k);
  // The group's batch is closed, so it needs its slot no more.
  void FreeSlot(const Group& group);

  // Members. -------------------------------------------------------------------------------------

  // A rollout holds the member from now on, by this lease. True: it is the member's first holder.
  // `version`: the job's version K.
  bool GrantMember(const Group& group, uint32_t member, const Id16& lease,
                   const std::string& worker, int64_t version, Instant now);
  // The holder's lease has ended. The tokens stay, and the next attempt goes on behind them. Whole
  // fields belong to the attempt that wrote them, so they are removed.
  void ReleaseMember(const Group& group, uint32_t member, Instant now);
  // The holder has sampled the member to its end.
  void SealMember(const Group& group, uint32_t member, Finish finish, int64_t version, Instant now);
  // The member is given up. Its lease and tasks have ended; its bytes are freed.
  void DropMember(const Group& group, uint32_t member, const std::string& reason, Instant now);

  // What is stored. ------------------------------------------------------------------------------

  // `member`: none for the group's prompt.
  void AppendPiece(const Group& group, std::optional<uint32_t> member, StoredPiece piece,
                   Instant now);
  // `whose`: a member, or kWholeGroup. Nothing happens if there is a field of this name.
  void AddField(const Group& group, uint32_t whose, Field field);
  // Adds a field that a task wrote. A member's field task_reward, one F64, also becomes its reward.
  void AddResult(const Group& group, uint32_t whose, Field field);
  // A new round of scoring begins, so the field counts no more. A group's field is removed. A
  // member's field stays stored until its bytes are needed (DropRetiredFields), because a repeated
  // Put of the earlier round is compared with it.
  void RetireField(const Group& group, uint32_t whose, const std::string& name);
  void DropRetiredFields(const Group& group, uint32_t member);
  // The queue restarted without the payload: removes what is stored of the group itself, or of one
  // member.
  void RemoveLostPayload(const Group& group);
  void RemoveLostPayload(const Group& group, uint32_t member, Instant now);
  // Remembers whether the payload of a group in a batch is lost.
  void NotePayloadLost(const Group& group) { GetMutable(group).payload_lost = group.lost(); }

  // Time. ----------------------------------------------------------------------------------------

  // The holder of the member stored something.
  void NoteProgress(const Group& group, uint32_t member, Instant now);
  // All holders count as having stored something now.
  void NoteProgressOfAll(Instant now);
  // If the group is overdue, it is so no more, and its straggler time begins anew.
  void RestartStragglerTime(const Group& group, Instant now);
  // The next open group whose straggler time is over, marked overdue. Null: none is left.
  const Group* NextOverdue(Instant now);
  // The next member that has been held for too long without progress; without group: none is left.
  MemberKey NextStalled(Instant now);
  // One more holder of the member stored nothing for too long. Returns how many did so in a row.
  uint32_t CountStall(const Group& group, uint32_t member) {
    return ++GetMutable(group).members[member].stalls;
  }
  // Before this time NextOverdue and NextStalled have nothing.
  Instant NextWake() const;

 private:
  friend struct Access;    // dump.cc
  friend class TaskQueue;  // It changes the progress of tasks, and the generation of a group.

  // The same group, but not constant.
  Group& GetMutable(const Group& group) { return *groups_.at(group.id.ordinal); }
  Group& Create(uint32_t queue_incarnation, const RowRef& row, uint32_t size, Instant now);
  void AddIndexes(const Group& group);
  void RemoveIndexes(const Group& group);
  // The state of a member changed.
  void UpdateUnheld(const Group& group);

  const Spec& spec_;
  // Groups by ordinal. group.slot >= 0 exactly if slots_ lists the group for that step. Only groups
  // in a batch may have none.
  absl::flat_hash_map<uint64_t, std::unique_ptr<Group>> groups_;
  uint64_t next_ordinal_ = 0;
  SlotTable slots_;

  // Indexes and sums, computed from the groups. What each contains is said at its getter.
  std::set<SlotKey> open_;
  std::set<SlotKey> unheld_;
  std::set<CutKey> accepted_;
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint64_t>> by_row_;  // Source, index.
  uint64_t reserved_bytes_ = 0;  // spec_.group_bytes() for each group that is no supervised row.
  uint64_t stored_bytes_ = 0;    // The sum of Group::stored().

  // When the straggler time of each open group is over, in the order of time, with its ordinal. A
  // group may have left the state open since.
  std::deque<std::pair<Instant, uint64_t>> overdue_;
  // When to check each held member (ordinal, member) for progress: Spec::stalled_after() after its
  // grant, or after the last progress that the last check saw. It may have made progress since.
  std::set<std::pair<Instant, std::pair<uint64_t, uint32_t>>> stalling_;
};

}  // namespace sluice::queue
