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

// sluice_queue_*, most with label job_id (the job's name); the table is in README.md. Books and
// states are read off the cores before each scrape; waits are observed as they end. A job's series
// begin with the job, at zero where they can, and end `kept` after it was closed or freed.
//
// Thread-safe.
class Metrics {
 public:
  // `registry` and `clock` outlive it. What is measured of the daemon lives as long as the
  // registry.
  explicit Metrics(metrics::Registry* registry, Clock* clock = Clock::Real(),
                   absl::Duration kept = absl::Minutes(10));

  void Add(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  // A parked call was answered after `wait`.
  void ObserveWait(const std::string& job, const char* call, absl::Duration wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A log was synced to its disk.
  void ObserveSync(absl::Duration took);
  // A job came back from its log.
  void ObserveRecovery(absl::Duration took);
  // Reads all cores; before each scrape.
  void Update() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job's handles by name and label; counters and histograms remember what they were last told.
  struct Series {
    std::map<std::string, metrics::Gauge> gauges;
    std::map<std::string, std::pair<metrics::Counter, int64_t>> counters;
    std::map<std::string, metrics::Histogram> staleness;
    std::map<std::string, int64_t> observed;
    std::map<std::string, metrics::Histogram> waits;
  };
  struct Entry {
    std::shared_ptr<JobRunner> runner;         // Null: freed.
    Instant ended = absl::InfiniteDuration();  // When it was first seen closed or freed.
    Series series;
  };
  // One job, one scrape.
  class Writer;
  void Write(const std::string& job, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  metrics::Histogram& Wait(const std::string& job, Entry& entry, const char* call)
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
