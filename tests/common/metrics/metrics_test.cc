#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

namespace {
std::atomic<int> readings{0};  // Calls of getrusage() that are under way.
std::atomic<bool> readings_met{false};
}  // namespace

// Replaces the C library's function in this program. The process has used 1 s of CPU time.
extern "C" int getrusage(__rusage_who_t, rusage* usage) noexcept {
  ++readings;
  for (int i = 0; i < 1000 && readings == 1; ++i) std::this_thread::yield();
  if (readings > 1) readings_met = true;
  --readings;

  *usage = {};
  usage->ru_utime.tv_sec = 1;
  return 0;
}

namespace sluice::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameMetric) {
  Registry registry;
  registry.AddCounter("sluice_queue_dropped_total", "Dropped.", {{"reason", "stale"}}).Add(2);
  registry.AddCounter("sluice_queue_dropped_total", "Dropped.", {{"reason", "stale"}}).Add();
  registry.AddCounter("sluice_queue_dropped_total", "Dropped.", {{"reason", "lost"}}).Add();

  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_dropped_total{reason=\"stale\"} 3"));
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_dropped_total{reason=\"lost\"} 1"));
}

TEST(MetricsTest, HistogramsCountIntoTheirBuckets) {
  Registry registry;
  const Histogram histogram =
      registry.AddHistogram("sluice_queue_staleness_versions", "Staleness.", Versions());
  histogram.Observe(0);
  histogram.Observe(3);

  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_staleness_versions_bucket{le=\"2\"} 1"));
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_staleness_versions_bucket{le=\"3\"} 2"));
}

TEST(MetricsTest, GaugesOfACoreAreReadBeforeEachExposition) {
  Registry registry;
  const Gauge gauge = registry.AddGauge("sluice_queue_live_trajectories", "Live.");
  int live = 0;
  registry.BeforeCollect([&] { gauge.Set(live); });
  live = 7;

  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_live_trajectories 7"));
}

TEST(MetricsTest, AHandleWithoutRegistryCountsNowhere) {
  Counter().Add();
  Gauge().Set(3);
  Histogram().Observe(1);
  EXPECT_EQ(Counter().value(), 0);
}

TEST(MetricsTest, SeriesThatAreRemovedAreGoneAndTheOthersStay) {
  Registry registry;
  for (const char* job : {"a", "b"}) {
    registry.AddCounter("sluice_queue_accepted_total", "Accepted.", {{"job_id", job}}).Add();
    registry.AddGauge("sluice_queue_slots", "Slots.", {{"job_id", job}, {"state", "used"}}).Set(1);
    registry
        .AddHistogram("sluice_queue_staleness_versions", "Staleness.", Versions(),
                      {{"job_id", job}})
        .Observe(1);
  }

  registry.Remove("job_id", "a");
  EXPECT_THAT(registry.Text(), Not(HasSubstr("job_id=\"a\"")));
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_slots{job_id=\"b\",state=\"used\"} 1"));

  registry.AddCounter("sluice_queue_accepted_total", "Accepted.", {{"job_id", "a"}}).Add(5);
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_accepted_total{job_id=\"a\"} 5"));
}

TEST(MetricsTest, SeriesEndWithTheLastHoldOnTheirLabel) {
  Registry registry;
  std::shared_ptr<void> first = registry.Hold("job_id", "a");
  registry.AddGauge("sluice_queue_slots", "Slots.", {{"job_id", "a"}}).Set(1);
  registry.AddGauge("sluice_queue_slots", "Slots.", {{"job_id", "b"}}).Set(1);
  std::shared_ptr<void> second = registry.Hold("job_id", "a");
  const std::shared_ptr<void> copy = first;
  first.reset();
  second.reset();

  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_slots{job_id=\"a\"} 1"));
}

// A job that fails at once, for instance because a number is not finite, must be seen by the next
// scrape.
TEST(MetricsTest, CountersThatNobodyHoldsAnyMoreEndTenMinutesLaterAndGaugesAtOnce) {
  ManualClock clock;
  Registry registry(&clock);
  {
    const std::shared_ptr<void> held = registry.Hold("job_id", "a");
    registry.AddCounter("sluice_queue_accepted_total", "Accepted.", {{"job_id", "a"}}).Add(3);
    registry.AddCounter("sluice_queue_accepted_total", "Accepted.", {{"job_id", "b"}}).Add(3);
    registry.AddGauge("sluice_queue_slots", "Slots.", {{"job_id", "a"}}).Set(1);
  }

  clock.Advance(Registry::kKept - absl::Seconds(1));
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_accepted_total{job_id=\"a\"} 3"));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("sluice_queue_slots{")));

  clock.Advance(absl::Seconds(1));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("job_id=\"a\"")));
  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_accepted_total{job_id=\"b\"} 3"));
}

TEST(MetricsTest, CountersThatAreHeldAgainGoOn) {
  ManualClock clock;
  Registry registry(&clock);
  const auto count = [&] {
    registry.AddCounter("sluice_queue_accepted_total", "Accepted.", {{"job_id", "a"}}).Add(3);
  };
  std::shared_ptr<void> held = registry.Hold("job_id", "a");
  count();
  held.reset();

  held = registry.Hold("job_id", "a");
  clock.Advance(2 * Registry::kKept);
  count();

  EXPECT_THAT(registry.Text(), HasSubstr("sluice_queue_accepted_total{job_id=\"a\"} 6"));
}

TEST(MetricsTest, DisksAreMeasuredWhileTheirFolderIsKnown) {
  Registry registry;
  std::string folder = "/";
  AddDiskMetrics(&registry, "log", [&] { return folder; });
  const std::string text = registry.Text();
  EXPECT_THAT(text, testing::ContainsRegex("\nsluice_disk_size_bytes.mount=\"log\". [1-9]"));
  EXPECT_THAT(text, HasSubstr("\nsluice_disk_free_bytes{mount=\"log\"} "));

  folder.clear();
  EXPECT_THAT(registry.Text(), Not(HasSubstr("mount")));
}

TEST(MetricsTest, ProcessMetricsAreThere) {
  Registry registry;
  AddProcessMetrics(&registry, "queue", "1.2.3");
  const std::string text = registry.Text();

  EXPECT_THAT(text, HasSubstr("sluice_build_info{role=\"queue\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(text, HasSubstr("process_cpu_seconds_total"));
  EXPECT_THAT(text, Not(HasSubstr("process_resident_memory_bytes 0\n")));
  EXPECT_THAT(text, Not(HasSubstr("process_open_fds 0\n")));
}

// If two scrapes read the CPU time at once, both may add it to the counter. Each reading waits a
// while for another one, so they meet if nothing keeps them apart.
TEST(MetricsTest, ScrapesAtTheSameTimeReadTheCpuTimeOneAfterTheOther) {
  Registry registry;
  AddProcessMetrics(&registry, "queue", "1.2.3");
  const auto scrape = [&] {
    for (int i = 0; i < 20; ++i) registry.Text();
  };
  std::thread other(scrape);
  scrape();
  other.join();

  EXPECT_FALSE(readings_met);
}

}  // namespace
}  // namespace sluice::metrics
