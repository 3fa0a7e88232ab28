#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/queue/core/event.h"
#include "services/queue/core/group.h"
#include "services/queue/core/group_table.h"
#include "services/queue/core/leases.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// The reward tasks of a job: which are ready, who works on them, which ran out of tries. It alone
// changes the progress of a task (TaskProgress), so the tasks in state ready are exactly those that
// it lists.
//
// A task belongs to a member or to a whole group. A group's task is ready once all members that are
// not dropped are sealed and have the fields that it needs.
//
// The generation of a reward worker is a hash of all that determines its scores. Only workers of
// one generation score a group: that of the worker that leases its first task.
//
// `index` is a member or kWholeGroup, `t` an index into Spec::tasks.
class TaskQueue {
 public:
  struct Key {  // Ready tasks are served oldest group first.
    uint64_t group = 0;
    uint32_t member = 0, task = 0;
    auto operator<=>(const Key&) const = default;
  };
  // An answer, or a whole group, that got no score.
  struct DeadLetter {
    enum class Why {
      kOutOfTries,  // No try of its task gave a result.
      kUnscorable,  // The reward says that it cannot be scored (reward_status).
    };
    enum class State {
      kOpen,
      kReadmitted,  // Retask has let its prompt be drawn again.
      kScored,      // A group of its prompt was scored nevertheless.
    };
    TrajectoryRef ref;
    RowRef row;
    std::string task, worker, cause;
    Instant at;
    Why why = Why::kOutOfTries;
    std::optional<uint32_t> generation;
    State state = State::kOpen;
  };
  // Fields with their owners: a member, or kWholeGroup.
  using StagedFields = std::vector<std::pair<uint32_t, Field>>;

  // All three outlive the queue.
  TaskQueue(const Spec& spec, GroupTable* groups, LeaseTable* leases)
      : spec_(spec), groups_(groups), leases_(leases) {}

  static const TaskProgress& Find(const Group& group, uint32_t index, uint32_t t);
  // The name of a field that some task needs, that the member lacks and that no task writes. Empty:
  // there is none.
  std::string FindMissingField(const GroupMember& member) const;
  // By task: whether it has this name, or needs what such a task writes, directly or not. An empty
  // name means all tasks.
  std::vector<bool> FindDependents(const std::string& name) const;

  // States. --------------------------------------------------------------------------------------

  // Makes the tasks of a new group, if there are tasks of groups.
  void StartGroupTasks(const Group& group, Instant now);
  // Makes the tasks of a member that was sealed. Those that need nothing more are ready.
  void StartMemberTasks(const Group& group, uint32_t member, Instant now);
  // Makes those tasks ready whose fields are there now.
  void QueueReadyOfMember(const Group& group, uint32_t member, Instant now);
  void QueueReadyOfGroup(const Group& group, Instant now);
  // Ends all tasks of one owner, with their leases. Tasks that are done stay done.
  void EndTasks(const Group& group, uint32_t index);
  // Ends the group's own tasks and begins them again, in the same round.
  void RestartGroupTasks(const Group& group, Instant now);
  // Begins the task again, as one more round of scoring. Nothing happens if the task is one of
  // members and `index` is kWholeGroup, or the other way round.
  void StartNextRound(const Group& group, uint32_t index, uint32_t t, Instant now);

  // Leasing. -------------------------------------------------------------------------------------

  // Removes the ready task that comes next for a worker from the queue. A group that is not pinned
  // yet is pinned to `generation` then; of `earlier` generations the worker gets tasks only of
  // groups that are pinned to them. GrantLease has to follow. None: nothing is ready.
  std::optional<Key> TakeNext(const std::string& pool, uint32_t generation,
                              const std::vector<uint32_t>& earlier = {});
  Lease GrantLease(const Key& key, const Caller& caller, Instant now);
  // The worker wrote these fields so far. They are visible once the task is finished.
  void StageFields(const Group& group, uint32_t index, uint32_t t, StagedFields staged);
  // The task's result says that it cannot score this member, or (kWholeGroup) the group.
  void NoteUnscorable(const Group& group, uint32_t index, uint32_t t, uint32_t whose,
                      const std::string& cause, Instant now);
  // The worker's result is complete. Returns the fields it staged.
  StagedFields FinishTask(const Group& group, uint32_t index, uint32_t t, Instant now);
  // The try gave no result, and its lease has ended. `use_try`: it counts as a try. True: the task
  // is ready again after the time `not_before`. False: it has no tries left, and is the last of
  // dead_letters().
  bool Retry(const Group& group, uint32_t index, uint32_t t, bool use_try,
             absl::Duration not_before, const std::string& cause, Instant now);
  // All tasks of the group are for workers of this generation from now on. None: they are for
  // workers of any generation, until the first of them is leased.
  void PinGeneration(const Group& group, std::optional<uint32_t> generation);

