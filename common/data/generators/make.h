#pragma once

#include <cstdint>

#include "common/base/splitmix.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// Make a task of a level (GeneratorRow::make). Each has the columns
//   problem   the task in short form, for small models: "12 + 30"
//   prompt    the same in a sentence
//   answer    the gold
//   solution  an answer that has the full score
// and those of its own.

// The gold is the value. With `numbers`.
nlohmann::json MakeCountdownTask(uint32_t level, SplitMix64* random);
nlohmann::json MakeArithmetic(uint32_t level, SplitMix64* random);
nlohmann::json MakeChainSum(uint32_t level, SplitMix64* random);
nlohmann::json MakeSort(uint32_t level, SplitMix64* random);

}  // namespace sluice
