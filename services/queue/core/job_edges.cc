#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/job.h"

// What a parked call waits on, in words: the edge that it ends with.
namespace sluice::queue {

WaitEdge Job::AdmitEdge(const Caller& caller, Instant since) const {
  WaitEdge edge{.waiter = {NodeKind::kCall, "Admit", caller.worker}, .since = now_ - since};
  if (!failure_.ok()) {
    edge.on = {NodeKind::kJob, options_.id, ""};
    edge.cause = std::string(failure_.message());
    return edge;
  }
  if (phase_ == Phase::kHold) {
    edge.on = {NodeKind::kJob, options_.id, ""};
    edge.cause = "the job is on hold";
    edge.hint = "resume the job";
    return edge;
  }
  if (restored_ < 0) {
    edge.on = {NodeKind::kDaemon, "trainer", "trainer"};
    edge.cause = "the trainer has not called Restore";
    edge.next = "the trainer starts";
    return edge;
  }
  if (space_ != Space::kOk) {
    edge.on = {NodeKind::kStore, "disk", ""};
    edge.cause = absl::StrCat("the disk of the queue's log is ",
                              space_ == Space::kFull ? "full" : "nearly full");
    edge.next = "there is room again";
    edge.hint = "make room on the disk of the queue's --data-dir";
    return edge;
  }
  if (Serving(caller) == nullptr) {
    const auto it = engines_.find(caller.worker);
    edge.on = {NodeKind::kVersion, published_ ? published_->str() : "none",
               published_ ? caller.worker : "trainer"};
    edge.cause = it == engines_.end()
                     ? "the engine has not told its version"
                     : absl::StrCat("the engine holds ", it->second.loaded.version.str(),
                                    it->second.loaded.verified ? "" : " unverified",
                                    ", which is off the branch, too far behind, or not renewed");
    edge.next = "the engine loads the published version";
    return edge;
  }
  const std::optional<int64_t> last = WindowEnd();
  if (spec_.max_steps > 0 && next_cut_ >= spec_.max_steps) {
    edge.on = {NodeKind::kStep, absl::StrCat(spec_.max_steps), ""};
    edge.cause = absl::StrCat("the job ends with step ", spec_.max_steps - 1);
  } else if (!FreeStep()) {
    const auto lags = std::find_if(engines_.begin(), engines_.end(), [&](const auto& entry) {
      return CountsForL(entry.second) && entry.second.loaded.version.number == *Lowest() &&
             published_ && *Lowest() < published_->number;
    });
    edge.on = lags == engines_.end()
                  ? Node{NodeKind::kSlot, absl::StrCat(next_cut_, "..", *last), "trainer"}
                  : Node{NodeKind::kVersion, published_->str(), lags->first};
    edge.cause =
        absl::StrCat("each of the ", slots_.limit(), " slots of steps ", next_cut_, " to ", *last,
                     " is taken; K is ", version_, ", ",
                     lags == engines_.end() ? "the engines hold" : lags->first + " still holds",
                     " version ", *Lowest());
    edge.next = "a group ends, or all engines load a newer version";
  } else if (reserved_bytes_ + spec_.group_bytes() > allowed_bytes() &&
             share_bytes_ < spec_.quota_bytes) {
    edge.on = {NodeKind::kBytes, absl::StrCat(reserved_bytes_, "/", share_bytes_), ""};
    edge.cause = absl::StrCat(
        "the job's share of the queue's memory is reserved: ", reserved_bytes_, " of ",
        share_bytes_, " B; its quota is ", spec_.quota_bytes, " B, other jobs need the rest");
    edge.next = "the next checkpoint, or another job's end";
    edge.hint = "start sluice-queue with a higher --memory, or run fewer jobs beside this one";
  } else if (reserved_bytes_ + spec_.group_bytes() > spec_.quota_bytes) {
    edge.on = {NodeKind::kBytes, absl::StrCat(reserved_bytes_, "/", spec_.quota_bytes), "trainer"};
    edge.cause = absl::StrCat("the quota is reserved: ", reserved_bytes_, " of ", spec_.quota_bytes,
                              " B; trained batches stay until a checkpoint is durable");
    edge.next = "the next checkpoint";
    edge.hint = "raise queue.keep.quota or write checkpoints more often";
  } else {
    edge.on = {NodeKind::kJob, options_.id, ""};
    edge.cause = absl::StrCat("all ", spec_.epochs, " epochs are drawn");
  }
  return edge;
}

WaitEdge Job::TaskEdge(const Caller& caller, Instant since) const {
  WaitEdge edge{.waiter = {NodeKind::kCall, "LeaseTasks", caller.worker},
                .on = {NodeKind::kJob, options_.id, ""},
                .since = now_ - since};
  if (!delayed_.empty()) {
    const TaskKey& key = delayed_.begin()->second;
    const Group& group = *groups_.at(key.group);
    const bool whole = key.member == kWholeGroup;
    edge.on = {NodeKind::kTask,
               absl::StrCat(group.id.hex(), "/", whole ? "" : absl::StrCat(key.member, "/"),
                            spec_.tasks[key.task].name),
               ""};
    edge.cause =
        absl::StrCat("the task is tried again later: ",
                     (whole ? group.tasks : group.members[key.member].tasks)[key.task].cause);
    edge.next = "it is ready";
    edge.next_in = delayed_.begin()->first - now_;
  } else if (open_.empty()) {
    edge.cause = "no group is open";
    edge.next = "a rollout is admitted";
  } else {
    const Group& group = *groups_.at(open_.begin()->second);
    edge = GroupEdge(edge.waiter, group, since);
  }
  return edge;
}

// The first of an owner's tasks that is not done. False: all are.
bool Job::TaskEdge(const std::string& owner, const std::vector<TaskProgress>& tasks,
                   const Group& group, WaitEdge& edge) const {
  for (size_t t = 0; t < tasks.size(); ++t) {
    const TaskProgress& task = tasks[t];
    if (task.state == TaskState::kDone) continue;
    const std::string age =
        absl::FormatDuration(absl::Trunc(now_ - task.since, absl::Milliseconds(100)));
    edge.on = {NodeKind::kTask, absl::StrCat(owner, "/", spec_.tasks[t].name),
               task.lease ? task.worker : ""};
    if (task.lease) {
      edge.cause = absl::StrCat(task.worker, " works on it for ", age);
    } else if (task.state == TaskState::kWaiting) {
      edge.cause = "it waits for fields that other tasks write";
    } else {
      edge.cause =
          absl::StrCat("no reward worker",
                       group.generation ? absl::StrCat(" of generation ", *group.generation) : "",
                       " took it from pool ", spec_.tasks[t].pool, " for ", age);
    }
    if (!task.cause.empty()) absl::StrAppend(&edge.cause, "; before: ", task.cause);
    edge.next = task.lease ? "its result, or its lease ends" : "a reward worker asks for work";
    return true;
  }
  return false;
}

WaitEdge Job::GroupEdge(const Node& waiter, const Group& group, Instant since) const {
  WaitEdge edge{.waiter = waiter, .since = now_ - since};
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped || member.scored()) continue;
    const std::string ref = TrajectoryRef{group.id, m, member.attempt}.str();
    const std::string age =
        absl::FormatDuration(absl::Trunc(now_ - member.since, absl::Milliseconds(100)));
    if (member.state != MemberState::kSealed) {
      edge.on = {NodeKind::kTrajectory, ref, member.lease ? member.worker : ""};
      edge.cause = member.lease ? absl::StrCat(member.worker, " samples it for ", age, ", ",
                                               member.log.tokens(), " tokens stored, attempt ",
                                               member.attempt)
                                : "nobody holds it";
      edge.next = member.lease ? "it is sealed, or its lease ends" : "a rollout asks for work";
      return edge;
    }
    if (TaskEdge(ref, member.tasks, group, edge)) return edge;
  }
  if (TaskEdge(group.id.hex(), group.tasks, group, edge)) return edge;
  edge.on = {NodeKind::kGroup, group.id.hex(), ""};
  edge.cause = "the group is complete";
  return edge;
}

