#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/bench/overlap_sampler.h"

namespace sluice::bench {

// What one daemon had used by the end of a run, and the metrics that it showed then.
struct DaemonUse {
  std::string name, role;
  double cpu_seconds = 0;
  std::string metrics;  // The text of its /metrics.
};

struct RunOutcome {
  job::v1::JobStatus status;
  std::vector<job::v1::StepReport> steps;
  std::vector<DaemonUse> daemons;
  // `first` is decoding and `second` is training, from the first step's report to the job's end.
  OverlapSampler::Shares overlap;
};

// Runs a job file as `sluice run` does, on daemons of its own in a temporary directory, and returns
// what benchmarks look at. `sets` are as for --set; unless one of them says otherwise, checkpoints
// go to that directory, which is removed at the end. `threads` is as for --threads; if it is empty,
// the daemons share the cores. Fails if the job does not succeed.
absl::StatusOr<RunOutcome> RunPrivately(const std::string& file, std::vector<std::string> sets,
                                        int rollouts = 1, const std::string& threads = "");

// Returns the sum of the samples of the metric `name` in a Prometheus text, over those whose labels
// contain `label`, such as phase="decode". An empty `label` selects all of them.
double SumMetric(const std::string& metrics, const std::string& name, const std::string& label);

}  // namespace sluice::bench
