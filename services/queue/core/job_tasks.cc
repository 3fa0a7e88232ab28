#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Tasks: which are ready, who works on them. A task belongs to a member, or to the whole group and
// is ready when all its standing members are. A group is scored by one reward generation: that of
// the worker that leases its first task.
namespace sluice::queue {
namespace {
constexpr size_t kDeadLettersKept = 1000;

bool IsColumn(const std::string& name) { return name == "tokens" || name == "logprobs"; }
}  // namespace

// Leasing. ----------------------------------------------------------------------------------------

void Job::OnLeaseTasks(const Event& event, const LeaseTasks& input) {
  const Caller& caller = event.caller;
  if (absl::Status fenced = Fence(caller, WorkerRole::kReward); !fenced.ok())
    return Answer(event.call, fenced);
  if (const Reply* kept = Kept(caller, input.request)) {
    ++counters_.repeats["LeaseTasks"];
    LeaseTasksAnswer again = std::get<LeaseTasksAnswer>(*kept);
    again.repeat = true;
    return Answer(event.call, std::move(again));
  }
  if (absl::Status listed = Listed(caller, WorkerRole::kReward); !listed.ok())
    return Answer(event.call, listed);
  if (std::none_of(input.rooms.begin(), input.rooms.end(),
                   [](const Room& room) { return room.count > 0; })) {
    return Answer(event.call, Error(absl::StatusCode::kInvalidArgument, "BAD_ROOM",
                                    "no pool has room for a task"));
  }
  generations_[caller.worker] = input.generation;
  generation_seen_[input.generation] = now_;
  LookAtGenerations();
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryLeaseTasks(const Caller& caller, const LeaseTasks& input) {
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  LeaseTasksAnswer answer;
  for (const Room& room : input.rooms) {
    for (uint32_t n = 0; n < room.count; ++n) {
      // Of the tasks that are nobody's yet and those of the caller's generation the oldest group's.
      const auto fresh = ready_.find({room.pool, std::nullopt}),
                 pinned = ready_.find({room.pool, input.generation});
      if (fresh == ready_.end() && pinned == ready_.end()) break;
      const bool take_fresh =
          pinned == ready_.end() ||
          (fresh != ready_.end() && *fresh->second.begin() < *pinned->second.begin());
      const TaskKey key = *(take_fresh ? fresh : pinned)->second.begin();
      Group& group = *groups_.at(key.group);
      EraseReady(key, TaskOf(group, key.member, key.task));
      if (!group.generation) Pin(group, input.generation);
      answer.tasks.push_back(GrantTask(caller, key));
    }
  }
  if (answer.tasks.empty()) return std::nullopt;
  Keep(caller, input.request, answer);
  return answer;
}

TaskGrant Job::GrantTask(const Caller& caller, const TaskKey& key) {
  Group& group = *groups_.at(key.group);
  TaskProgress& task = TaskOf(group, key.member, key.task);
  const TaskSpec& spec = spec_.tasks[key.task];
  const Lease lease = leases_.Grant({.kind = LeaseKind::kTask,
                                     .group = key.group,
                                     .member = key.member,
                                     .task = key.task,
                                     .worker = caller.worker,
                                     .incarnation = caller.incarnation,
                                     .limit = now_ + spec.deadline + leases_.ttl()},
                                    now_);
  task.state = TaskState::kLeased;
  task.lease = lease.id;
  task.worker = caller.worker;
  task.since = now_;
  TaskGrant grant{.id = task.id,
                  .name = spec.name,
                  .owner = {.group = group.id},
                  .row = RowOf(group),
                  .lease = lease,
                  .round = task.round,
                  .tries = task.tries,
                  .deadline = spec.deadline};
  if (key.member == kWholeGroup) {
    for (uint32_t m = 0; m < group.members.size(); ++m) {
      if (group.members[m].state == MemberState::kSealed)
        grant.members.push_back({group.id, m, group.members[m].attempt});
    }
    grant.wants = spec.needs;
    return grant;
  }
  const GroupMember& member = group.members[key.member];
  grant.owner = {group.id, key.member, member.attempt};
  grant.finish = member.finish;
  for (const std::string& name : spec.needs) {
    const auto field = member.fields.find(name);
    if (field != member.fields.end() && field->second.bytes.size <= kInlineBytes) {
      grant.fields.push_back(field->second);
    } else {
      grant.wants.push_back(name);
    }
  }
  return grant;
}

// States. -----------------------------------------------------------------------------------------

TaskProgress& Job::TaskOf(Group& group, uint32_t member, uint32_t task) {
  return member == kWholeGroup ? group.tasks[task] : group.members[member].tasks[task];
}

std::string Job::MissingField(const GroupMember& member) const {
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

// As before its first try. Tasks of the other granularity are done: there is nothing to do for this
// owner.
void Job::ResetTask(uint32_t t, Granularity granularity, TaskProgress& task) {
  task.id = leases_.NewId();
  task.tries = spec_.tasks[t].tries;
  task.since = now_;
  task.state = spec_.tasks[t].granularity == granularity ? TaskState::kWaiting : TaskState::kDone;
}

void Job::StartTasks(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  member.tasks.resize(spec_.tasks.size());
  for (uint32_t t = 0; t < member.tasks.size(); ++t)
    ResetTask(t, Granularity::kTrajectory, member.tasks[t]);
  ReadyTasks(group, index);
}

void Job::ReadyTasks(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  for (uint32_t t = 0; t < member.tasks.size(); ++t) {
    if (member.tasks[t].state != TaskState::kWaiting) continue;
    const auto& needs = spec_.tasks[t].needs;
    const bool there = std::all_of(needs.begin(), needs.end(), [&](const std::string& name) {
      return IsColumn(name) || member.fields.contains(name);
    });
    if (there) QueueTask(group, index, t, absl::ZeroDuration());
  }
}

void Job::ReadyGroupTasks(Group& group) {
  const auto there = [&](const std::string& name) {
    return IsColumn(name) || group.fields.contains(name) ||
           std::all_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
             return member.state == MemberState::kDropped || member.fields.contains(name);
           });
  };
  const bool sealed =
      std::all_of(group.members.begin(), group.members.end(), [](const GroupMember& member) {
        return member.state == MemberState::kDropped || member.state == MemberState::kSealed;
      });
  for (uint32_t t = 0; sealed && t < group.tasks.size(); ++t) {
    const auto& needs = spec_.tasks[t].needs;
    if (group.tasks[t].state == TaskState::kWaiting &&
        std::all_of(needs.begin(), needs.end(), there))
      QueueTask(group, kWholeGroup, t, absl::ZeroDuration());
  }
}

void Job::QueueTask(Group& group, uint32_t index, uint32_t t, absl::Duration not_before) {
  TaskProgress& task = TaskOf(group, index, t);
  task.state = TaskState::kReady;
  task.since = now_;
  task.not_before = now_ + std::max(not_before, absl::ZeroDuration());
  const TaskKey key{group.id.ordinal, index, t};
  if (task.not_before > now_) {
    delayed_.insert({task.not_before, key});
  } else {
    InsertReady(key);
  }
}

Job::ReadyKey Job::ReadyKeyOf(const TaskKey& key) const {
  return {spec_.tasks[key.task].pool, groups_.at(key.group)->generation};
}

void Job::InsertReady(const TaskKey& key) { ready_[ReadyKeyOf(key)].insert(key); }

void Job::EraseReady(const TaskKey& key, const TaskProgress& task) {
  if (task.state != TaskState::kReady || delayed_.erase({task.not_before, key}) > 0) return;
  const auto pool = ready_.find(ReadyKeyOf(key));
  pool->second.erase(key);
  if (pool->second.empty()) ready_.erase(pool);
}

// All tasks of the group, those ready too, are from now on for workers of this generation; none:
// for the first that comes.
void Job::Pin(Group& group, std::optional<uint32_t> generation) {
  std::vector<TaskKey> keys;
  const auto move = [&](uint32_t index, std::vector<TaskProgress>& tasks) {
    for (uint32_t t = 0; t < tasks.size(); ++t) {
      const TaskKey key{group.id.ordinal, index, t};
      const auto pool = ready_.find(ReadyKeyOf(key));
      if (tasks[t].state != TaskState::kReady || pool == ready_.end() ||
          pool->second.erase(key) == 0)
        continue;
      if (pool->second.empty()) ready_.erase(pool);
      keys.push_back(key);
    }
  };
  for (uint32_t m = 0; m < group.members.size(); ++m) move(m, group.members[m].tasks);
  move(kWholeGroup, group.tasks);
  group.generation = generation;
  for (const TaskKey& key : keys) InsertReady(key);
}

void Job::EndTask(Group& group, uint32_t index, uint32_t t) {
  TaskProgress& task = TaskOf(group, index, t);
  if (task.lease) leases_.End(*task.lease, LeaseEnd::kDropped);
  EraseReady({group.id.ordinal, index, t}, task);
  task.lease.reset();
  task.staged.clear();
  if (task.state != TaskState::kDone) task.state = TaskState::kDead;
}

void Job::EndTasks(Group& group, uint32_t index) {
  for (uint32_t t = 0; t < group.members[index].tasks.size(); ++t) EndTask(group, index, t);
}

void Job::FailTask(Group& group, uint32_t index, uint32_t t, bool use_try,
                   absl::Duration not_before, const std::string& cause) {
  TaskProgress& task = TaskOf(group, index, t);
  task.lease.reset();
  task.staged.clear();
  task.cause = cause;
  if (use_try) --task.tries;
  if (task.tries > 0) return QueueTask(group, index, t, not_before);
  task.state = TaskState::kDead;
  TrajectoryRef ref{.group = group.id};
  if (index != kWholeGroup) ref = {group.id, index, group.members[index].attempt};
  dead_letters_.push_back({.ref = ref,
                           .row = group.row,
                           .task = spec_.tasks[t].name,
                           .worker = task.worker,
                           .cause = cause,
                           .at = now_});
  if (dead_letters_.size() > kDeadLettersKept) dead_letters_.pop_front();
  RaiseAlarm("dead_letter", absl::StrCat("task ", spec_.tasks[t].name, " of ", ref.str(),
                                         " is out of tries: ", cause));
  if (index == kWholeGroup) {
    DropGroup(group, "unscorable");
  } else {
    DropMember(group, index, "unscorable");
  }
}

// Generations. ------------------------------------------------------------------------------------

// When the groups of this generation are given to another: once no worker of it has called for the
// straggler time, if workers of another do. With nobody else there, they wait for their own to come
// back.
Instant Job::AbandonedAt(uint32_t generation) const {
  const bool another =
      std::any_of(generation_seen_.begin(), generation_seen_.end(), [&](const auto& seen) {
        return seen.first != generation && seen.second + spec_.wait > now_;
      });
  return another ? generation_seen_.at(generation) + spec_.wait : absl::InfiniteDuration();
}

// Groups of an abandoned generation are scored again, whole, by whoever comes.
void Job::LookAtGenerations() {
  for (const Parked& parked : parked_) {
    if (const auto* tasks = std::get_if<LeaseTasks>(&parked.input))
      generation_seen_[tasks->generation] = now_;
  }
  std::set<uint64_t> unserved;
  for (const auto& [key, tasks] : ready_) {
    if (!key.second || AbandonedAt(*key.second) > now_) continue;
    for (const TaskKey& task : tasks) unserved.insert(task.group);
  }
  for (uint64_t ordinal : unserved) Rescore(*groups_.at(ordinal), Affected(""));
}

Instant Job::NextGenerationCheck() const {
  Instant next = absl::InfiniteDuration();
  for (const auto& [key, tasks] : ready_) {
    if (key.second) next = std::min(next, AbandonedAt(*key.second));
  }
  return next;
}

}  // namespace sluice::queue
