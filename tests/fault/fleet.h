#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/fault/toy_matrix.h"

namespace sluice::fault {

// Role and failpoint of every place where RunFleet kills.
std::vector<std::pair<std::string, std::string>> FleetPoints();

// Runs jobs of the example model on the real controller, queue, rollout, reward and trainer, level
// full, and in them kills queue, rollout, reward and trainer `kills` times. Each job must succeed,
// and its checkpoint's lineage must give the ledger's hash, name no trajectory twice and as many as
// the ledger counts, with none dropped but for its age.
absl::StatusOr<Verdict> RunFleet(const MatrixOptions& options, int kills, Tally* tally);

}  // namespace sluice::fault
