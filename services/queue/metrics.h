#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "services/queue/runner.h"

namespace sluice::queue {

// The metrics sluice_queue_*, most with the label job_id (the job's name);
// deploy/monitoring/metrics.md lists them. Ledgers and states are read from the cores before each
// scrape; waits are observed as they end. A job's series begin with the job, at zero if possible,
// and end `kept` after it was closed or freed.
//
// Thread-safe.
class Metrics {
 public:
  // `registry` and `clock` outlive the metrics. Series of the daemon itself stay as long as the
  // registry.
  explicit Metrics(metrics::Registry* registry, Clock* clock = Clock::Real(),
                   absl::Duration kept = absl::Minutes(10));

  void Add(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  // Call it when a parked call was answered after `wait`.
  void ObserveWait(const std::string& job, const char* call, absl::Duration wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Call it when a log was synced to its disk.
  void ObserveSync(absl::Duration took);
  // Call it when a job was brought back from its log.
  void ObserveRecovery(absl::Duration took);
  // Reads all cores. Call it before each scrape.
  void Update() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job's metrics by name and label. The last value of the core is kept beside counters and
  // histograms, because these can only be increased by a difference.
  struct Series {
    std::map<std::string, metrics::Gauge> gauges;
    std::map<std::string, std::pair<metrics::Counter, int64_t>> counters;
    std::map<std::string, metrics::Histogram> staleness;
    std::map<std::string, int64_t> observed;
    std::map<std::string, metrics::Histogram> waits;
  };
  struct Entry {
    std::shared_ptr<JobRunner> runner;         // Null once freed.
    Instant ended = absl::InfiniteDuration();  // When it was first seen closed or freed.
    Series series;
  };
  // Writes the metrics of one job in one scrape.
  class Writer;
  void Write(const std::string& job, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  metrics::Histogram& WaitHistogram(const std::string& job, Entry& entry, const char* call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  metrics::Registry* const registry_;
  Clock* const clock_;
  const absl::Duration kept_;
  const metrics::Histogram syncs_;
  const metrics::Gauge recovery_;
  Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // By name of the job.
};

}  // namespace sluice::queue
