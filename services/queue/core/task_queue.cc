#include "services/queue/core/task_queue.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
constexpr size_t kDeadLettersKept = 1000;

// Columns come with the pieces, so they are there once a member is sealed.
bool IsColumn(const std::string& name) { return name == "tokens" || name == "logprobs"; }
}  // namespace

const TaskProgress& TaskQueue::Find(const Group& group, uint32_t index, uint32_t t) {
  return index == kWholeGroup ? group.tasks[t] : group.members[index].tasks[t];
}

std::string TaskQueue::FindMissingField(const GroupMember& member) const {
  for (const TaskSpec& task : spec_.tasks) {
    for (const std::string& name : task.needs) {
      const bool produced = std::any_of(
          spec_.tasks.begin(), spec_.tasks.end(),
          [&](const TaskSpec& other) { return absl::c_linear_search(other.produces, name); });
      if (!IsColumn(name) && !produced && !member.fields.contains(name)) return name;
    }
  }
  return "";
}

std::vector<bool> TaskQueue::FindDependents(const std::string& name) const {
  std::vector<bool> found(spec_.tasks.size());
  for (size_t t = 0; t < found.size(); ++t) found[t] = name.empty() || spec_.tasks[t].name == name;

  const auto rests_on = [](const TaskSpec& later, const TaskSpec& earlier) {
    return std::any_of(later.needs.begin(), later.needs.end(), [&](const std::string& field) {
      return absl::c_linear_search(earlier.produces, field);
    });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t a = 0; a < found.size(); ++a) {
      for (size_t b = 0; b < found.size(); ++b) {
        if (!found[a] || found[b] || !rests_on(spec_.tasks[b], spec_.tasks[a])) continue;
        found[b] = changed = true;
      }
    }
  }
  return found;
}

// States. -----------------------------------------------------------------------------------------

// Sets the task to its state before the first try. `granularity` is that of the owner; a task of
// the other granularity is done from the start.
void TaskQueue::ResetTask(uint32_t t, Granularity granularity, TaskProgress& task, Instant now) {
  task.id = leases_->NewId();
  task.tries = spec_.tasks[t].tries;
  task.since = now;
  task.state = spec_.tasks[t].granularity == granularity ? TaskState::kWaiting : TaskState::kDone;
}

void TaskQueue::StartGroupTasks(const Group& group, Instant now) {
  if (!spec_.has_task(Granularity::kGroup)) return;
  std::vector<TaskProgress>& tasks = GetMutableTasks(group, kWholeGroup);
  tasks.resize(spec_.tasks.size());
  for (uint32_t t = 0; t < tasks.size(); ++t) ResetTask(t, Granularity::kGroup, tasks[t], now);
}

void TaskQueue::StartMemberTasks(const Group& group, uint32_t index, Instant now) {
  std::vector<TaskProgress>& tasks = GetMutableTasks(group, index);
  tasks.resize(spec_.tasks.size());
  for (uint32_t t = 0; t < tasks.size(); ++t) ResetTask(t, Granularity::kTrajectory, tasks[t], now);
  QueueReadyOfMember(group, index, now);
}

void TaskQueue::QueueReadyOfMember(const Group& group, uint32_t index, Instant now) {
  const GroupMember& member = group.members[index];
  for (uint32_t t = 0; t < member.tasks.size(); ++t) {
    if (member.tasks[t].state != TaskState::kWaiting) continue;
    const auto& needs = spec_.tasks[t].needs;
    const bool there = std::all_of(needs.begin(), needs.end(), [&](const std::string& name) {
      return IsColumn(name) || member.fields.contains(name);
    });
    if (there) QueueTask(group, index, t, absl::ZeroDuration(), now);
  }
}

void TaskQueue::QueueReadyOfGroup(const Group& group, Instant now) {
  const bool sealed =
      std::all_of(group.members.begin(), group.members.end(), [](const GroupMember& member) {
        return member.state == MemberState::kDropped || member.state == MemberState::kSealed;
      });
  if (!sealed) return;

  const auto there = [&](const std::string& name) {
    return IsColumn(name) || group.fields.contains(name) ||
           std::all_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
             return member.state == MemberState::kDropped || member.fields.contains(name);
           });
  };
  for (uint32_t t = 0; t < group.tasks.size(); ++t) {
    const auto& needs = spec_.tasks[t].needs;
    if (group.tasks[t].state == TaskState::kWaiting &&
        std::all_of(needs.begin(), needs.end(), there))
      QueueTask(group, kWholeGroup, t, absl::ZeroDuration(), now);
  }
}

void TaskQueue::QueueTask(const Group& group, uint32_t index, uint32_t t, absl::Duration not_before,
                          Instant now) {
  TaskProgress& task = GetMutable(group, index, t);
  task.state = TaskState::kReady;
  task.since = now;
  task.not_before = now + std::max(not_before, absl::ZeroDuration());

  const Key key{group.id.ordinal, index, t};
  if (task.not_before > now) {
    delayed_.insert({task.not_before, key});
  } else {
    InsertReady(key);
  }
}

