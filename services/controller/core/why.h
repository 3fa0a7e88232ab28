#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice::controller {

// Something that waits or is waited for. `kind`: JOB, STEP, BATCH, .. as in the contracts.
struct Node {
  std::string kind, id, daemon;
};

// One wait, as a daemon tells it. A negative next_in: nothing comes by itself.
struct Edge {
  Node waiter, on;
  absl::Duration since;
  std::string cause, next;
  absl::Duration next_in = -absl::Seconds(1);
  std::string hint;
};

// The chain from `root` to what all else waits for: each edge's waiter is what the one before waits on (same kind and id).
// Of several edges that fit, the one that has waited longest. Where the job itself has no edge to follow, the longest wait
// of a trainer, then of any daemon, is its next link. Ends at a node that waits for nothing known, or before a cycle.
std::vector<Edge> Chain(const Node& root, const std::vector<std::string>& trainers, std::vector<Edge> edges);

}  // namespace sluice::controller
