#pragma once

#include <string>
#include <vector>

#include "services/queue/core/event.h"
#include "services/queue/core/job.h"
#include "services/queue/core/types.h"

namespace sluice::queue {

// Describes what waits on what in a job, as wait-for edges: parked call -> batch -> group -> member
// or task -> who holds it. The controller joins them with those of the daemons. `cause` is a
// sentence about the waiter; `on.daemon` names a daemon, or a role where any will do.
//
// Reads all parts of a job and changes none. The job outlives it.
class Explainer {
 public:
  explicit Explainer(const Job& job);

  // What a parked call waits for, and since when. A call whose time is over is answered with it.
  WaitEdge DescribeAdmit(const Caller& caller, Instant since) const;
  WaitEdge DescribeLeaseTasks(const Caller& caller, Instant since) const;
  WaitEdge DescribeAcquireBatch(const Caller& caller, int64_t k, Instant since) const;
  // All edges of the job: see Job::Explain.
  std::vector<WaitEdge> DescribeAll(Instant now) const;

 private:
  // explain_calls.cc: one edge for one call.
  WaitEdge DescribeFullWindow(WaitEdge edge) const;
  void AppendDrift(WaitEdge& edge) const;
  WaitEdge DescribeLateEngine(WaitEdge edge, const std::string& worker) const;
  WaitEdge DescribeGroup(const Node& waiter, const Group& group, Instant since) const;
  // Makes the edge lead to the first of an owner's tasks that is not done. False: all are done.
  bool DescribeTasks(const std::string& owner, const std::vector<TaskProgress>& tasks,
                     const Group& group, WaitEdge& edge) const;

  // explain.cc: the edges between parked calls, batch, groups, members and tasks.
  WaitEdge EdgeOfCall(const ParkedCalls::Call& call) const;
  void AddBatch(int64_t k, Instant now, std::vector<WaitEdge>& edges) const;
  void AddGroup(const Group& group, Instant now, std::vector<WaitEdge>& edges) const;
  WaitEdge EdgeOfMember(const Group& group, uint32_t member, Instant now) const;
  WaitEdge EdgeOfTask(const Group& group, uint32_t member, uint32_t task, Instant now) const;
  // "batch 75 has 63 of 64 groups"
  std::string DescribeProgress(int64_t k) const;
  size_t CountGroupsOf(int64_t k) const;

  const Job& job_;
  const Spec& spec_;
  const Engines& engines_;
  const GroupTable& groups_;
  const BatchLine& batches_;
  const LeaseTable& leases_;
  const Instant now_;  // Of the job's last event.
};

}  // namespace sluice::queue
