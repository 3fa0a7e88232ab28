#pragma once

#include <map>
#include <string>
#include <vector>

#include "services/controller/core/types.h"

namespace sluice::controller {

// What Assign() knows of a daemon.
struct DaemonView {
  std::string id;
  Role role = Role::kRollout;
  bool present = false;  // It is not lost, so it keeps the work that it has.
  bool usable = false;   // It sends heartbeats and does not drain, so it may get work.
  bool drained = false;  // It gives back the work that it has, but a queue keeps its jobs.
};

// What Assign() knows of a job.
struct JobView {
  std::string id;
  int64_t order = 0;  // Position of its Submit among all jobs.
  Needs needs;
  // A started job keeps what it has and takes what it can get. A waiting job gets its whole minimum
  // or nothing.
  bool started = false;
  bool ending = false;  // It keeps what it has and gets nothing more.
  // Empty if it has none yet. A job never changes its queue, also while it is paused.
  std::string queue;
  std::vector<std::string> held;  // Daemons that work for the job now, without the queue.
  // Daemons that are leaving the job. They are not its any more, and not free yet.
  std::vector<std::string> leaving = {};
};

// The daemons that work for a job; each list is sorted by id.
struct JobStaff {
  std::string queue;
  std::vector<std::string> trainers, rollouts, rewards;
  std::string lacks;  // What is missing from the minimum, for people; empty if nothing is.

  std::vector<std::string>& of(Role role);
  const std::vector<std::string>& of(Role role) const;
};

// Gives daemons to jobs. A pure function: the order of the views does not matter, and applying the
// answer and calling it again changes nothing more.
//
// Jobs first keep the present daemons that they hold, except those that are drained. The order from
// there on is: started jobs before waiting ones, then by priority, then by Submit. In this order
// each job gets its minimum: a queue, all trainer ranks, `min` rollouts and `min` rewards; a
// waiting job gets all of it or nothing. In the same order the remaining daemons are given as
// surplus, up to `max`.
//
// A rollout or trainer serves one job at a time. A queue or reward serves any number; the least
// loaded is chosen first.
std::map<std::string, JobStaff> Assign(std::vector<JobView> jobs,
                                       const std::vector<DaemonView>& daemons);

}  // namespace sluice::controller
