#include <algorithm>

#include "common/base/status.h"
#include "services/queue/core/job.h"

// LeaseTasks: a reward worker asks for tasks.
namespace sluice::queue {

void Job::OnLeaseTasks(const Event& event, const LeaseTasks& input) {
  const Caller& caller = event.caller;
  const absl::Status fenced = callers_.CheckNotFenced(caller, WorkerRole::kReward);
  if (!fenced.ok()) return Answer(event.call, fenced);
  if (const Reply* kept = callers_.FindKeptAnswer(caller, input.request)) {
    ++counters_.repeats["LeaseTasks"];
    LeaseTasksAnswer again = std::get<LeaseTasksAnswer>(*kept);
    again.repeat = true;
    return Answer(event.call, std::move(again));
  }

  const absl::Status listed = callers_.CheckListed(caller, WorkerRole::kReward);
  if (!listed.ok()) return Answer(event.call, listed);
  const bool has_room = std::any_of(input.rooms.begin(), input.rooms.end(),
                                    [](const Room& room) { return room.count > 0; });
  if (!has_room) {
    return Answer(event.call, Error(absl::StatusCode::kInvalidArgument, "BAD_ROOM",
                                    "no pool has room for a task"));
  }

  tasks_.SetGenerations(caller.worker, input.generation, input.earlier, now_);
  lineage_.NoteRewards(input.generation, input.rewards);
  RescoreAbandoned();
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryLeaseTasks(const Caller& caller, const LeaseTasks& input) {
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");

  LeaseTasksAnswer answer;
  for (const Room& room : input.rooms) {
    for (uint32_t n = 0; n < room.count; ++n) {
      const std::optional<TaskQueue::Key> key =
          tasks_.TakeNext(room.pool, input.generation, input.earlier);
      if (!key) break;
      answer.tasks.push_back(GrantTask(caller, *key));
    }
  }
  answer.unused = FindUnused(input.earlier);
  // A worker that waits for tasks of earlier generations alone is told at once that none will come.
  if (answer.tasks.empty() && answer.unused.empty()) return std::nullopt;
  callers_.KeepAnswer(caller, input.request, answer);
  return answer;
}

// Those to which no open group is pinned. Groups that are complete have their scores.
std::vector<uint32_t> Job::FindUnused(const std::vector<uint32_t>& earlier) const {
  std::vector<uint32_t> unused = earlier;
  for (const auto& [slot, ordinal] : groups_.open()) {
    if (unused.empty()) break;
    const Group& group = groups_.at(ordinal);
    if (group.generation) std::erase(unused, *group.generation);
  }
  return unused;
}

TaskGrant Job::GrantTask(const Caller& caller, const TaskQueue::Key& key) {
  const Lease lease = tasks_.GrantLease(key, caller, now_);
  const Group& group = groups_.at(key.group);
  const TaskProgress& task = TaskQueue::Find(group, key.member, key.task);
  const TaskSpec& spec = spec_.tasks[key.task];
  TaskGrant grant{.id = task.id,
                  .name = spec.name,
                  .owner = {.group = group.id},
                  .row = ReadRow(group),
                  .lease = lease,
                  .round = task.round,
                  .tries = task.tries,
                  .deadline = spec.deadline,
                  .generation = group.generation.value_or(0)};

  // A group's task reads all that it needs of each sealed member.
  if (key.member == kWholeGroup) {
    for (uint32_t m = 0; m < group.members.size(); ++m) {
      const GroupMember& member = group.members[m];
      if (member.state != MemberState::kSealed) continue;
      grant.members.push_back({group.id, m, member.attempt});
      grant.finishes.push_back(member.finish);
    }
    grant.wants = spec.needs;
    return grant;
  }

  // A member's small fields are sent with the grant, so that most tasks need no Get.
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

// All members of a group that is pinned to an abandoned generation (see TaskQueue::FindAbandoned)
// are scored again, by workers of any generation. Workers whose call is parked count as calling
// now.
void Job::RescoreAbandoned() {
  for (const ParkedCalls::Call& call : parked_.calls()) {
    const auto* const input = std::get_if<LeaseTasks>(&call.input);
    if (input == nullptr) continue;
    tasks_.NoteGenerationCall(input->generation, now_);
    for (const uint32_t other : input->earlier) tasks_.NoteGenerationCall(other, now_);
  }
  const std::vector<bool> all(spec_.tasks.size(), true);
  for (uint64_t ordinal : tasks_.FindAbandoned(now_)) {
    // Without a task that was begun there is no round to repeat; it only has to be let go.
    const Group& group = groups_.at(ordinal);
    if (!RescoreGroup(group, all)) tasks_.PinGeneration(group, std::nullopt);
  }
}

}  // namespace sluice::queue
