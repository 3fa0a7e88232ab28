#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace sluice::metrics {

// A daemon's metrics are one struct of these handles, made once from its Registry. Names:
// sluice_<daemon>_<what>_<unit>, base units, `_total` on counters alone. Labels come from small
// fixed sets, never ids.
//
// Handles are cheap to copy, thread-safe, and valid as long as their registry. A default one counts
// nowhere, so that a core runs in a test without a registry.
using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  Counter() = default;
  void Add(double by = 1) const;  // by >= 0.
  double value() const;

 private:
  friend class Registry;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double by) const;
  double value() const;

 private:
  friend class Registry;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void Observe(double value) const;

 private:
  friend class Registry;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_ = nullptr;
};

// Upper bounds of buckets. Seconds: of calls and decode steps, of fsyncs, of long things. Versions;
// tokens.
absl::Span<const double> RpcSeconds();
absl::Span<const double> FsyncSeconds();
absl::Span<const double> LongSeconds();
absl::Span<const double> Versions();
absl::Span<const double> Tokens();

// All metrics of one process.
//
// Thread-safe. Asking again for the same name and labels gives the same metric; it takes a lock, so
// keep the handle.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Counter AddCounter(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Gauge AddGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Histogram AddHistogram(absl::string_view name, absl::string_view help,
                         absl::Span<const double> buckets, const Labels& labels = {});

  // Keeps the series that carry this label: they end with the last hold on the same label and
  // value. Take it before the handles, and keep it at least as long as these. The registry outlives
  // it.
  std::shared_ptr<void> Hold(absl::string_view label, absl::string_view value);
  // Ends all series that carry this label. Their handles must not be used any more.
  void Remove(absl::string_view label, absl::string_view value);

  // `update` runs before each exposition, on the scraper's thread and under no lock: for gauges
  // that are read off a core. It may add metrics, and must stay callable as long as the registry.
  void BeforeCollect(std::function<void()> update);

  // The Prometheus text exposition.
  std::string Text();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Adds sluice_build_info, sluice_start_timestamp_seconds and process_{cpu_seconds_total,
// resident_memory_bytes, open_fds}.
void AddProcessMetrics(Registry* registry, absl::string_view role, absl::string_view version);

// Adds sluice_disk_{free,size}_bytes of the file system that holds `path`, label mount = `mount`:
// log, checkpoint or cache. Free is what an ordinary user may still take.
void AddDiskMetrics(Registry* registry, absl::string_view mount, std::string path);

}  // namespace sluice::metrics
