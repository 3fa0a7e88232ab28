#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <type_traits>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice::metrics {

void Counter::Add(double by) const {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::value() const { return counter_ == nullptr ? 0 : counter_->Value(); }

void Gauge::Set(double value) const {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) const {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::value() const { return gauge_ == nullptr ? 0 : gauge_->Value(); }

void Histogram::Observe(double value) const {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

absl::Span<const double> RpcSeconds() {
  static constexpr double kBounds[] = {.0005, .001, .0025, .005, .01, .025, .05,
                                       .1,    .25,  .5,    1,    2.5, 5,    10};
  return kBounds;
}
absl::Span<const double> FsyncSeconds() {
  static constexpr double kBounds[] = {.0001, .00025, .0005, .001, .0025, .005, .01,
                                       .025,  .05,    .1,    .25,  .5,    1};
  return kBounds;
}
absl::Span<const double> LongSeconds() {
  static constexpr double kBounds[] = {.001, .005, .01, .05, .1,  .5,  1,  2,
                                       5,    10,   30,  60,  120, 300, 600};
  return kBounds;
}
absl::Span<const double> Versions() {
  static constexpr double kBounds[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64};
  return kBounds;
}
absl::Span<const double> Tokens() {
  static constexpr double kBounds[] = {16,   32,   64,   128,   256,   512,   1024,
                                       2048, 4096, 8192, 16384, 32768, 65536, 131072};
  return kBounds;
}
absl::Span<const double> Nats() {
  static constexpr double kBounds[] = {0, 1e-6, 1e-4, 1e-3, 0.01, 0.02, 0.1, 1};
  return kBounds;
}

struct Registry::Impl {
  using Key = std::pair<std::string, std::string>;  // A label and its value.

  explicit Impl(Clock* clock) : clock(clock) {}

  Clock* const clock;
  prometheus::Registry registry;
  Mutex mu;
  std::vector<std::function<void()>> updates ABSL_GUARDED_BY(mu);
  struct Series {
    Labels labels;
    bool is_gauge = false;
    std::function<void()> remove;
  };
  std::map<const void*, Series> series ABSL_GUARDED_BY(mu);    // By address of the metric.
  std::map<Key, int> holds ABSL_GUARDED_BY(mu);                // Never 0.
  std::map<Key, absl::Duration> released ABSL_GUARDED_BY(mu);  // When the last hold was released.

  void Remove(const Key& key, bool only_gauges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (auto it = series.begin(); it != series.end();) {
      const auto found = it->second.labels.find(key.first);
      const bool matches = found != it->second.labels.end() && found->second == key.second &&
                           (it->second.is_gauge || !only_gauges);
      if (matches) it->second.remove();
      it = matches ? series.erase(it) : std::next(it);
    }
  }

  void RemoveExpired() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    const absl::Duration now = clock->Monotonic();
    for (auto it = released.begin(); it != released.end();) {
      const bool expired = now - it->second >= kKept;
      if (expired) Remove(it->first, /*only_gauges=*/false);
      it = expired ? released.erase(it) : std::next(it);
    }
  }

  // The metric of `family` with these labels, created if it is new.
  template <typename Metric, typename... Args>
  Metric* Add(prometheus::Family<Metric>& family, const Labels& labels, Args&&... args)
      ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    Metric* const metric = &family.Add(labels, std::forward<Args>(args)...);
    series.try_emplace(metric, Series{labels, std::is_same_v<Metric, prometheus::Gauge>,
                                      [&family, metric] { family.Remove(metric); }});
    return metric;
  }
};

Registry::Registry(Clock* clock) : impl_(std::make_unique<Impl>(clock)) {}
Registry::~Registry() = default;

Counter Registry::AddCounter(absl::string_view name, absl::string_view help, const Labels& labels) {
  return Counter(impl_->Add(prometheus::BuildCounter()
                                .Name(std::string(name))
                                .Help(std::string(help))
                                .Register(impl_->registry),
                            labels));
}

Gauge Registry::AddGauge(absl::string_view name, absl::string_view help, const Labels& labels) {
  return Gauge(impl_->Add(prometheus::BuildGauge()
                              .Name(std::string(name))
                              .Help(std::string(help))
                              .Register(impl_->registry),
                          labels));
}

Histogram Registry::AddHistogram(absl::string_view name, absl::string_view help,
                                 absl::Span<const double> buckets, const Labels& labels) {
  return Histogram(
      impl_->Add(prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry),
                 labels, prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end())));
}

std::shared_ptr<void> Registry::Hold(absl::string_view label, absl::string_view value) {
  const Impl::Key key(label, value);
  {
    MutexLock lock(&impl_->mu);
    ++impl_->holds[key];
    impl_->released.erase(key);
  }
  const auto release = [impl = impl_.get(), key](void*) {
    MutexLock lock(&impl->mu);
    const auto held = impl->holds.find(key);
    SLUICE_CHECK(held != impl->holds.end() && held->second > 0);
    if (--held->second > 0) return;
    impl->holds.erase(held);
    impl->Remove(key, /*only_gauges=*/true);
    impl->released[key] = impl->clock->Monotonic();
  };
  return std::shared_ptr<void>(impl_.get(), release);
}

void Registry::Remove(absl::string_view label, absl::string_view value) {
  MutexLock lock(&impl_->mu);
  impl_->Remove({std::string(label), std::string(value)}, /*only_gauges=*/false);
}

void Registry::BeforeCollect(std::function<void()> update) {
  MutexLock lock(&impl_->mu);
  impl_->updates.push_back(std::move(update));
}

std::string Registry::Text() {
  impl_->RemoveExpired();
  std::vector<std::function<void()>> updates;
  {
    MutexLock lock(&impl_->mu);
    updates = impl_->updates;
  }
  // The updates run without the lock, because they may add metrics.
  for (const auto& update : updates) update();
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace sluice::metrics
