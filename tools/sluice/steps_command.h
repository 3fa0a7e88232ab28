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
  int64_t last = 0;   // Show only the newest `last` steps; 0: all.
  int64_t every = 1;  // Show the steps whose number is a multiple of this, and the newest step.
  // Empty: the usual columns that the job has. "all": every column.
  std::vector<std::string> columns;
};

// Returns the steps as a table: a row of column names, then a row per step.
// INVALID_ARGUMENT: no step has a column of that name; the message lists the columns.
absl::StatusOr<std::vector<std::vector<std::string>>> StepRows(
    const std::vector<job::v1::StepReport>& steps, const std::vector<std::string>& columns);

// Returns the step as one JSON object, in the form of metrics.jsonl.
std::string StepJson(const job::v1::StepReport& step);

}  // namespace sluice::cli
