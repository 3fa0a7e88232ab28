#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/bench/overlap_sampler.h"

namespace sluice::rpc {
class Channel;
}  // namespace sluice::rpc

namespace sluice::bench {

// What one daemon had used at a time, and the metrics that it showed then.
struct DaemonUse {
  std::string name, role;
  absl::Time at;
  double cpu_seconds = 0;
  std::string metrics;  // The text of its /metrics.
};

struct RunOutcome {
  job::v1::JobStatus status;
  std::vector<job::v1::StepReport> steps;
  std::vector<DaemonUse> daemons;  // At the job's end.
  // `first` is decoding and `second` is training, from the first step's report to the job's end.
  OverlapSampler::Shares overlap;
};

// A run that is under way, for RunOptions::on_step.
struct LiveRun {
  const rpc::Channel& controller;
  std::string job;  // Its id.
  // Reads the use of all daemons now. It takes some milliseconds.
  std::function<std::vector<DaemonUse>()> read_use;
};

struct RunOptions {
  int rollouts = 1;
  std::string threads;  // As for --threads. If it is empty, the daemons share the cores.
  // Called when the report of a step arrives. The job goes on meanwhile. May be empty.
  std::function<void(const LiveRun& run, const job::v1::StepReport& step)> on_step;
};

// Runs a job file as `sluice run` does, on daemons of its own in a temporary directory, and returns
// what benchmarks look at. `sets` are as for --set; unless one of them says otherwise, checkpoints
// go to that directory, which is removed at the end. Fails if the job does not succeed.
absl::StatusOr<RunOutcome> RunPrivately(const std::string& file, std::vector<std::string> sets,
                                        const RunOptions& options = {});

// Returns the sum of the samples of the metric `name` in a Prometheus text, over those whose labels
// contain `label`, such as phase="decode". An empty `label` selects all of them.
double SumMetric(const std::string& metrics, const std::string& name, const std::string& label);

}  // namespace sluice::bench
