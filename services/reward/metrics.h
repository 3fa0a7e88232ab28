#pragma once

#include <memory>
#include <string>

#include "common/metrics/metrics.h"

namespace sluice::reward {

// The metrics of one job. When the last copy of this object is destroyed, its gauges end, and the
// other series ten minutes later. A default-constructed object counts nothing.
struct Metrics {
  std::shared_ptr<void> series;  // Keeps the job's series.
  // Answers that got a number, got none (unscorable), whose lease was lost meanwhile, or that were
  // given back because a judge or plug-in failed or is busy.
  metrics::Counter ok, unscorable, late, retried;
  metrics::Histogram seconds;  // Time to score one answer.
  metrics::Gauge leased;       // Tasks that this daemon has leased and not finished.

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);
};

}  // namespace sluice::reward
