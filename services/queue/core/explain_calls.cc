#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/explain.h"

// What one parked call waits on. If several causes hold at once, the first in the order of the
// checks below is given.
namespace sluice::queue {

WaitEdge Explainer::DescribeAdmit(const Caller& caller, Instant since) const {
  WaitEdge edge{.waiter = {NodeKind::kCall, "Admit", caller.worker},
                .on = {NodeKind::kJob, job_.id(), ""},
                .since = now_ - since};
  if (!job_.failures_.failure().ok()) {
    edge.cause = std::string(job_.failures_.failure().message());
    return edge;
  }
  if (job_.phase_ == Phase::kHold) {
    edge.cause = "the job is on hold";
    edge.hint = "resume the job";
    return edge;
  }
  if (job_.restored_ < 0) {
    edge.on = {NodeKind::kDaemon, "trainer", "trainer"};
    edge.cause = "the trainer has not called Restore";
    edge.next = "the trainer starts";
    return edge;
  }
  if (spec_.rows_only) {
    edge.cause = "the job trains the rows themselves, so there is nothing to sample";
    return edge;
  }
  if (job_.space_ != Space::kOk) {
    edge.on = {NodeKind::kStore, "disk", ""};
    edge.cause = absl::StrCat("the disk of the queue's log is ",
                              job_.space_ == Space::kFull ? "full" : "nearly full");
    edge.next = "there is room again";
    edge.hint = "make room on the disk of the queue's --data-dir";
    return edge;
  }
  if (engines_.FindServing(caller, now_) == nullptr)
    return DescribeLateEngine(std::move(edge), caller.worker);
  if (spec_.max_steps > 0 && batches_.next_cut() >= spec_.max_steps) {
    edge.on = {NodeKind::kStep, absl::StrCat(spec_.max_steps), ""};
    edge.cause = absl::StrCat("the job ends with step ", spec_.max_steps - 1);
    return edge;
  }
  if (!job_.FindFreeStep()) return DescribeFullWindow(std::move(edge));

  const uint64_t reserved = groups_.reserved_bytes();
  if (!job_.HasRoomForGroup() && job_.share_bytes_ < spec_.quota_bytes) {
    edge.on = {NodeKind::kBytes, absl::StrCat(reserved, "/", job_.share_bytes_), ""};
    edge.cause = absl::StrCat("the job's share of the queue's memory is reserved: ", reserved,
                              " of ", job_.share_bytes_, " B; its quota is ", spec_.quota_bytes,
                              " B, other jobs need the rest");
    edge.next = "the next checkpoint, or another job's end";
    edge.hint = "start sluice-queue with a higher --memory, or run fewer jobs beside this one";
  } else if (!job_.HasRoomForGroup()) {
    edge.on = {NodeKind::kBytes, absl::StrCat(reserved, "/", spec_.quota_bytes), "trainer"};
    edge.cause = absl::StrCat("the quota is reserved: ", reserved, " of ", spec_.quota_bytes,
                              " B; trained batches stay until a checkpoint is durable");
    edge.next = "the next checkpoint";
    edge.hint = "raise queue.keep.quota or write checkpoints more often";
  } else if (spec_.epochs == 0) {
    // Without a limit of epochs, nothing else ends the draws.
    edge.cause = "each row of the data is quarantined";
  } else {
    edge.cause = absl::StrCat("all ", spec_.epochs, " epochs are drawn");
  }
  return edge;
}

// The caller gets no work, because its own engine does not count (Engines::FindServing).
WaitEdge Explainer::DescribeLateEngine(WaitEdge edge, const std::string& worker) const {
  const std::optional<PolicyVersion>& published = engines_.published();
  const Engines::Engine* const engine = engines_.Find(worker);
  edge.on = {NodeKind::kVersion, published ? published->str() : "none",
             published ? worker : "trainer"};
  edge.cause = engine == nullptr
                   ? "the engine has not told its version"
                   : absl::StrCat("the engine holds ", engine->loaded.version.str(),
                                  engine->loaded.verified ? "" : " unverified",
                                  ", which is off the branch, too far behind, or not renewed");
  edge.next = "the engine loads the published version";
  return edge;
}

// Says so if fewer groups are admitted because the last steps were too far off-policy.
void Explainer::AppendDrift(WaitEdge& edge) const {
  if (job_.admission_.drifts()) absl::StrAppend(&edge.cause, "; ", job_.admission_.DescribeDrift());
}

// All slots are taken. If the lowest engine has not loaded the published version, that is why.
WaitEdge Explainer::DescribeFullWindow(WaitEdge edge) const {
  const int64_t first = batches_.next_cut(), last = *job_.WindowEnd();
  const int64_t lowest = *engines_.LowestVersion(now_);
  const std::optional<PolicyVersion>& published = engines_.published();
  const auto& engines = engines_.all();
  const auto lags = std::find_if(engines.begin(), engines.end(), [&](const auto& entry) {
    return engines_.Counts(entry.second, now_) && entry.second.loaded.version.number == lowest &&
           published && lowest < published->number;
  });

  const bool one_lags = lags != engines.end();
  edge.on = one_lags ? Node{NodeKind::kVersion, published->str(), lags->first}
                     : Node{NodeKind::kSlot, absl::StrCat(first, "..", last), "trainer"};
  edge.cause = absl::StrCat("each of the ", groups_.slots().limit(), " slots of steps ", first,
                            " to ", last, " is taken; K is ", batches_.version(), ", ",
                            one_lags ? lags->first + " still holds" : "the engines hold",
                            " version ", lowest);
  AppendDrift(edge);
  edge.next = "a group ends, or all engines load a newer version";
  return edge;
}

WaitEdge Explainer::DescribeLeaseTasks(const Caller& caller, Instant since) const {
  WaitEdge edge{.waiter = {NodeKind::kCall, "LeaseTasks", caller.worker},
                .on = {NodeKind::kJob, job_.id(), ""},
                .since = now_ - since};
  if (const auto delayed = job_.tasks_.NextDelayed()) {
    const auto& [ready_at, key] = *delayed;
    const Group& group = groups_.at(key.group);
    const std::string member = key.member == kWholeGroup ? "" : absl::StrCat(key.member, "/");
    edge.on = {NodeKind::kTask,
               absl::StrCat(group.id.hex(), "/", member, spec_.tasks[key.task].name), ""};
    edge.cause = absl::StrCat("the task is tried again later: ",
                              TaskQueue::Find(group, key.member, key.task).cause);
    edge.next = "it is ready";
    edge.next_in = ready_at - now_;
    return edge;
  }
  if (groups_.open().empty()) {
    edge.cause = "no group is open";
    edge.next = "a rollout is admitted";
    return edge;
  }
  return DescribeGroup(edge.waiter, groups_.at(groups_.open().begin()->second), since);
}

bool Explainer::DescribeTasks(const std::string& owner, const std::vector<TaskProgress>& tasks,
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
      edge.cause = absl::StrCat(
          "no reward worker",
          group.generation ? absl::StrCat(" of generation ", GenerationName(*group.generation))
                           : "",
          " took it from pool ", spec_.tasks[t].pool, " for ", age);
    }
    if (!task.cause.empty()) absl::StrAppend(&edge.cause, "; before: ", task.cause);
    edge.next = task.lease ? "its result, or its lease ends" : "a reward worker asks for work";
    return true;
  }
  return false;
}

