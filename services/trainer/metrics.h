#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "services/trainer/core/step.h"

namespace sluice::trainer {

// How the time of one step was spent, in seconds.
struct PhaseSeconds {
  double wait_data = 0, forward_backward = 0, optim = 0, apply = 0, publish = 0, checkpoint = 0;
};

// What publishing takes; see Publication. The handles are thread-safe.
struct PublishMetrics {
  metrics::Histogram encode;   // Time to make and store chunks and manifest.
  metrics::Histogram trial;    // Time of the trial at the canary.
  metrics::Histogram commit;   // Time from then until the queue knows the version.
  metrics::Counter bytes;      // Of chunks.
  metrics::Counter withdrawn;  // Versions.
};

// The metrics of one job. When the last copy of this object is destroyed, its gauges end, and the
// other series ten minutes later. A default-constructed object counts nothing. Not thread-safe.
class Metrics {
 public:
  Metrics() = default;
  // `peak_flops`: floating-point operations per second that the machine could do at most.
  Metrics(metrics::Registry* registry, const std::string& job_name, double peak_flops);

  void RecordStep(const StepResult& result, const PhaseSeconds& seconds, int64_t version);
  // Sets the gauges of the last evaluated version. `values` are named as in step reports:
  // `eval/heldout/reward`, ..
  void RecordEvaluation(const std::map<std::string, double>& values);
  void RecordCheckpoint(double seconds) const { checkpoint_seconds_.Observe(seconds); }
  const PublishMetrics& publish() const { return publishing_; }

 private:
  void SetIfPresent(const StepResult& result, const char* name, const metrics::Gauge& gauge);

  metrics::Registry* registry_ = nullptr;
  metrics::Labels labels_;
  std::shared_ptr<void> series_;  // Keeps the job's series exported.
  double peak_flops_ = 0;
  metrics::Counter steps_, tokens_;
  metrics::Counter wait_data_, forward_backward_, optim_, apply_, publish_, checkpoint_;
  metrics::Counter nonfinite_logprob_, nonfinite_gradient_, nonfinite_value_;
  metrics::Histogram checkpoint_seconds_;
  PublishMetrics publishing_;
  metrics::Gauge version_, reward_mean_, reward_std_, flat_groups_, grad_norm_, entropy_, kl_ref_,
      kl_teacher_, kl_behav_theta_, gap_mean_, gap_max_;
  metrics::Gauge clip_high_, clip_low_, clip_dual_, ess_, mfu_;
};

}  // namespace sluice::trainer
