// Measures what durability costs: small records committed in groups, their delay alone and while
// bulk data flows through the same log, CPU time per GB, and how long a log of 1 GiB takes to read
// back. The baselines of the same run are one fdatasync per record, and a plain file that is
// written and synced in pieces of 4 MiB.
//
//   bench_queue_log [--json] [--dir DIR]
// DIR (default: .) is on the disk to measure and needs 3 GB of free space.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/wal/log.h"
#include "tests/bench/report.h"

namespace sluice::wal {
namespace {

constexpr double kSeconds = 3;
constexpr size_t kSmall = 1024, kBulk = 1 << 20;
constexpr uint64_t kGiB = 1ull << 30;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

Part MakePart(size_t size) {
  auto bytes = std::make_shared<std::string>(size, 'x');
  return {.owner = bytes, .bytes = *bytes, .crc32c = Crc32c(*bytes)};
}

// Counts the bytes of a log that is read back, and keeps nothing.
class DiscardingReplay : public Replay {
 public:
  absl::Status OnSnapshot(Position) override { return absl::OkStatus(); }
  absl::Status OnRecord(Entry entry) override {
    bytes += entry.head.size() + entry.payload.size();
    return absl::OkStatus();
  }
  uint64_t bytes = 0;
};

// A log, and the position up to which it is durable. Any failure aborts. With `snapshots`, empty
// snapshots keep the log short.
class Bench {
 public:
  explicit Bench(const std::string& dir, bool snapshots = true) : snapshots_(snapshots) {
    DiscardingReplay replay;
    auto log = Log::Open({}, dir, &replay);
    SLUICE_CHECK_MSG(log.ok(), log.status().ToString());
    log_ = *std::move(log);
    log_->Start(
        {.on_durable =
             [this](Position position) {
               MutexLock lock(&mu_);
               durable_ = position;
               changed_.NotifyAll();
             },
         .on_fatal =
             [](const absl::Status& status) { SLUICE_CHECK_MSG(false, status.ToString()); }});
  }

  // Appends `record` over and over until `stop` returns true, with at most `outstanding` records
  // that are not durable. Adds the delay of each to `delays`, unless that is null, and returns how
  // many it appended.
  uint64_t AppendUntil(const Record& record, size_t outstanding, const std::function<bool()>& stop,
                       std::vector<double>* delays) {
    std::deque<std::pair<Position, double>> waiting;
    uint64_t count = 0;
    while (true) {
      const bool stopping = stop();
      if (stopping && waiting.empty()) return count;
      while (!stopping && waiting.size() < outstanding) {
        const double start = Seconds();
        waiting.emplace_back(log_->Append(record), start);
      }

      Position durable;
      {
        MutexLock lock(&mu_);
        while (durable_ < waiting.front().first) changed_.Wait(&mu_);
        durable = durable_;
      }

      const double now = Seconds();
      for (; !waiting.empty() && waiting.front().first <= durable; waiting.pop_front(), ++count) {
        if (delays != nullptr) delays->push_back(now - waiting.front().second);
      }
      if (snapshots_ && log_->BytesSinceSnapshot() > kGiB / 2) log_->Snapshot({}, nullptr);
    }
  }
  Log* log() { return log_.get(); }

 private:
  const bool snapshots_;
  std::unique_ptr<Log> log_;
  Mutex mu_;
  CondVar changed_;
  Position durable_ ABSL_GUARDED_BY(mu_) = 0;
};

// Writes pieces of `size` bytes to a pre-allocated file, each followed by fdatasync. Returns the
// delay of each, in seconds.
std::vector<double> WritePlainFile(const std::string& path, size_t size, double seconds) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  SLUICE_CHECK(fd >= 0 && posix_fallocate(fd, 0, kGiB) == 0);
  const std::string bytes(size, 'x');
  std::vector<double> delays;
  uint64_t offset = 0;

  for (const double end = Seconds() + seconds; Seconds() < end; offset = (offset + size) % kGiB) {
    const double start = Seconds();
    SLUICE_CHECK(pwrite(fd, bytes.data(), size, static_cast<off_t>(offset)) ==
                     static_cast<ssize_t>(size) &&
                 fdatasync(fd) == 0);
    delays.push_back(Seconds() - start);
  }

