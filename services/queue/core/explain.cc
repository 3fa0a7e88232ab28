#include "services/queue/core/explain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::queue {
namespace {
// Unscorable groups in a row from which on they are given as the cause; fewer may be chance.
constexpr uint64_t kUnscorableShown = 4;

std::string FormatAge(absl::Duration age) {
  return absl::FormatDuration(
      absl::Trunc(age, age < absl::Seconds(10) ? absl::Milliseconds(100) : absl::Seconds(1)));
}

const Node kDisk{NodeKind::kStore, "disk", ""};

// Adds edges from the next batch and from the queue to the disk, and one from the disk to itself,
// at which a chain ends. The edges of parked Admits lead to the disk too (DescribeAdmit). These
// edges are needed as well, because a Put that is refused again and again, and an answer that is
// held back until it is durable, have no edge of their own.
void ExplainDisk(Space space, const Node& batch, std::vector<WaitEdge>& edges) {
  const bool full = space == Space::kFull;
  for (const Node& waiter : {batch, Node{NodeKind::kDaemon, "queue", "queue"}}) {
    edges.push_back(
        {.waiter = waiter,
         .on = kDisk,
         .cause = absl::StrCat("the disk of the queue's log is ", full ? "full" : "nearly full")});
  }
  edges.push_back({.waiter = kDisk,
                   .on = kDisk,
                   .cause = full ? "nothing is stored until there is room again"
                                 : "no new work is taken in until there is room again",
                   .next = "as soon as there is room all goes on, nothing accepted is lost",
                   .hint = "make room on the disk of the queue's --data-dir"});
}

Node BatchNode(int64_t k) { return {NodeKind::kBatch, absl::StrCat(k), "queue"}; }
Node GroupNode(const Group& group) { return {NodeKind::kGroup, group.id.hex(), "queue"}; }

}  // namespace

Explainer::Explainer(const Job& job)
    : job_(job),
      spec_(job.spec_),
      engines_(job.engines_),
      groups_(job.groups_),
      batches_(job.batches_),
      leases_(job.leases_),
      now_(job.now_) {}

size_t Explainer::CountGroupsOf(int64_t k) const {
  const Batch* const batch = batches_.Find(k);
  return batch == nullptr ? 0 : batch->groups.size();
}

std::string Explainer::DescribeProgress(int64_t k) const {
  const size_t ready = CountGroupsOf(k) + groups_.accepted().size();
  return absl::StrCat("batch ", k, " has ", std::min<size_t>(ready, spec_.groups_per_step), " of ",
                      spec_.groups_per_step, " groups");
}

WaitEdge Explainer::EdgeOfCall(const ParkedCalls::Call& call) const {
  if (std::holds_alternative<Admit>(call.input)) return DescribeAdmit(call.caller, call.since);
  if (std::holds_alternative<LeaseTasks>(call.input))
    return DescribeLeaseTasks(call.caller, call.since);

  // What the batch itself waits on has edges of its own.
  const int64_t k = std::get<AcquireBatch>(call.input).k;
  WaitEdge edge = DescribeAcquireBatch(call.caller, k, call.since);
  edge.on = BatchNode(std::min(k, batches_.next_cut()));
  edge.cause = absl::StrCat(call.caller.worker, " waits for batch ", k);
  AppendDrift(edge);
  return edge;
}

// Batch k, the next to be cut, waits on each open group. If there is none, it waits on whoever
// could open one.
void Explainer::AddBatch(int64_t k, Instant now, std::vector<WaitEdge>& edges) const {
  // While nothing can be scored, late members are not what holds the batch up: the chain ends here.
  const Failures::UnscorableRun* const unscorable = job_.failures_.FindLongestUnscorable();
  if (unscorable != nullptr && unscorable->groups >= kUnscorableShown &&
      groups_.accepted().empty()) {
    edges.push_back({.waiter = BatchNode(k),
                     .on = BatchNode(k),
                     .cause = unscorable->Describe(),
                     .hint = "check the rewards and the gold answers of that data source"});
  }
  for (const auto& [slot, ordinal] : groups_.open()) {
    if (edges.size() >= Job::kMaxEdges) return;
    const Group& group = groups_.at(ordinal);
    edges.push_back({.waiter = BatchNode(k),
                     .on = GroupNode(group),
                     .since = now - group.opened,
                     .cause = DescribeProgress(k)});
    AddGroup(group, now, edges);
  }
  if (!groups_.open().empty()) return;

  // No group is open: this says why.
  WaitEdge edge = DescribeAcquireBatch({}, k, now_);
  edge.waiter = BatchNode(k);
  edges.push_back(std::move(edge));
}

void Explainer::AddGroup(const Group& group, Instant now, std::vector<WaitEdge>& edges) const {
  const auto lacks = [&](uint32_t m, Node on, absl::Duration since, const char* what) {
    edges.push_back({.waiter = GroupNode(group),
                     .on = std::move(on),
                     .since = since,
                     .cause = absl::StrCat("group ", group.id.brief(), " lacks ", what, "member ",
                                           m, " of ", group.members.size())});
  };
  for (uint32_t m = 0; m < group.members.size(); ++m) {
    const GroupMember& member = group.members[m];
    if (member.state == MemberState::kDropped || member.scored()) continue;
    if (member.state != MemberState::kSealed) {
      WaitEdge edge = EdgeOfMember(group, m, now);
      lacks(m, edge.waiter, edge.since, "");
      edges.push_back(std::move(edge));
      continue;
    }
    for (uint32_t t = 0; t < member.tasks.size(); ++t) {
      const TaskProgress& task = member.tasks[t];
      if (task.state != TaskState::kReady && task.state != TaskState::kLeased) continue;
      WaitEdge edge = EdgeOfTask(group, m, t, now);
      lacks(m, edge.waiter, edge.since, absl::StrCat("the ", spec_.tasks[t].name, " of ").c_str());
      edges.push_back(std::move(edge));
    }
  }
  for (uint32_t t = 0; t < group.tasks.size(); ++t) {
    if (group.tasks[t].state != TaskState::kReady && group.tasks[t].state != TaskState::kLeased)
      continue;
    WaitEdge edge = EdgeOfTask(group, kWholeGroup, t, now);
    edges.push_back(
        {.waiter = GroupNode(group),
         .on = edge.waiter,
         .since = edge.since,
         .cause = absl::StrCat("group ", group.id.brief(), " lacks its ", spec_.tasks[t].name)});
    edges.push_back(std::move(edge));
  }
}

