#include <dirent.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>

#include "common/base/mutex.h"
#include "common/metrics/metrics.h"

namespace sluice::metrics {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double ResidentBytes() {
  long long size = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lld %lld", &size, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int count = -3;  // Not counted: ".", ".." and the directory itself.
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace

void AddProcessMetrics(Registry* registry, absl::string_view role, absl::string_view version) {
  registry
      ->AddGauge("sluice_build_info",
                 "Always 1. The labels give the role and the version of the process.",
                 {{"role", std::string(role)}, {"version", std::string(version)}})
      .Set(1);
  registry->AddGauge("sluice_start_timestamp_seconds", "When the process started.")
      .Set(static_cast<double>(std::time(nullptr)));
  const Counter cpu = registry->AddCounter("process_cpu_seconds_total", "User and system time.");
  const Gauge resident = registry->AddGauge("process_resident_memory_bytes", "Memory in RAM.");
  const Gauge files = registry->AddGauge("process_open_fds", "Open file descriptors.");
  // Scrapes may come at the same time. Without the lock, two of them could add the same CPU time.
  const auto cpu_lock = std::make_shared<Mutex>();
  registry->BeforeCollect([=] {
    {
      MutexLock lock(cpu_lock.get());
      if (const double more = CpuSeconds() - cpu.value(); more > 0) cpu.Add(more);
    }
    resident.Set(ResidentBytes());
    files.Set(OpenFiles());
  });
}

void AddDiskMetrics(Registry* registry, absl::string_view mount,
                    std::function<std::string()> folder) {
  const std::string name(mount);
  // Without the lock, one of two scrapes could remove a gauge that the other one sets.
  const auto lock = std::make_shared<Mutex>();
  registry->BeforeCollect([=] {
    MutexLock held(lock.get());
    struct statvfs disk{};
    const std::string path = folder();
    if (path.empty() || statvfs(path.c_str(), &disk) != 0) return registry->Remove("mount", name);

    const auto set = [&](const char* metric, const char* help, auto blocks) {
      registry->AddGauge(metric, help, {{"mount", name}})
          .Set(static_cast<double>(blocks) * static_cast<double>(disk.f_frsize));
    };
    set("sluice_disk_free_bytes", "Free space on the disk of the folder.", disk.f_bavail);
    set("sluice_disk_size_bytes", "Size of the disk of the folder.", disk.f_blocks);
  });
}

}  // namespace sluice::metrics
