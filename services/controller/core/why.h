#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice::controller {

// Something that waits or is waited for. `kind` is JOB, STEP, BATCH, .. as in common.v1.NodeKind.
// `daemon` is the id of the daemon that knows about it, or a role if any daemon of that role will
// do.
struct Node {
  std::string kind, id, daemon;
};

// One wait, as a daemon reports it. `cause` is a sentence about the waiter. `next` says what
// happens by itself, and `next_in` when; it is negative if no time is known. `hint` is what a
// person could do.
//
// An edge from a node to itself is a fault: the node waits for nothing, but is the reason why
// others wait (a daemon that is silent or missing).
struct Edge {
  Node waiter, on;
  absl::Duration since;
  std::string cause, next;
  absl::Duration next_in = -absl::Seconds(1);
  std::string hint;
};

// All that is known about a job's waits at one moment.
struct Waits {
  Node root;                // The job.
  std::vector<Edge> edges;  // Those of the controller and of all daemons that answered.
  // The daemons that work for the job: role ("queue", "rollout", ..) by id.
  std::map<std::string, std::string> roles;
  std::set<std::string> silent;  // Ids of those daemons that did not answer in time.
};

// Finds the chain of waits from the root to its final reason. Each edge of the chain begins where
// the one before it ends, and the chain never visits a node twice. A pure function.
//
// Two edges join if the nodes have the same kind and id, and for calls also the same daemon. Three
// more ways lead on:
// - from a daemon to its steps;
// - from a node without an edge to the daemon that knows it;
// - from a role ("rollout") to the calls of its daemons, and to these daemons.
//
// The shortest chain that ends at a fault is preferred. If no fault can be reached, the chain
// follows the longest wait at each node. Among the job's own edges those to the queue come first,
// then those to trainers, because at the start rollouts and rewards wait for both.
std::vector<Edge> FindChain(const Waits& waits);

// The chain in one line, followed by what a person could do: "batch 75 has 63 of 64 groups <- group
// 1:02 lacks member 3 of 8 <- ..; you could: ..". Empty if the chain is empty.
std::string ChainText(const std::vector<Edge>& chain);

}  // namespace sluice::controller
