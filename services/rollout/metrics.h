#pragma once

#include <memory>
#include <string>

#include "common/metrics/metrics.h"

namespace sluice::rollout {

// Of one job, whose series end with the last copy. A default one counts nowhere.
struct Metrics {
  std::shared_ptr<void> series;               // Keeps those of the job.
  metrics::Gauge running, waiting, unsealed;  // sluice_rollout_requests{state}
  metrics::Gauge policy_version;              // Number of the version that samples.
  metrics::Gauge kv_usage;                    // Share of the KV blocks that is held.
  // Of the step thread.
  metrics::Counter decode_seconds, prefill_seconds, activate_seconds, idle_seconds;
  metrics::Gauge unacked_tokens;                    // Sampled, and not acknowledged by the queue.
  metrics::Counter prompt_computed, prompt_cached;  // Tokens.
  metrics::Counter preemptions;
  metrics::Counter tokens_generated, tokens_resumed;
  metrics::Counter finished_stop, finished_length, dropped, abandoned;  // Answers.
  metrics::Counter migrated, resumed, nonfinite, verify_failures;
  metrics::Histogram decode_step, response_tokens, pause;
  // Of a trajectory's log-probs, computed again: mean, nats.
  metrics::Histogram rescore_gap;

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);
};

}  // namespace sluice::rollout
