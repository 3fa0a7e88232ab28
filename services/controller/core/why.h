#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice::controller {

// Something that waits or is waited for. `kind`: JOB, STEP, BATCH, .. as in the contracts.
// `daemon`: who knows it, by id, or by role where any daemon of it will do.
struct Node {
  std::string kind, id, daemon;
};

// One wait, as a daemon tells it. `cause` is a sentence about the waiter. A negative next_in: no
// time is known. An edge from a node to itself is a fault of its own: nothing it waits for, but why
// others wait for it (it is silent, or there is none).
struct Edge {
  Node waiter, on;
  absl::Duration since;
  std::string cause, next;
  absl::Duration next_in = -absl::Seconds(1);
  std::string hint;
};

// All that is known of a job's waits at one moment.
struct Waits {
  Node root;                // The job.
  std::vector<Edge> edges;  // Of the controller and of all daemons that answered.
  // Role of each daemon that works for the job ("queue", "rollout", ..), by id.
  std::map<std::string, std::string> roles;
  std::set<std::string> silent;  // Of those, who did not answer in time.
};

// The chain from the root to what all else waits for: each edge leads on from where the one before
// ended. Pure.
//
// Edges join where kind and id are equal (of calls the daemon too). A daemon's node leads on to its
// steps too, a node that no edge leaves to the daemon that knows it, and a role ("rollout") to the
// calls of its daemons and to these. A chain that ends at a fault is preferred, the shortest of
// them; else at each node the edge of longest standing, of the job's own edges those to the queue,
// then to trainers: rollouts and rewards wait for them at the start. Ends before a cycle.
std::vector<Edge> Chain(const Waits& waits);

// The chain in one line, as in "batch 75 has 63 of 64 groups <- group 1:02 lacks member 3 of 8 <-
// ..", and what a person could do. Empty: the chain is.
std::string ChainText(const std::vector<Edge>& chain);

}  // namespace sluice::controller
