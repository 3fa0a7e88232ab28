#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::job::v1 {
class StepReport;
}

namespace sluice::cli {

struct StepsOptions {
  std::string server, job, output;
  int64_t last = 0;                  // The newest so many steps; 0: all.
  int64_t every = 1;                 // Steps whose number it divides, and the newest one.
  std::vector<std::string> columns;  // Empty: the usual ones that the job has. "all": every one.
};

// The steps as a table: a row of heads, then a row per step.
// INVALID_ARGUMENT: no step has a column of that name; the message lists those there are.
absl::StatusOr<std::vector<std::vector<std::string>>> StepRows(
    const std::vector<job::v1::StepReport>& steps, const std::vector<std::string>& columns);

// The step as one JSON object, in the form of metrics.jsonl.
std::string StepJson(const job::v1::StepReport& step);

}  // namespace sluice::cli
