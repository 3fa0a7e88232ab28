#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace sluice::reward {

// Of one job. A default one counts nowhere.
struct Metrics {
  metrics::Counter ok, unscorable, late;  // Evaluations: verdicts; no number; the lease was lost meanwhile.
  metrics::Histogram seconds;             // Of one evaluation.
  metrics::Gauge leased;                  // Tasks in hand.

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);
};

}  // namespace sluice::reward
