#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/fault/tally.h"

namespace sluice::fault {

// What a run kills at.
struct MatrixOptions {
  uint64_t seed = 1;
  std::string dir;   // Of the run's files.
  std::string self;  // This program.
};

// A job of the toy workers (toy.h) on the real queue.
struct Regime {
  const char* name = "";
  queue::v1::Durability durability = queue::v1::DURABILITY_FULL;
  int64_t max_staleness = 0;
};

// Role and failpoint of every place where RunToyMatrix kills; no failpoint: at a random moment.
// Those of the log (common/wal/failpoints.h), before and after each call of the queue, and between
// the calls of each worker.
std::vector<std::pair<std::string, std::string>> ToyPoints();

// Runs one job, and in it kills the queue and its workers `kills` times, walking over all points in
// an order of the seed's; then lets it rest, judges it, and looks whether the judge was awake. An
// error: it could not go on.
absl::StatusOr<Verdict> RunToyMatrix(const MatrixOptions& options, const Regime& regime, int kills,
                                     Tally* tally);

}  // namespace sluice::fault
