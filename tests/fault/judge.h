#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sluice/common/v1/common.pb.h"
#include "tests/fault/toy.h"

namespace sluice::fault {

// A line of the history of a process (toy.h).
struct Line {
  int64_t at = 0;  // By the monotonic clock, in ns.
  std::vector<std::string> words;
  std::string process;
};

// Everything that is known of a run after it has come to rest and the trainer has stopped at a
// checkpoint.
struct Evidence {
  std::vector<Line> lines;  // Of all processes, in the order of their times.
  Checkpoint checkpoint;
  common::v1::Ledger ledger;   // Of the queue.
  std::set<std::string> live;  // "<group>.<member>" of what the queue holds and has not trained.
  std::string durability = "full";
  int64_t max_staleness = 0;
};

struct Verdict {
  int64_t steps = 0;     // Steps in the lineage.
  int64_t replayed = 0;  // Steps trained again on the same batch, after a restore.
  // Steps taken back by a restore that could not replay them (not at durability `full`).
  int64_t forgotten = 0;
  int64_t trained = 0;             // Trajectories in the lineage.
  int64_t acknowledged = 0;        // Pieces and seals.
  int64_t dropped = 0;             // Trajectories, by the ledger.
  int64_t lost = 0, twice = 0;     // Numbers of findings of the kinds LOST and TWICE (see Judge()).
  std::vector<std::string> wrong;  // Every broken promise, including those.
};

// Reads the histories in DIR/history and the checkpoint. The caller fills in `ledger` and `live`.
absl::StatusOr<Evidence> GatherEvidence(const std::string& dir);

// Compares what every process was told with the checkpoint and the final state of the queue. Finds:
//
// - LOST: an acknowledged piece that a later grant's prefix does not contain, or a trained step
//   whose batch a restore did not keep (both only at durability `full`); more sealed trajectories
//   that are neither trained nor live than the ledger counts as dropped; a trajectory that was
//   dropped for a reason that this regime does not allow; a trained trajectory that the ledger does
//   not count; a restore or a final checkpoint that is older than a durable version.
// - TWICE: a trajectory that is in two steps of the lineage, was sealed by two attempts, or is
//   counted by the ledger as trained but is not in the lineage.
// - Of neither kind: a step whose list, bytes or hash differ between two trainings of it; a step
//   that was left out; a ledger hash that differs from the chain recomputed over the lineage;
//   weights that differ from NextWeights() over the lineage; a ledger that does not balance.
Verdict Judge(const Evidence& evidence);

// Tests Judge(). Changes the evidence of a run without findings, in one way at a time: a trajectory
// is left out or doubled, a checksum is changed, a prefix is cut, .. Returns the changes that
// Judge() did not find; empty: it found all of them.
std::vector<std::string> SelfCheck(const Evidence& evidence);

}  // namespace sluice::fault
