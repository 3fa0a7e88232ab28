#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Scoring again, and drawing again what was given up.
namespace sluice::queue {

absl::StatusOr<RetaskAnswer> Job::OnRetask(const Caller& caller, const Retask& input) {
  if (caller.incarnation != 0)
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
                 "only the controller may Retask");
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (input.mode == RetaskMode::kReadmit) return RetaskAnswer{Readmit(input.groups)};
  if (input.mode != RetaskMode::kRescore)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODE", "mode is unset");
  const std::vector<bool> tasks = Affected(input.task);
  if (std::find(tasks.begin(), tasks.end(), true) == tasks.end()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_TASK",
                 absl::StrCat("the job has no task \"", input.task, "\""));
  }
  std::vector<Group*> groups;
  for (const auto& [ordinal, group] : groups_) {
    const bool named = input.groups.empty() || std::find(input.groups.begin(), input.groups.end(),
                                                         group->id) != input.groups.end();
    const bool scored = input.generation == 0 || group->generation == input.generation;
    if (named && scored && group->state != GroupState::kInBatch) groups.push_back(group.get());
  }
  std::sort(groups.begin(), groups.end(),
            [](const Group* a, const Group* b) { return a->id < b->id; });
  RetaskAnswer answer;
  for (Group* group : groups) answer.count += Rescore(*group, tasks);
  return answer;
}

std::vector<bool> Job::Affected(const std::string& task) const {
  std::vector<bool> affected(spec_.tasks.size());
  for (size_t t = 0; t < affected.size(); ++t)
    affected[t] = task.empty() || spec_.tasks[t].name == task;
  const auto rests_on = [&](const TaskSpec& later, const TaskSpec& earlier) {
    return std::any_of(later.needs.begin(), later.needs.end(), [&](const std::string& name) {
      return std::find(earlier.produces.begin(), earlier.produces.end(), name) !=
             earlier.produces.end();
    });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t a = 0; a < affected.size(); ++a) {
      for (size_t b = 0; b < affected.size(); ++b) {
        if (!affected[a] || affected[b] || !rests_on(spec_.tasks[b], spec_.tasks[a])) continue;
        affected[b] = changed = true;
      }
    }
  }
  return affected;
}

// The group's next round. False: nothing of it was begun in this one.
bool Job::Rescore(Group& group, const std::vector<bool>& tasks) {
  const auto begun = [&](const std::vector<TaskProgress>& all, Granularity granularity) {
    for (size_t t = 0; t < all.size(); ++t) {
      const bool mine = tasks[t] && spec_.tasks[t].granularity == granularity;
      if (mine && (all[t].state == TaskState::kDone || all[t].state == TaskState::kLeased))
        return true;
    }
    return false;
  };
  const bool any =
      begun(group.tasks, Granularity::kGroup) ||
      std::any_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
        return member.state == MemberState::kSealed &&
               begun(member.tasks, Granularity::kTrajectory);
      });
  if (!any) return false;
  if (group.state == GroupState::kAccepted) {
    accepted_.erase({group.cut_key, group.id.ordinal});
    group.state = GroupState::kOpen;
    group.since = now_;
    AddIndexes(group);
  }
  if (group.overdue) {  // Its straggler time begins anew.
    group.overdue = false;
    overdue_.push_back({now_ + spec_.wait, group.id.ordinal});
  }
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    if (!tasks[t]) continue;
    if (!group.tasks.empty()) Rescore(group, kWholeGroup, t);
    for (uint32_t m = 0; m < group.members.size(); ++m) {
      if (group.members[m].state == MemberState::kSealed) Rescore(group, m, t);
    }
  }
  Pin(group, std::nullopt);
  ++counters_.rescored;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state == MemberState::kSealed) ReadyTasks(group, m);
  }
  ReadyGroupTasks(group);
  return true;
}

// One task of one owner: what it wrote is of an earlier round now.
void Job::Rescore(Group& group, uint32_t index, uint32_t t) {
  const Granularity granularity =
      index == kWholeGroup ? Granularity::kGroup : Granularity::kTrajectory;
  TaskProgress& task = TaskOf(group, index, t);
  if (spec_.tasks[t].granularity == granularity) {
    EndTask(group, index, t);
    const uint32_t round = task.round + 1;
    task = {.round = round};
    ResetTask(t, granularity, task);
  }
  for (const std::string& name : spec_.tasks[t].produces) {
    if (index == kWholeGroup) {
      const auto it = group.fields.find(name);
      if (it == group.fields.end()) continue;
      group.field_bytes -= it->second.bytes.size;
      stored_bytes_ -= it->second.bytes.size;
      group.fields.erase(it);
      continue;
    }
    GroupMember& member = group.members[index];
    const auto it = member.fields.find(name);
    if (it == member.fields.end()) continue;
    member.past.push_back(std::move(it->second));  // Its bytes stay counted.
    member.fields.erase(it);
    if (name == "task_reward") member.task_reward.reset();
  }
}

uint32_t Job::Readmit(const std::vector<GroupId>& groups) {
  std::set<std::pair<uint32_t, uint64_t>> named;
  uint32_t count = 0;
  for (DeadLetter& letter : dead_letters_) {
    const bool meant =
        groups.empty() || std::find(groups.begin(), groups.end(), letter.ref.group) != groups.end();
    if (meant) named.insert({letter.row.source, letter.row.index});
    if (!meant || letter.readmitted || letter.row.source == RowRef::kOutside) continue;
    letter.readmitted = true;
    const auto& again = prompts_.progress();
    const auto same = [&](const RowRef& row) {
      return row.source == letter.row.source && row.index == letter.row.index;
    };
    // It may be on its way already, or come with the quarantined ones below.
    if (std::any_of(again.again.begin(), again.again.end(), same) ||
        std::any_of(again.quarantined.begin(), again.quarantined.end(), same))
      continue;
    if (by_prompt_.contains({letter.row.source, letter.row.index})) continue;
    prompts_.Return(letter.row);
    ++count;
  }
  return count + prompts_.Readmit([&](const RowRef& row) {
    return groups.empty() || named.contains({row.source, row.index});
  });
}

}  // namespace sluice::queue
