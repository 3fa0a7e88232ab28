#pragma once

#include <map>
#include <string>
#include <vector>

#include "services/controller/core/types.h"

namespace sluice::controller {

// A daemon as the assignment sees it.
struct DaemonView {
  std::string id;
  Role role = Role::kRollout;
  bool present = false;  // Not lost: it keeps the work it has.
  bool usable = false;   // It beats and does not drain: it may get work.
};

// A job as the assignment sees it.
struct JobView {
  std::string id;
  int64_t order = 0;  // Of its Submit.
  Needs needs;
  // Keeps what it has, and takes what it can get. Else all of the minimum or nothing.
  bool started = false;
  bool ending = false;  // Keeps what it has, gets nothing.
  std::string queue;    // Empty: none yet. A job never changes its queue.
  std::vector<std::string> held;
};

// Who works for a job, each list by id.
struct Parts {
  std::string queue;
  std::vector<std::string> trainers, rollouts, rewards;
  std::string lacks;  // What is missing to the minimum, for people; empty: nothing.

  std::vector<std::string>& of(Role role);
};

// Gives daemons to jobs. A pure function: the same views, in whatever order, give the same answer,
// and applying it twice changes nothing more.
//
// Jobs keep the present daemons they hold. Then, by started before waiting, priority and Submit
// order, each gets its minimum: all trainer ranks, `min` rollouts and rewards, a queue; a waiting
// job all of it or nothing. Then, in the same order, what is left as surplus up to `max`. Rollouts
// and trainers serve one job, queues and rewards any number (the least loaded first).
std::map<std::string, Parts> Assign(std::vector<JobView> jobs,
                                    const std::vector<DaemonView>& daemons);

}  // namespace sluice::controller
