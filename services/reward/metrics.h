#pragma once

#include <memory>
#include <string>

#include "common/metrics/metrics.h"

namespace sluice::reward {

// Of one job, whose series end with the last copy. A default one counts nowhere.
struct Metrics {
  std::shared_ptr<void> series;  // Keeps those of the job.
  // Evaluations: verdicts; no number; the lease was lost meanwhile.
  metrics::Counter ok, unscorable, late;
  metrics::Histogram seconds;  // Of one evaluation.
  metrics::Gauge leased;       // Tasks in hand.

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);
};

}  // namespace sluice::reward
