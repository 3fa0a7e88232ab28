#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/trainer/core/checkpoint.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::fault {

// What a job has trained, to be compared bit for bit with what another one has.
//
// With max_staleness 0 the seed of a job determines what it trains on:
// - The groups of step k, and no others, are admitted under version k.
// - Their prompts and random draws follow from the seed and from their ordinals, and the place in a
//   sequence is the whole state of its sampling.
// - What the engine computes for a sequence does not depend on what else is in its batch.
// - Groups with the same deadline go into a batch by ordinal.
//
// So two jobs train on the same batches, and any mistake after a kill gives other bits: a
// trajectory lost or trained twice, a batch put together differently, tokens changed in the log, a
// prefix continued wrongly, an optimizer that is a step off. (At durability `metadata` this does
// not hold: a killed queue loses sealed trajectories and has others sampled in their place.)
struct Trained {
  trainer::Checkpoint checkpoint;
  // One line per trained trajectory: step, ordinal of the group, member, and the CRC32C of its
  // tokens and log-probs.
  std::vector<std::string> batches;
  // One line per step: all its metrics but the times.
  std::vector<std::string> metrics;
};

// Reads what a job that has SUCCEEDED has left behind.
// INTERNAL: it has not, or its ledger does not balance.
absl::StatusOr<Trained> ReadTrained(const job::v1::JobStatus& end);

// What differs, in words; empty: not a bit.
std::vector<std::string> Differences(const Trained& a, const Trained& b);

}  // namespace sluice::fault
