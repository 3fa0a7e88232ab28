#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

// What the controller exports: sluice_job_* (label job_id: the job's name), sluice_controller_*. A
// job's series end ten minutes after it, or when a new job takes its name. The loop's thread alone
// updates it.
class Metrics {
 public:
  explicit Metrics(metrics::Registry* registry);  // Outlives it.

  // Reads the gauges off the core.
  void Update(const Controller& core, absl::Duration now);
  void Stored(const char* outcome, absl::Duration took);

 private:
  struct JobGauges {
    std::shared_ptr<void> series;  // Keeps them.
    std::map<JobState, metrics::Gauge> state;
    metrics::Gauge max_staleness, stalled_since, last_step, step_duration;
    absl::Duration recovering_since = absl::InfiniteDuration();
    const char* recovering_role = "";
    bool over = false;
  };
  JobGauges& Of(const Job& job);
  void UpdateJob(const Job& job, absl::Duration now);

  metrics::Registry* const registry_;
  std::map<std::string, JobGauges> jobs_;  // By id.
};

}  // namespace sluice::controller
