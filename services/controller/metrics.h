#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

// The metrics that the controller exports: sluice_job_* (their label job_id is the job's name) and
// sluice_controller_*. The series of a job end ten minutes after the job, or when a new job takes
// its name. Only the loop's thread may use this.
class Metrics {
 public:
  explicit Metrics(metrics::Registry* registry);  // `registry` outlives the metrics.

  // Sets all gauges from the core's state.
  void Update(const Controller& core, Instant now);
  // Records how long a transaction of the store took, and whether it worked.
  void RecordTransaction(const char* outcome, absl::Duration took);

 private:
  struct JobGauges {
    std::shared_ptr<void> series;  // Keeps the job's series exported.
    std::map<JobState, metrics::Gauge> state;
    metrics::Gauge max_staleness, stalled_since, last_step, step_duration;
    absl::Time began = absl::InfinitePast();  // When the job last had its daemons assigned.
    absl::Duration recovering_since = absl::InfiniteDuration();
    const char* recovering_role = "";
    bool over = false;
  };
  JobGauges& GaugesOf(const Job& job);
  // Of jobs that recovered because a daemon of this role was missing.
  metrics::Histogram RecoveryTime(const char* role);
  void UpdateJob(const Job& job, Instant now);
  void UpdateWanted(const WantedDaemons& wanted);

  metrics::Registry* const registry_;
  std::map<std::string, JobGauges> jobs_;  // By id.
  WantedDaemons wanted_;                   // Of all pools that there have been.
};

}  // namespace sluice::controller
