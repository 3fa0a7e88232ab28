#include "common/cores/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

constexpr double kNoQuota = 1e9;

// The kernel reports no size for these files, so they are read line by line.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double QuotaOver(absl::string_view quota, absl::string_view period) {
  double time = 0, per = 0;
  const bool limited = absl::SimpleAtod(quota, &time) && absl::SimpleAtod(period, &per);
  return limited && time > 0 && per > 0 ? time / per : kNoQuota;
}

// The CPU time that the cgroup in `dir` may use, in cores; kNoQuota if it has no limit. Version 2
// of cgroups has one file for quota and period, version 1 has two.
double QuotaIn(const std::string& dir) {
  const std::pair<std::string, std::string> max =
      absl::StrSplit(FirstLine(dir + "/cpu.max"), absl::MaxSplits(' ', 1));
  return std::min(
      QuotaOver(max.first, max.second),
      QuotaOver(FirstLine(dir + "/cpu.cfs_quota_us"), FirstLine(dir + "/cpu.cfs_period_us")));
}

// Whether a hierarchy of cgroups version 1, given by its comma-separated controllers, limits CPU
// time.
bool LimitsCpu(absl::string_view controllers) {
  for (const absl::string_view name : absl::StrSplit(controllers, ',')) {
    if (name == "cpu") return true;
  }
  return false;
}

// The least quota of the cgroup at `path` and of all cgroups above it. A container often finds the
// files of its own cgroup directly under `mount`, whatever `path` says, so those count too.
double LeastQuota(const std::string& mount, absl::string_view path) {
  double least = QuotaIn(mount);
  std::string dir = mount;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    absl::StrAppend(&dir, "/", part);
    least = std::min(least, QuotaIn(dir));
  }
  return least;
}

}  // namespace

int UsableCores(const CoreSources& sources) {
  cpu_set_t mask;
  int cores = sched_getaffinity(0, sizeof mask, &mask) == 0
                  ? CPU_COUNT(&mask)
                  : static_cast<int>(std::thread::hardware_concurrency());

  // A line has the form "ID:CONTROLLERS:PATH". Version 2 has ID 0 and no controllers.
  std::ifstream cgroups(sources.cgroup);
  for (std::string line; std::getline(cgroups, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    double quota = kNoQuota;
    if (fields[1].empty()) quota = LeastQuota(sources.mount, fields[2]);
    else if (LimitsCpu(fields[1]))
      quota = LeastQuota(absl::StrCat(sources.mount, "/", fields[1]), fields[2]);
    // A quota of 1.5 cores counts as two: with one thread, a third of the CPU time would be lost.
    cores = std::min(cores, static_cast<int>(std::ceil(std::min(quota, kNoQuota))));
  }
  return std::max(1, cores);
}

}  // namespace sluice
