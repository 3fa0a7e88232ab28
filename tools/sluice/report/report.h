#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {

// What the controller keeps of a job.
struct JobHistory {
  job::v1::JobStatus status;
  std::vector<job::v1::StepReport> steps;  // Sorted by k, each once.
  std::vector<common::v1::Event> events;   // Oldest first.
};

// Returns an HTML page that shows the history, with plots. It needs no other file and no network.
std::string ReportPage(const JobHistory& history, absl::Time now);

}  // namespace sluice::cli
