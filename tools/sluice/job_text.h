#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice::common::v1 {
class Event;
}
namespace sluice::job::v1 {
class JobStatus;
class ListResponse;
}  // namespace sluice::job::v1

// Formats jobs and events for people. `output` is table, wide or name; `zone` is that of the times.
namespace sluice::cli {

// A line for each job.
std::string JobListText(const job::v1::ListResponse& list, const std::string& output,
                        absl::TimeZone zone);
// A line for each property of a job. Its result is not in it.
std::string JobText(const job::v1::JobStatus& job, const std::string& output, absl::TimeZone zone);
// A line for each event.
std::string EventsText(const std::vector<common::v1::Event>& events, const std::string& output,
                       absl::TimeZone zone);

}  // namespace sluice::cli
