#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/bench/overlap_sampler.h"

namespace sluice::bench {

// What one daemon had used and told by the end of a run.
struct DaemonUse {
  std::string name, role;
  double cpu_seconds = 0;
  std::string metrics;  // Its /metrics.
};

struct RunOutcome {
  job::v1::JobStatus status;
  std::vector<job::v1::StepReport> steps;
  std::vector<DaemonUse> daemons;
  // Of decoding (first) and training (second), from the first step's report to the last's.
  OverlapSampler::Shares overlap;
};

// Runs a job file on daemons of its own in a temporary directory, as `sluice run` does, and keeps
// what benchmarks look at. `sets`: as --set; checkpoints go to that directory too unless a set says
// otherwise. `threads`: as --threads; empty: the daemons share the cores.
absl::StatusOr<RunOutcome> RunPrivately(const std::string& file, std::vector<std::string> sets,
                                        int rollouts = 1, const std::string& threads = "");

// The sum of the samples of `name` in a Prometheus text that carry the label text `label`, as in
// phase="decode"; empty: all.
double MetricSum(const std::string& metrics, const std::string& name, const std::string& label);

}  // namespace sluice::bench
