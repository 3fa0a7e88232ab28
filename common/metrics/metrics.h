#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace sluice::metrics {

// The metrics of a daemon are one struct of the handles below, made once from its Registry. Names
// are sluice_<daemon>_<what>_<unit>, in base units, with `_total` on counters alone. Labels come
// from small fixed sets, except job_id and, beside it, the names of the job's datasets. All series
// with a job_id end after the job (Registry::Hold(), Registry::Remove()).
//
// Handles are cheap to copy, thread-safe, and valid as long as their registry. A default handle
// counts nothing, so that a test needs no registry for the code that it tests.
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

// Upper bounds of histogram buckets: RpcSeconds() for calls and decode steps, FsyncSeconds() for
// fsyncs, LongSeconds() for long work; Versions() for staleness, Tokens() for lengths, Nats() for
// distances of log-probs, whose bucket of 0 counts equal bits.
absl::Span<const double> RpcSeconds();
absl::Span<const double> FsyncSeconds();
absl::Span<const double> LongSeconds();
absl::Span<const double> Versions();
absl::Span<const double> Tokens();
absl::Span<const double> Nats();

// All metrics of one process.
//
// Thread-safe. A repeated Add..() with the same name and labels returns the same metric. It takes a
// lock, so keep the handle.
class Registry {
 public:
  // Counters and histograms that nobody holds any more are kept for this long, so that a scrape
  // still sees how they ended.
  static constexpr absl::Duration kKept = absl::Minutes(10);

  explicit Registry(Clock* clock = Clock::Real());  // `clock` outlives the registry.
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Counter AddCounter(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Gauge AddGauge(absl::string_view name, absl::string_view help, const Labels& labels = {});
  Histogram AddHistogram(absl::string_view name, absl::string_view help,
                         absl::Span<const double> buckets, const Labels& labels = {});

  // Keeps all series that have the label `label` = `value`. When the last hold on the same pair is
  // released, its gauges are removed at once, because their values no longer hold, and the other
  // series after kKept, unless they are held again. Take the hold before the handles, and keep it
  // at least as long as them. The registry outlives it.
  std::shared_ptr<void> Hold(absl::string_view label, absl::string_view value);
  // Removes all series that have the label `label` = `value`. Their handles must not be used any
  // more.
  void Remove(absl::string_view label, absl::string_view value);

  // Runs `update` before each Text(), on the thread that calls Text() and under no lock. Use it for
  // gauges whose value is read from the daemon's state. It may add metrics, and must stay callable
  // as long as the registry exists.
  void BeforeCollect(std::function<void()> update);

  // All metrics in the Prometheus text format.
  std::string Text();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Adds sluice_build_info, sluice_start_timestamp_seconds and process_{cpu_seconds_total,
// resident_memory_bytes, open_fds}.
void AddProcessMetrics(Registry* registry, absl::string_view role, absl::string_view version);

// Adds sluice_disk_{free,size}_bytes of the file system that contains the folder, with the label
// mount = `mount`: log, store or checkpoint. The free space is what an ordinary user may still
// take. `folder` is called before each Text(); while it returns an empty path, or one that does not
// exist, there are no series.
void AddDiskMetrics(Registry* registry, absl::string_view mount,
                    std::function<std::string()> folder);

}  // namespace sluice::metrics
