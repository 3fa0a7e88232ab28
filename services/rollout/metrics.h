#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/metrics/metrics.h"

namespace sluice::rollout {

// The metrics of one job's session. metrics.cc has their names and help texts. When the last copy
// is gone, the gauges that are labelled with the job end, and the other series ten minutes later. A
// default-constructed one counts nothing.
struct Metrics {
  std::shared_ptr<void> series;               // Keeps the job's series alive.
  metrics::Gauge running, waiting, unsealed;  // Numbers of answers.
  metrics::Gauge policy_version;              // Number of the version that samples.
  metrics::Gauge resident_versions;           // Versions whose weights are held.
  metrics::Gauge kv_usage;                    // Share of the KV blocks that requests hold, 0 to 1.
  // Time of the step thread.
  metrics::Counter decode_seconds, prefill_seconds, activate_seconds, idle_seconds;
  metrics::Gauge unacked_tokens;  // Tokens that are sampled, but not acknowledged by the queue.
  metrics::Counter prompt_computed, prompt_cached;  // Numbers of prompt tokens.
  metrics::Counter preemptions;
  metrics::Counter tokens_generated, tokens_resumed, tokens_regenerated;
  metrics::Counter finished_stop, finished_length, dropped, abandoned;  // Numbers of answers.
  metrics::Counter migrated, resumed, nonfinite;
  metrics::Histogram decode_step, response_tokens, turn;
  // New weights: time from the announcement to the end of the download, time until there was room
  // for them, time without sampling, the part of it in which weights were read again, and versions
  // whose bytes were not those that were published.
  metrics::Histogram fetch, room, pause, verify;
  metrics::Counter fetched_bytes, damaged_downloads, refused_activations, damaged_weights;
  metrics::Counter suspect_tokens;  // Sampled since damaged weights were last found right.
  // Adds the bytes of objects that came, by transport.
  void CountTransports(const std::map<std::string, uint64_t>& bytes) const;
  std::map<std::string, metrics::Counter> transport_bytes;
  metrics::Counter relayed_bytes;   // Sent to other rollouts.
  metrics::Counter parent_changes;  // Holders of a version that were left for another.
  metrics::Histogram rescore_gap;   // In nats; see Rescorer.

  Metrics() = default;
  Metrics(metrics::Registry* registry, const std::string& job_name);
};

}  // namespace sluice::rollout
