#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "services/queue/runner.h"

namespace sluice::queue {

// sluice_queue_*, label job_id (the job's name). Books and states are read off the cores before each scrape; waits are
// observed as they end.
//
// Thread-safe.
class Metrics {
 public:
  // `registry` outlives it. Metrics live as long as the registry.
  explicit Metrics(metrics::Registry* registry);

  void Add(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const std::shared_ptr<JobRunner>& runner) ABSL_LOCKS_EXCLUDED(mu_);
  // A parked call was answered after `wait`.
  void ObserveWait(const std::string& job, const char* call, absl::Duration wait) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads all cores; before each scrape.
  void Update() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A job's handles by name and label; counters and histograms remember what they were last told.
  struct Series {
    std::map<std::string, metrics::Gauge> gauges;
    std::map<std::string, std::pair<metrics::Counter, int64_t>> counters;
    std::map<std::string, metrics::Histogram> histograms;
    std::map<std::string, int64_t> observed;
  };
  struct Entry {
    std::shared_ptr<JobRunner> runner;
    Series series;
  };
  void UpdateOne(Entry& entry);
  void SetGauge(Entry& entry, const char* name, const char* help, double value, const char* label = "", const std::string& of = "");
  void RaiseCounter(Entry& entry, const char* name, const char* help, int64_t value, const char* label = "", const std::string& of = "");
  void ObserveCounts(Entry& entry, const char* where, const std::map<int64_t, int64_t>& counts);

  metrics::Registry* const registry_;
  Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // By name of the job.
  std::map<std::pair<std::string, std::string>, metrics::Histogram> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
