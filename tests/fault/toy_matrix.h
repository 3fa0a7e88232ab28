#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/fault/tally.h"

namespace sluice::fault {

// What all regimes of a run share.
struct MatrixOptions {
  uint64_t seed = 1;
  std::string dir;   // Of the run's files.
  std::string self;  // This program, which the workers are started from.
};

// A kind of job that the toy workers (toy.h) run on the real queue.
struct Regime {
  const char* name = "";
  absl::string_view durability = "full";  // As in the job file.
  int64_t max_staleness = 0;
};

// The role and failpoint of each place where RunToyMatrix() kills; no failpoint: at a random
// moment. They are those of the log (common/wal/failpoints.h), before and after each call of the
// queue, and between the calls of each worker.
std::vector<std::pair<std::string, std::string>> ToyPoints();

// Runs one job and meanwhile kills the queue and its workers `kills` times, going through all
// points in an order that follows from the seed. Then it lets the job come to rest, judges it, and
// checks the judge. An error: the run could not go on.
absl::StatusOr<Verdict> RunToyMatrix(const MatrixOptions& options, const Regime& regime, int kills,
                                     Tally* tally);

}  // namespace sluice::fault