WaitEdge Job::BatchEdge(const Caller& caller, int64_t k, Instant since) const {
  const Node waiter{NodeKind::kCall, absl::StrCat("AcquireBatch ", k), caller.worker};
  WaitEdge edge{.waiter = waiter, .since = now_ - since};
  if (k > next_cut_) {
    edge.on = {NodeKind::kBatch, absl::StrCat(next_cut_), ""};
    edge.cause = absl::StrCat("batch ", next_cut_, " comes first");
    return edge;
  }
  if (!open_.empty()) {
    edge = GroupEdge(waiter, *groups_.at(open_.begin()->second), since);
  } else if (engines_.empty()) {
    edge.on = {NodeKind::kDaemon, "rollout", "rollout"};
    edge.cause = "no rollout has told the version it holds";
    edge.next = "a rollout renews";
    edge.hint = "see whether rollouts run and load the published version";
  } else if (phase_ == Phase::kHold) {
    edge.on = {NodeKind::kJob, options_.id, ""};
    edge.cause = "the job is on hold and admits nothing";
    edge.hint = "resume the job";
  } else {
    const std::optional<int64_t> lowest = Lowest();
    edge.on = {NodeKind::kSlot, absl::StrCat(k), "rollout"};
    edge.cause = absl::StrCat("no group is open for step ", k, "; the lowest engine holds version ",
                              lowest ? absl::StrCat(*lowest) : "none");
    edge.next = "a rollout asks for work";
  }
  const auto begun = batches_.find(k);
  const size_t taken = begun == batches_.end() ? 0 : begun->second.groups.size();
  absl::StrAppend(&edge.cause, "; ", accepted_.size() + taken, " of ", spec_.groups_per_step,
                  " groups are accepted");
  if (admission_.infeasible() && edge.hint.empty()) edge.hint = admission_.Advice();
  return edge;
}

}  // namespace sluice::queue
