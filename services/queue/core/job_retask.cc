#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Retask: the controller has groups scored again, or prompts drawn again that were given up.
namespace sluice::queue {

absl::StatusOr<RetaskAnswer> Job::OnRetask(const Caller& caller, const Retask& input) {
  // The controller alone calls with incarnation 0 (JobRef in common.proto).
  if (caller.incarnation != 0)
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
                 "only the controller may Retask");
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (input.mode == RetaskMode::kReadmit) return RetaskAnswer{ReadmitPrompts(input.groups)};
  if (input.mode != RetaskMode::kRescore)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_MODE", "mode is unset");
  const std::vector<bool> tasks = tasks_.FindDependents(input.task);
  if (!absl::c_linear_search(tasks, true)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_TASK",
                 absl::StrCat("the job has no task \"", input.task, "\""));
  }

  // A group in a batch is frozen with its scores.
  RetaskAnswer answer;
  for (const Group* group : groups_.OldestFirst()) {
    const bool named = input.groups.empty() || absl::c_linear_search(input.groups, group->id);
    const bool scored = input.generation == 0 || group->generation == input.generation;
    if (named && scored && group->state != GroupState::kInBatch)
      answer.count += RescoreGroup(*group, tasks);
  }
  return answer;
}

// Begins the group's next round. False: none of these tasks was begun in this round.
bool Job::RescoreGroup(const Group& group, const std::vector<bool>& tasks) {
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

  if (group.state == GroupState::kAccepted) groups_.Reopen(group, now_);
  groups_.RestartStragglerTime(group, now_);
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    if (!tasks[t]) continue;
    if (!group.tasks.empty()) RescoreTask(group, kWholeGroup, t);
    for (uint32_t m = 0; m < group.members.size(); ++m) {
      if (group.members[m].state == MemberState::kSealed) RescoreTask(group, m, t);
    }
  }

  // Workers of any generation may score it now.
  tasks_.PinGeneration(group, std::nullopt);
  ++counters_.rescored;
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    if (group.members[m].state == MemberState::kSealed) tasks_.QueueReadyOfMember(group, m, now_);
  }
  tasks_.QueueReadyOfGroup(group, now_);
  return true;
}

// Begins the task's next round; what it wrote for this owner belongs to an earlier round now.
void Job::RescoreTask(const Group& group, uint32_t index, uint32_t t) {
  tasks_.StartNextRound(group, index, t, now_);
  for (const std::string& name : spec_.tasks[t].produces) groups_.RetireField(group, index, name);
}

uint32_t Job::ReadmitPrompts(const std::vector<GroupId>& groups) {
  std::set<std::pair<uint32_t, uint64_t>> named;
  uint32_t count = 0;
  for (size_t i = 0; i < tasks_.dead_letters().size(); ++i) {
    const TaskQueue::DeadLetter& letter = tasks_.dead_letters()[i];
    const bool meant = groups.empty() || absl::c_linear_search(groups, letter.ref.group);
    if (meant) named.insert({letter.row.source, letter.row.index});
    const bool open = letter.state == TaskQueue::DeadLetter::State::kOpen;
    if (!meant || !open || letter.row.source == RowRef::kOutside) continue;
    tasks_.MarkReadmitted(i);

    // There is nothing to do for a prompt that waits to be drawn or has a group already. A prompt
    // that is quarantined is readmitted below.
    const auto same = [&](const RowRef& row) {
      return row.source == letter.row.source && row.index == letter.row.index;
    };
    const Prompts::Progress& progress = prompts_.progress();
    const bool drawn_again = absl::c_any_of(progress.again, same) ||
                             absl::c_any_of(progress.quarantined, same) ||
                             !groups_.OrdinalsOfRow(letter.row).empty();
    if (drawn_again) continue;
    prompts_.Return(letter.row);
    ++count;
  }
  return count + prompts_.Readmit([&](const RowRef& row) {
    return groups.empty() || named.contains({row.source, row.index});
  });
}

}  // namespace sluice::queue
