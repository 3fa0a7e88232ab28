#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/toy_matrix.h"

namespace sluice::fault {

// The role and failpoint of each place where RunFleet() kills.
std::vector<std::pair<std::string, std::string>> FleetPoints();

// Runs jobs of the example model on the real controller, queue, rollout, reward and trainer, at
// durability `full`, and meanwhile kills queue, rollout, reward and trainer `kills` times. Each job
// must succeed. The lineage of its checkpoint must give the ledger's hash, name no trajectory
// twice, and have as many as the ledger counts. Trajectories may be dropped only as too stale, as
// stragglers, or because the job closed.
absl::StatusOr<Verdict> RunFleet(const MatrixOptions& options, int kills, Tally* tally);

}  // namespace sluice::fault
