#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice::job::v1 {
class ListResponse;
}
namespace sluice::admin::v1 {
class DaemonsResponse;
}

// The texts of `sluice top`. These functions have no side effects.
namespace sluice::cli {

// How fast jobs advance, from the numbers of steps that the controller told at different times.
class StepRates {
 public:
  // Takes what the controller said at `now`, by any clock that only goes forward.
  void Add(const job::v1::ListResponse& jobs, absl::Duration now);
  // Steps per minute of a job over the last kWindow. Negative: not known yet.
  double PerMinute(const std::string& job) const;

  static constexpr absl::Duration kWindow = absl::Seconds(30);

 private:
  struct Sample {
    absl::Duration at;
    int64_t step = 0;
  };
  std::map<std::string, std::vector<Sample>> samples_;  // By job, oldest first.
};

// A first line with counts, then a line for each job that has not ended, then the newest that have,
// at most `most` jobs.
std::string TopJobsText(const job::v1::ListResponse& jobs, const StepRates& rates, size_t most);
// A first line with counts, then a line for each daemon: the lost ones, then by role and name.
// Shows the jobs' names if `jobs` has them.
std::string TopDaemonsText(const admin::v1::DaemonsResponse& daemons,
                           const job::v1::ListResponse& jobs, size_t most);

}  // namespace sluice::cli
