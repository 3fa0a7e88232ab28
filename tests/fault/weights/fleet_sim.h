#pragma once

#include <cstdint>
#include <string>

#include "tests/fault/weights/world.h"

namespace sluice::fault {

// Simulates a job's weights for a minute of its own time: a trainer that publishes, trials,
// restarts and old trainers that wake up, and a few rollouts that fetch, pass on and activate,
// while processes are killed and stopped, links are cut, holders lie and bits flip. Then all faults
// end, and every rollout must come to the last version by itself.
//
// What is simulated is time, links, and who decides what the weights become. All else is the
// product: WeightPublisher, the folder, VersionFollower, WeightFetcher, WeightRelay, the plan of
// holders, and NativeEngine. A run depends on its seed alone.
//
// `dir` is an empty folder for `weights.dir`, or one that will be made.
Findings SimulateWeights(uint64_t seed, const std::string& dir);

}  // namespace sluice::fault
