#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
constexpr uint64_t kInlineBytes = 64;
constexpr size_t kDeadLettersKept = 1000;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsColumn(const std::string& name) { return name == "tokens" || name == "logprobs"; }

const Field* Named(const std::vector<Field>& fields, absl::string_view name) {
  for (const Field& field : fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}
}  // namespace

// Leasing. ------------------------------------------------------------------------------------------------------------

void Job::OnLeaseTasks(const Event& event, const LeaseTasks& input) {
  const Caller& caller = event.caller;
  if (absl::Status fenced = Fence(caller, WorkerRole::kReward); !fenced.ok()) return Answer(event.call, fenced);
  if (const Reply* kept = Kept(caller, input.request)) {
    ++counters_.repeats["LeaseTasks"];
    LeaseTasksAnswer again = std::get<LeaseTasksAnswer>(*kept);
    again.repeat = true;
    return Answer(event.call, std::move(again));
  }
  if (absl::Status listed = Listed(caller, WorkerRole::kReward); !listed.ok()) return Answer(event.call, listed);
  if (std::none_of(input.rooms.begin(), input.rooms.end(), [](const Room& room) { return room.count > 0; })) {
    return Answer(event.call, Error(absl::StatusCode::kInvalidArgument, "BAD_ROOM", "no pool has room for a task"));
  }
  if (!reward_generation_) reward_generation_ = input.generation;
  if (*reward_generation_ != input.generation) {
    return Answer(event.call, ErrorWith(absl::StatusCode::kFailedPrecondition,
                                        {.reason = "OTHER_GENERATION", .hint = "score a job with one build and one reward configuration"},
                                        absl::StrCat("reward generation ", input.generation, "; the job's rewards are of generation ", *reward_generation_)));
  }
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryLeaseTasks(const Caller& caller, const LeaseTasks& input) {
  if (phase_ >= Phase::kClosed) return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  LeaseTasksAnswer answer;
  for (const Room& room : input.rooms) {
    const auto pool = ready_.find(room.pool);
    if (pool == ready_.end()) continue;
    for (uint32_t n = 0; n < room.count && !pool->second.empty(); ++n) {
      const TaskKey key = *pool->second.begin();
      pool->second.erase(pool->second.begin());
      answer.tasks.push_back(GrantTask(caller, key));
    }
  }
  if (answer.tasks.empty()) return std::nullopt;
  Keep(caller, input.request, answer);
  return answer;
}

TaskGrant Job::GrantTask(const Caller& caller, const TaskKey& key) {
  const Group& group = *groups_.at(key.group);
  GroupMember& member = groups_.at(key.group)->members[key.member];
  MemberTask& task = member.tasks[key.task];
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
                  .owner = {group.id, key.member, member.attempt},
                  .row = prompts_.Read(group.row),
                  .lease = lease,
                  .finish = member.finish,
                  .round = 1,
                  .tries = task.tries,
                  .deadline = spec.deadline};
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

// States. -------------------------------------------------------------------------------------------------------------

std::string Job::MissingField(const GroupMember& member) const {
  for (const TaskSpec& task : spec_.tasks) {
    for (const std::string& name : task.needs) {
      const bool produced = std::any_of(spec_.tasks.begin(), spec_.tasks.end(), [&](const TaskSpec& other) { return Contains(other.produces, name); });
      if (!IsColumn(name) && !produced && !member.fields.contains(name)) return name;
    }
  }
  return "";
}

void Job::StartTasks(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  member.tasks.resize(spec_.tasks.size());
  for (size_t t = 0; t < member.tasks.size(); ++t) {
    member.tasks[t].id = leases_.NewId();
    member.tasks[t].tries = spec_.tasks[t].tries;
    member.tasks[t].since = now_;
  }
  ReadyTasks(group, index);
}

void Job::ReadyTasks(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  for (uint32_t t = 0; t < member.tasks.size(); ++t) {
    if (member.tasks[t].state != TaskState::kWaiting) continue;
    const auto& needs = spec_.tasks[t].needs;
    const bool there = std::all_of(needs.begin(), needs.end(), [&](const std::string& name) { return IsColumn(name) || member.fields.contains(name); });
    if (there) QueueTask(group, index, t, absl::ZeroDuration());
  }
}

void Job::QueueTask(Group& group, uint32_t index, uint32_t t, absl::Duration not_before) {
  MemberTask& task = group.members[index].tasks[t];
  task.state = TaskState::kReady;
  task.since = now_;
  task.not_before = now_ + std::max(not_before, absl::ZeroDuration());
  const TaskKey key{group.id.ordinal, index, t};
  if (task.not_before > now_) {
    delayed_.insert({task.not_before, key});
  } else {
    ready_[spec_.tasks[t].pool].insert(key);
  }
}

void Job::EndTasks(Group& group, uint32_t index) {
  GroupMember& member = group.members[index];
  for (uint32_t t = 0; t < member.tasks.size(); ++t) {
    MemberTask& task = member.tasks[t];
    if (task.lease) leases_.End(*task.lease, LeaseEnd::kDropped);
    if (task.state == TaskState::kReady) {
      const TaskKey key{group.id.ordinal, index, t};
      delayed_.erase({task.not_before, key});
      ready_[spec_.tasks[t].pool].erase(key);
    }
    task.lease.reset();
    task.staged.clear();
    if (task.state != TaskState::kDone) task.state = TaskState::kDead;
  }
}

// Results. ------------------------------------------------------------------------------------------------------------

absl::Status Job::PutTask(const Caller& caller, const Record& record, Group& group, bool* repeat) {
  const auto lost = [&] { return Error(absl::StatusCode::kAborted, "LEASE_LOST", absl::StrCat(record.owner.str(), ": the task is another's, or done")); };
  const std::optional<LeaseEnd> ended = leases_.Ended(record.lease);
  if (ended == LeaseEnd::kDone && record.owner.member) {
    const GroupMember& member = group.members[*record.owner.member];
    *repeat = true;  // What was taken stands; a dropped member's fields are no longer there to compare.
    if (member.state == MemberState::kDropped) return absl::OkStatus();
    for (const Field& field : record.fields) {
      const auto it = member.fields.find(field.name);
      if (it == member.fields.end() || !(it->second.bytes == field.bytes)) return Conflict(record.owner, "field " + field.name);
    }
    return absl::OkStatus();
  }
  const LeaseEntry* entry = leases_.Find(record.lease);
  if (entry == nullptr || entry->kind != LeaseKind::kTask || entry->group != group.id.ordinal || record.owner.member != entry->member ||
      entry->worker != caller.worker || entry->incarnation != caller.incarnation) {
    return lost();
  }
  const uint32_t index = entry->member, t = entry->task;
  GroupMember& member = group.members[index];
  MemberTask& task = member.tasks[t];
  if (task.id != *record.task) return lost();
  SLUICE_RETURN_IF_ERROR(Listed(caller, WorkerRole::kReward));
  const TaskSpec& spec = spec_.tasks[t];
  uint64_t bytes = 0;
  for (const Field& field : record.fields) {
    if (!Contains(spec.produces, field.name)) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_FIELD", absl::StrCat("task ", spec.name, " does not produce field ", field.name));
    }
    SLUICE_RETURN_IF_ERROR(CheckFinite(field));
    bytes += field.bytes.size;
  }
  for (const Field& field : task.staged) bytes += field.bytes.size;
  if (group.prompt.bytes() + member.stored() + bytes > spec_.member_bytes()) {
    return Error(absl::StatusCode::kResourceExhausted, "OVER_RESERVATION",
                 absl::StrCat(record.owner.str(), ": results of ", bytes, " B exceed what the member reserved; shorten reward_info"));
  }
  std::vector<Field> staged = task.staged;
  for (const Field& field : record.fields) {
    const Field* before = Named(staged, field.name);
    if (before != nullptr && !(before->bytes == field.bytes)) return Conflict(record.owner, "field " + field.name);
    if (before == nullptr) staged.push_back(field);
  }
  if (record.last) {
    const Field* status = Named(staged, "reward_status");
    const Field* reward = Named(staged, "task_reward");
    const bool scored = status == nullptr || status->bytes.view() == "ok";
    if (scored && Contains(spec.produces, "task_reward") &&
        (reward == nullptr || reward->dtype != static_cast<int>(Dtype::kF64) || reward->bytes.size != sizeof(double))) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_FIELD", absl::StrCat("task ", spec.name, " ended without task_reward, one F64"));
    }
  }
  task.staged = std::move(staged);
  if (record.last) FinishTask(group, index, t);
  return absl::OkStatus();
}