TaskQueue::ReadyKey TaskQueue::ReadyKeyOf(const Key& key) const {
  return {spec_.tasks[key.task].pool, groups_->at(key.group).generation};
}

void TaskQueue::InsertReady(const Key& key) {
  SLUICE_CHECK(ready_[ReadyKeyOf(key)].insert(key).second);
}

bool TaskQueue::EraseReady(const Key& key) {
  const auto pool = ready_.find(ReadyKeyOf(key));
  if (pool == ready_.end() || pool->second.erase(key) == 0) return false;
  if (pool->second.empty()) ready_.erase(pool);
  return true;
}

void TaskQueue::EraseQueued(const Key& key, const TaskProgress& task) {
  if (task.state != TaskState::kReady || delayed_.erase({task.not_before, key}) > 0) return;
  SLUICE_CHECK(EraseReady(key));
}

void TaskQueue::EndTask(const Group& group, uint32_t index, uint32_t t) {
  TaskProgress& task = GetMutable(group, index, t);
  if (task.lease) leases_->End(*task.lease, LeaseEnd::kDropped);
  EraseQueued({group.id.ordinal, index, t}, task);
  task.lease.reset();
  task.staged.clear();
  if (task.state != TaskState::kDone) task.state = TaskState::kDead;
}

void TaskQueue::EndTasks(const Group& group, uint32_t index) {
  const size_t tasks =
      index == kWholeGroup ? group.tasks.size() : group.members[index].tasks.size();
  for (uint32_t t = 0; t < tasks; ++t) EndTask(group, index, t);
}

void TaskQueue::RestartGroupTasks(const Group& group, Instant now) {
  for (uint32_t t = 0; t < group.tasks.size(); ++t) {
    EndTask(group, kWholeGroup, t);
    ResetTask(t, Granularity::kGroup, GetMutable(group, kWholeGroup, t), now);
  }
}

void TaskQueue::StartNextRound(const Group& group, uint32_t index, uint32_t t, Instant now) {
  const Granularity granularity =
      index == kWholeGroup ? Granularity::kGroup : Granularity::kTrajectory;
  if (spec_.tasks[t].granularity != granularity) return;
  EndTask(group, index, t);
  TaskProgress& task = GetMutable(group, index, t);
  task = {.round = task.round + 1};
  ResetTask(t, granularity, task, now);
}

// Leasing. ----------------------------------------------------------------------------------------

std::optional<TaskQueue::Key> TaskQueue::TakeNext(const std::string& pool, uint32_t generation,
                                                  const std::vector<uint32_t>& earlier) {
  // The oldest group's task comes next, of those not pinned and those pinned to one of these.
  std::optional<Key> next;
  const auto consider = [&](std::optional<uint32_t> pinned) {
    const auto tasks = ready_.find({pool, pinned});
    if (tasks != ready_.end() && (!next || *tasks->second.begin() < *next))
      next = *tasks->second.begin();
  };
  consider(std::nullopt);
  consider(generation);
  for (const uint32_t other : earlier) consider(other);
  if (!next) return std::nullopt;

  const Key key = *next;
  SLUICE_CHECK(EraseReady(key));
  const Group& group = groups_->at(key.group);
  if (!group.generation) PinGeneration(group, generation);
  return key;
}

Lease TaskQueue::GrantLease(const Key& key, const Caller& caller, Instant now) {
  const Instant limit = now + spec_.tasks[key.task].deadline + leases_->ttl();
  const Lease lease = leases_->Grant({.kind = LeaseKind::kTask,
                                      .group = key.group,
                                      .member = key.member,
                                      .task = key.task,
                                      .worker = caller.worker,
                                      .incarnation = caller.incarnation,
                                      .limit = limit},
                                     now);
  TaskProgress& task = GetMutable(groups_->at(key.group), key.member, key.task);
  task.state = TaskState::kLeased;
  task.lease = lease.id;
  task.worker = caller.worker;
  task.since = now;
  return lease;
}

void TaskQueue::StageFields(const Group& group, uint32_t index, uint32_t t, StagedFields staged) {
  GetMutable(group, index, t).staged = std::move(staged);
}

void TaskQueue::NoteUnscorable(const Group& group, uint32_t index, uint32_t t, uint32_t whose,
                               const std::string& cause, Instant now) {
  GetMutable(group, index, t).cause = cause;
  AddDeadLetter(group, index, t, whose, cause, now).why = DeadLetter::Why::kUnscorable;
}

TaskQueue::StagedFields TaskQueue::FinishTask(const Group& group, uint32_t index, uint32_t t,
                                              Instant now) {
  TaskProgress& task = GetMutable(group, index, t);
  SLUICE_CHECK(task.state == TaskState::kLeased);
  leases_->End(*task.lease, LeaseEnd::kDone);
  task.lease.reset();
  task.state = TaskState::kDone;
  task.since = now;
  StagedFields staged = std::move(task.staged);
  task.staged.clear();
  return staged;
}

