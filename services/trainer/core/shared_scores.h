#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/sequences.h"

// Numbers of the tokens of a whole batch that are computed before its advantages, in passes without
// gradients. The ranks share the work, and each then has all numbers.
namespace sluice::trainer {

// The trajectories that have trained tokens, with the index of their group. Those that
// SequenceBuilder::Add() refuses, and says why, are left out.
struct TrainedTrajectory {
  Trajectory* trajectory;
  uint32_t group;
};
std::vector<TrainedTrajectory> FindTrained(std::vector<Group>& groups);

// Returns one number for each row of each sequence, in the order of the sequences. `score` returns
// those of the rows of a micro-batch. The sequences of a group are adjacent. All ranks call it with
// the same sequences.
absl::StatusOr<std::vector<std::vector<float>>> ScoreShared(
    std::vector<Sequence> sequences, uint32_t micro_batch_tokens, Ranks& ranks,
    const std::function<absl::StatusOr<std::vector<float>>(MicroBatch&)>& score);

}  // namespace sluice::trainer