void Job::FinishTask(Group& group, uint32_t index, uint32_t t) {
  GroupMember& member = group.members[index];
  MemberTask& task = member.tasks[t];
  leases_.End(*task.lease, LeaseEnd::kDone);
  task.lease.reset();
  task.state = TaskState::kDone;
  task.since = now_;
  const std::vector<Field> fields = std::move(task.staged);
  task.staged.clear();
  const Field* status = Named(fields, "reward_status");
  if (status != nullptr && status->bytes.view() != "ok") {
    task.cause = std::string(status->bytes.view());
    return DropMember(group, index, "unscorable");
  }
  if (const Field* reward = Named(fields, "task_reward")) {
    double value;
    std::memcpy(&value, reward->bytes.data.get(), sizeof(value));
    member.task_reward = value;
  }
  for (const Field& field : fields) {
    Field written = field;
    written.round = 1;
    if (!member.fields.emplace(field.name, std::move(written)).second) continue;
    member.field_bytes += field.bytes.size;
    stored_bytes_ += field.bytes.size;
  }
  ReadyTasks(group, index);
  Settle(group, "");
}

void Job::FailTask(Group& group, uint32_t index, uint32_t t, bool use_try, absl::Duration not_before, const std::string& cause) {
  MemberTask& task = group.members[index].tasks[t];
  task.lease.reset();
  task.staged.clear();
  task.cause = cause;
  if (use_try) --task.tries;
  if (task.tries > 0) return QueueTask(group, index, t, not_before);
  task.state = TaskState::kDead;
  dead_letters_.push_back({.ref = {group.id, index, group.members[index].attempt},
                           .row = group.row,
                           .task = spec_.tasks[t].name,
                           .worker = task.worker,
                           .cause = cause,
                           .at = now_});
  if (dead_letters_.size() > kDeadLettersKept) dead_letters_.pop_front();
  effects_->alarms.push_back({"dead_letter", absl::StrCat("task ", spec_.tasks[t].name, " of ", dead_letters_.back().ref.str(), " is out of tries: ", cause)});
  DropMember(group, index, "unscorable");
}

}  // namespace sluice::queue