bool TaskQueue::Retry(const Group& group, uint32_t index, uint32_t t, bool use_try,
                      absl::Duration not_before, const std::string& cause, Instant now) {
  TaskProgress& task = GetMutable(group, index, t);
  task.lease.reset();
  task.staged.clear();
  task.cause = cause;
  if (use_try) --task.tries;
  if (task.tries > 0) {
    QueueTask(group, index, t, not_before, now);
    return true;
  }

  task.state = TaskState::kDead;
  AddDeadLetter(group, index, t, index, cause, now);
  return false;
}

TaskQueue::DeadLetter& TaskQueue::AddDeadLetter(const Group& group, uint32_t index, uint32_t t,
                                                uint32_t whose, const std::string& cause,
                                                Instant now) {
  TrajectoryRef ref{.group = group.id};
  if (whose != kWholeGroup) ref = {group.id, whose, group.members[whose].attempt};
  if (dead_letters_.size() >= kDeadLettersKept) dead_letters_.pop_front();
  dead_letters_.push_back({.ref = ref,
                           .row = group.row,
                           .task = spec_.tasks[t].name,
                           .worker = Find(group, index, t).worker,
                           .cause = cause,
                           .at = now,
                           .generation = group.generation});
  return dead_letters_.back();
}

void TaskQueue::MarkScored(const RowRef& row) {
  if (row.source == RowRef::kOutside) return;  // These have no place in the data.
  for (DeadLetter& letter : dead_letters_) {
    if (letter.row.source == row.source && letter.row.index == row.index)
      letter.state = DeadLetter::State::kScored;
  }
}

void TaskQueue::PinGeneration(const Group& group, std::optional<uint32_t> generation) {
  std::vector<Key> moved;
  const auto take_out = [&](uint32_t index, const std::vector<TaskProgress>& tasks) {
    for (uint32_t t = 0; t < tasks.size(); ++t) {
      const Key key{group.id.ordinal, index, t};
      if (tasks[t].state == TaskState::kReady && EraseReady(key)) moved.push_back(key);
    }
  };
  for (uint32_t m = 0; m < group.members.size(); ++m) take_out(m, group.members[m].tasks);
  take_out(kWholeGroup, group.tasks);

  // Delayed tasks need no move: they get the generation when they wake.
  groups_->GetMutable(group).generation = generation;
  for (const Key& key : moved) InsertReady(key);
}

// Time. -------------------------------------------------------------------------------------------

void TaskQueue::WakeDelayed(Instant now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    const Key key = delayed_.begin()->second;
    delayed_.erase(delayed_.begin());
    InsertReady(key);
  }
}

std::optional<std::pair<Instant, TaskQueue::Key>> TaskQueue::NextDelayed() const {
  if (delayed_.empty()) return std::nullopt;
  return *delayed_.begin();
}

Instant TaskQueue::NextWake(Instant now) const {
  Instant next = delayed_.empty() ? absl::InfiniteDuration() : delayed_.begin()->first;
  for (const auto& [key, tasks] : ready_) {
    if (key.second) next = std::min(next, AbandonedAt(*key.second, now));
  }
  return next;
}

// Generations. ------------------------------------------------------------------------------------

void TaskQueue::SetGenerations(const std::string& worker, uint32_t generation,
                               const std::vector<uint32_t>& earlier, Instant now) {
  std::vector<uint32_t>& mine = generations_[worker];
  mine = {generation};
  mine.insert(mine.end(), earlier.begin(), earlier.end());
  for (const uint32_t each : mine) NoteGenerationCall(each, now);
}

void TaskQueue::ForgetUnlisted(const std::map<std::string, Worker>& listed) {
  std::erase_if(generations_, [&](const auto& entry) { return !listed.contains(entry.first); });
}

void TaskQueue::NoteWorkerCall(const std::string& worker, Instant now) {
  const auto it = generations_.find(worker);
  if (it == generations_.end()) return;
  for (const uint32_t each : it->second) NoteGenerationCall(each, now);
}

std::vector<std::string> TaskQueue::FindWorkers(uint32_t generation, bool earlier) const {
  std::vector<std::string> workers;
  for (const auto& [worker, theirs] : generations_) {
    const auto it = absl::c_find(theirs, generation);
    if (it != theirs.end() && (it != theirs.begin()) == earlier) workers.push_back(worker);
  }
  return workers;
}

void TaskQueue::NoteCallOfEachGeneration(Instant now) {
  for (auto& [generation, seen] : generation_seen_) seen = now;
}

// A generation is abandoned once no worker of it has called for the straggler time while workers of
// another one do. If nobody else is there, its groups wait for their own workers to come back.
Instant TaskQueue::AbandonedAt(uint32_t generation, Instant now) const {
  const bool another = std::any_of(
      generation_seen_.begin(), generation_seen_.end(),
      [&](const auto& seen) { return seen.first != generation && seen.second + spec_.wait > now; });
  return another ? generation_seen_.at(generation) + spec_.wait : absl::InfiniteDuration();
}

std::set<uint64_t> TaskQueue::FindAbandoned(Instant now) const {
  std::set<uint64_t> groups;
  for (const auto& [key, tasks] : ready_) {
    if (!key.second || AbandonedAt(*key.second, now) > now) continue;
    for (const Key& task : tasks) groups.insert(task.group);
  }
  return groups;
}

}  // namespace sluice::queue
