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

  // Answers by what came of comparing a candidate's score: equal, higher, lower, unscorable,
  // skipped; and the sum of the distances between scores.
  metrics::Counter Shadow(const std::string& reward, const char* outcome) const;
  metrics::Counter ShadowDistance(const std::string& reward) const;
  // The same of rewards of steps. Outcomes are same, other_values and other_places.
  metrics::Counter ShadowSteps(const std::string& reward, const char* outcome) const;
  metrics::Counter ShadowStepDistance(const std::string& reward) const;

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);

 private:
  metrics::Registry* registry_ = nullptr;
  std::string job_name_;
};

}  // namespace sluice::reward