  // Time. ----------------------------------------------------------------------------------------

  // Delayed tasks whose time has come may be leased now.
  void WakeDelayed(Instant now);
  // When the next delayed task may be leased, and which it is. None: no task is delayed.
  std::optional<std::pair<Instant, Key>> NextDelayed() const;
  // When there is something to do: a delayed task, or a generation that may be abandoned.
  Instant NextWake(Instant now) const;

  // Generations. ---------------------------------------------------------------------------------

  // The worker asks for tasks as one of this generation, and of earlier ones.
  void SetGenerations(const std::string& worker, uint32_t generation,
                      const std::vector<uint32_t>& earlier, Instant now);
  // The worker is gone.
  void ForgetWorker(const std::string& worker) { generations_.erase(worker); }
  // The same for all that are not in `listed`.
  void ForgetUnlisted(const std::map<std::string, Worker>& listed);
  // The worker renewed its leases.
  void NoteWorkerCall(const std::string& worker, Instant now);
  // A worker of this generation has called, or its call is parked now.
  void NoteGenerationCall(uint32_t generation, Instant now) { generation_seen_[generation] = now; }
  // A worker of each generation counts as having called now.
  void NoteCallOfEachGeneration(Instant now);
  // Ordinals of the groups with ready tasks for a generation none of whose workers calls any more,
  // while workers of another one do.
  std::set<uint64_t> FindAbandoned(Instant now) const;

  // Workers that last asked as ones of this generation; with `earlier`, of it as an earlier one.
  std::vector<std::string> FindWorkers(uint32_t generation, bool earlier) const;

  // Dead letters. --------------------------------------------------------------------------------

  const std::deque<DeadLetter>& dead_letters() const { return dead_letters_; }
  void MarkReadmitted(size_t letter) {
    dead_letters_[letter].state = DeadLetter::State::kReadmitted;
  }
  // A group of this row was scored.
  void MarkScored(const RowRef& row);

 private:
  friend struct Access;                                              // dump.cc
  using ReadyKey = std::pair<std::string, std::optional<uint32_t>>;  // Pool, generation.

  // The task, or all tasks of one owner, to be changed.
  TaskProgress& GetMutable(const Group& group, uint32_t index, uint32_t t) {
    return GetMutableTasks(group, index)[t];
  }
  std::vector<TaskProgress>& GetMutableTasks(const Group& group, uint32_t index) {
    Group& mine = groups_->GetMutable(group);
    return index == kWholeGroup ? mine.tasks : mine.members[index].tasks;
  }
  void ResetTask(uint32_t t, Granularity granularity, TaskProgress& task, Instant now);
  void QueueTask(const Group& group, uint32_t index, uint32_t t, absl::Duration not_before,
                 Instant now);
  void EndTask(const Group& group, uint32_t index, uint32_t t);
  ReadyKey ReadyKeyOf(const Key& key) const;
  void InsertReady(const Key& key);
  // Removes it from ready_. False: it was not there.
  bool EraseReady(const Key& key);
  void EraseQueued(const Key& key, const TaskProgress& task);
  Instant AbandonedAt(uint32_t generation, Instant now) const;
  // A dead letter of this member or group; the caller fills in the rest.
  DeadLetter& AddDeadLetter(const Group& group, uint32_t index, uint32_t t, uint32_t whose,
                            const std::string& cause, Instant now);

  const Spec& spec_;
  GroupTable* const groups_;
  LeaseTable* const leases_;

  // Each task in state ready is in one of these two. ready_: those that may be leased now, by pool
  // and by the generation their group is pinned to, without empty sets. delayed_: those whose
  // TaskProgress::not_before is still to come, by that time.
  std::map<ReadyKey, std::set<Key>> ready_;
  std::set<std::pair<Instant, Key>> delayed_;
  std::deque<DeadLetter> dead_letters_;  // The last 1000.
  // Of each reward worker: the one that it scores by, and then earlier ones.
  std::map<std::string, std::vector<uint32_t>> generations_;
  std::map<uint32_t, Instant> generation_seen_;  // When a worker of it called last.
};

}  // namespace sluice::queue