WaitEdge Explainer::EdgeOfMember(const Group& group, uint32_t index, Instant now) const {
  const GroupMember& member = group.members[index];
  const uint64_t tokens = group.prompt.tokens() + member.log.tokens();
  WaitEdge edge{.waiter = {NodeKind::kTrajectory,
                           TrajectoryRef{group.id, index, member.attempt}.str(), "queue"},
                .since = now - member.since};
  const LeaseEntry* lease = member.lease ? leases_.Find(*member.lease) : nullptr;
  if (lease == nullptr) {
    edge.on = {NodeKind::kDaemon, "rollout", "rollout"};
    edge.cause = absl::StrCat("nobody holds member ", index,
                              tokens == 0 ? "" : absl::StrCat(", stored up to token ", tokens));
    edge.next = absl::StrCat("member ", index, " goes to the next rollout that asks for work");
    return edge;
  }

  edge.on = {NodeKind::kDaemon, member.worker, member.worker};
  edge.cause = absl::StrCat(member.worker, " has had member ", index, " for ",
                            FormatAge(edge.since), ", stored up to token ", tokens);
  edge.next = absl::StrCat("without ", member.worker, ", member ", index,
                           " goes on at another rollout from token ", tokens);
  return edge;
}

WaitEdge Explainer::EdgeOfTask(const Group& group, uint32_t index, uint32_t t, Instant now) const {
  const bool whole = index == kWholeGroup;
  const TaskProgress& task = TaskQueue::Find(group, index, t);
  const std::string& name = spec_.tasks[t].name;
  const std::string owner =
      whole ? group.id.hex() : TrajectoryRef{group.id, index, group.members[index].attempt}.str();
  WaitEdge edge{.waiter = {NodeKind::kTask, absl::StrCat(owner, "/", name), "queue"},
                .since = now - task.since};

  const std::string before = task.cause.empty() ? "" : absl::StrCat("; the last try: ", task.cause);
  const LeaseEntry* lease = task.lease ? leases_.Find(*task.lease) : nullptr;
  if (lease != nullptr) {
    edge.on = {NodeKind::kDaemon, task.worker, task.worker};
    edge.cause =
        absl::StrCat(task.worker, " has had task ", name, " for ", FormatAge(edge.since), before);
    const uint32_t left = task.tries - 1;  // task.tries counts the one that runs.
    if (left > 0) {
      edge.next = absl::StrCat("without a result task ", name, " goes to another reward, ", left,
                               left == 1 ? " try left" : " tries left");
    } else {
      edge.next =
          absl::StrCat("without a result ", whole ? "the group" : absl::StrCat("member ", index),
                       " is dropped as unscorable; this is the last try of task ", name);
    }
    edge.next_in = std::max(std::min(lease->expires, lease->limit) - now, absl::ZeroDuration());
    return edge;
  }

  edge.on = {NodeKind::kDaemon, "reward", "reward"};
  const std::string of =
      group.generation ? absl::StrCat(" of generation ", GenerationName(*group.generation)) : "";
  edge.cause = absl::StrCat("no reward", of, " has taken task ", name, " (pool ",
                            spec_.tasks[t].pool, ") for ", FormatAge(edge.since), before);
  edge.next = "the next reward that asks for tasks takes it";
  edge.next_in = std::max(task.not_before - now, absl::ZeroDuration());
  return edge;
}

std::vector<WaitEdge> Explainer::DescribeAll(Instant now) const {
  std::vector<WaitEdge> edges;
  for (const ParkedCalls::Call& call : job_.parked_.calls()) {
    edges.push_back(EdgeOfCall(call));
    edges.back().since = now - call.since;
  }
  AddBatch(batches_.next_cut(), now, edges);
  if (job_.space_ != Space::kOk) ExplainDisk(job_.space_, BatchNode(batches_.next_cut()), edges);

  // Batches that a trainer holds wait for it.
  for (const auto& [k, batch] : batches_.batches()) {
    const LeaseEntry* lease = batch.lease ? leases_.Find(*batch.lease) : nullptr;
    if (lease == nullptr) continue;
    edges.push_back(
        {.waiter = BatchNode(k),
         .on = {NodeKind::kDaemon, lease->worker, lease->worker},
         .since = now - lease->granted,
         .cause = absl::StrCat(lease->worker, " has had batch ", k, " for ",
                               FormatAge(now - lease->granted)),
         .next = absl::StrCat("without a renewal batch ", k, " is offered to the next trainer"),
         .next_in = std::max(lease->expires - now, absl::ZeroDuration())});
  }
  return edges;
}

std::vector<WaitEdge> Job::Explain(Instant now) const { return Explainer(*this).DescribeAll(now); }

}  // namespace sluice::queue