  close(fd);
  unlink(path.c_str());
  return delays;
}

std::function<bool()> StopAfter(double seconds) {
  return [end = Seconds() + seconds] { return Seconds() > end; };
}

void MeasureSmall(const bench::Report& report, const std::string& dir) {
  const std::vector<double> alone = WritePlainFile(dir + "/plain", kSmall, kSeconds);
  const double per_second = static_cast<double>(alone.size()) / kSeconds;
  const Record record{.type = 1, .head = std::string(64, 'h'), .payload = {MakePart(kSmall - 64)}};
  Bench bench(dir + "/small");

  for (const size_t outstanding : {1, 16, 256}) {
    std::vector<double> delays;
    const double start = Seconds();
    const uint64_t count = bench.AppendUntil(record, outstanding, StopAfter(kSeconds), &delays);
    const int runs = static_cast<int>(count);
    const std::string name = absl::StrCat("queue_log_1k_", outstanding, "_waiting");
    report.Add({.name = name + "_per_second",
                .value = static_cast<double>(count) / (Seconds() - start),
                .unit = "1/s",
                .baseline = per_second,
                .runs = runs});
    report.Add({.name = name + "_p50_seconds",
                .value = bench::Quantile(delays, 0.5),
                .unit = "s",
                .baseline = bench::Quantile(alone, 0.5),
                .runs = runs});
    report.Add({.name = name + "_p99_seconds",
                .value = bench::Quantile(delays, 0.99),
                .unit = "s",
                .baseline = bench::Quantile(alone, 0.99),
                .runs = runs});
  }
}

void MeasureBulk(const bench::Report& report, const std::string& dir) {
  const double plain_cpu = CpuSeconds();
  const double plain_bytes =
      static_cast<double>(WritePlainFile(dir + "/plain", 4 << 20, kSeconds).size() * (4 << 20));
  const double plain_cpu_per_gb = (CpuSeconds() - plain_cpu) / (plain_bytes / 1e9);

  const Record small{.type = 1, .head = std::string(64, 'h'), .payload = {MakePart(kSmall - 64)}};
  const Record bulk{.type = 2, .head = std::string(64, 'h'), .payload = {MakePart(kBulk)}};
  Bench bench(dir + "/bulk");

  // This first run leaves segments in the folder, which the measurement uses again.
  (void)bench.AppendUntil(bulk, 8, StopAfter(1), nullptr);
  std::vector<double> delays;
  uint64_t bulk_count = 0;
  const auto stop = StopAfter(kSeconds);
  const double start = Seconds(), cpu = CpuSeconds();
  std::thread flow([&] { bulk_count = bench.AppendUntil(bulk, 8, stop, nullptr); });
  const uint64_t count = bench.AppendUntil(small, 1, stop, &delays);
  flow.join();
  const double bytes = static_cast<double>(bulk_count * kBulk + count * kSmall),
               seconds = Seconds() - start;
  const int runs = static_cast<int>(count);
  report.Add({.name = "queue_log_bulk_bytes_per_second",
              .value = bytes / seconds,
              .unit = "B/s",
              .baseline = plain_bytes / kSeconds,
              .runs = static_cast<int>(bulk_count)});
  report.Add({.name = "queue_log_bulk_cpu_seconds_per_gb",
              .value = (CpuSeconds() - cpu) / (bytes / 1e9),
              .unit = "s/GB",
              .baseline = plain_cpu_per_gb});
  report.Add({.name = "queue_log_1k_beside_bulk_p50_seconds",
              .value = bench::Quantile(delays, 0.5),
              .unit = "s",
              .runs = runs});
  report.Add({.name = "queue_log_1k_beside_bulk_p99_seconds",
              .value = bench::Quantile(delays, 0.99),
              .unit = "s",
              .runs = runs});
}

void MeasureRecovery(const bench::Report& report, const std::string& dir) {
  for (const size_t size : {kBulk, kSmall}) {
    const std::string log = absl::StrCat(dir, "/recover-", size);
    {
      const Record record{
          .type = 2, .head = std::string(64, 'h'), .payload = {MakePart(size - 64)}};
      Bench bench(log, false);
      (void)bench.AppendUntil(
          record, 8 * kBulk / size,
          [&] { return bench.log()->stats().bytes_since_snapshot >= kGiB; }, nullptr);
    }

    DiscardingReplay replay;
    const double start = Seconds();
    auto opened = Log::Open({}, log, &replay);
    const double seconds = Seconds() - start;

    SLUICE_CHECK_MSG(opened.ok(), opened.status().ToString());
    SLUICE_CHECK(replay.bytes > kGiB / 10 * 9);

    report.Add({.name = absl::StrCat("queue_log_recovery_1gib_of_", size == kBulk ? "1m" : "1k",
                                     "_seconds"),
                .value = seconds,
                .unit = "s"});
    opened->reset();
    SLUICE_CHECK(RemoveTree(log).ok());
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Measures what the queue's log costs: small records, bulk payload, recovery.");
  bool json = false;
  std::string parent = ".";
  app.add_option("--dir", parent,
                 "directory on the disk to measure; the logs are written into a folder in it")
      ->capture_default_str();
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  const std::string dir = absl::StrCat(parent, "/sluice-bench-log-", getpid());
  SLUICE_CHECK(MakeDirs(dir).ok());
  const bench::Report report(json);
  MeasureSmall(report, dir);
  MeasureBulk(report, dir);
  MeasureRecovery(report, dir);
  SLUICE_CHECK(RemoveTree(dir).ok());

  return 0;
}
}  // namespace
}  // namespace sluice::wal

int main(int argc, char** argv) { return sluice::wal::Main(argc, argv); }