WaitEdge Explainer::DescribeGroup(const Node& waiter, const Group& group, Instant since) const {
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
    if (DescribeTasks(ref, member.tasks, group, edge)) return edge;
  }
  if (DescribeTasks(group.id.hex(), group.tasks, group, edge)) return edge;
  edge.on = {NodeKind::kGroup, group.id.hex(), ""};
  edge.cause = "the group is complete";
  return edge;
}

WaitEdge Explainer::DescribeAcquireBatch(const Caller& caller, int64_t k, Instant since) const {
  const Node waiter{NodeKind::kCall, absl::StrCat("AcquireBatch ", k), caller.worker};
  WaitEdge edge{.waiter = waiter, .since = now_ - since};
  if (k > batches_.next_cut()) {
    edge.on = {NodeKind::kBatch, absl::StrCat(batches_.next_cut()), ""};
    edge.cause = absl::StrCat("batch ", batches_.next_cut(), " comes first");
    return edge;
  }

  if (!groups_.open().empty()) {
    edge = DescribeGroup(waiter, groups_.at(groups_.open().begin()->second), since);
  } else if (engines_.empty()) {
    edge.on = {NodeKind::kDaemon, "rollout", "rollout"};
    edge.cause = "no rollout has told the version it holds";
    edge.next = "a rollout renews";
    edge.hint = "see whether rollouts run and load the published version";
  } else if (job_.phase_ == Phase::kHold) {
    edge.on = {NodeKind::kJob, job_.id(), ""};
    edge.cause = "the job is on hold and admits nothing";
    edge.hint = "resume the job";
  } else {
    const std::optional<int64_t> lowest = engines_.LowestVersion(now_);
    edge.on = {NodeKind::kSlot, absl::StrCat(k), "rollout"};
    edge.cause = absl::StrCat("no group is open for step ", k, "; the lowest engine holds version ",
                              lowest ? absl::StrCat(*lowest) : "none");
    edge.next = "a rollout asks for work";
  }
  absl::StrAppend(&edge.cause, "; ", groups_.accepted().size() + CountGroupsOf(k), " of ",
                  spec_.groups_per_step, " groups are accepted");
  AppendDrift(edge);
  if (job_.admission_.infeasible() && edge.hint.empty()) edge.hint = job_.admission_.MakeAdvice();
  return edge;
}

// The answer of a parked call whose time is over.
void Job::EndParked(const ParkedCalls::Call& call) {
  const Explainer explainer(*this);
  if (std::holds_alternative<Admit>(call.input)) {
    Answer(call.call,
           AdmitAnswer{.phase = phase_, .edge = explainer.DescribeAdmit(call.caller, call.since)});
  } else if (std::holds_alternative<LeaseTasks>(call.input)) {
    Answer(call.call,
           LeaseTasksAnswer{.edge = explainer.DescribeLeaseTasks(call.caller, call.since)});
  } else {
    const int64_t k = std::get<AcquireBatch>(call.input).k;
    Answer(call.call,
           AcquireBatchAnswer{.edge = explainer.DescribeAcquireBatch(call.caller, k, call.since)});
  }
}

}  // namespace sluice::queue
