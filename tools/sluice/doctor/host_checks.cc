// Checks of the host itself.

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/cores/usable_cores.h"
#include "tools/sluice/doctor/checks.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

// The files below are of the kernel and small, and their size is not known before they are read.
std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Finding CheckKernel(const DoctorInputs& in) {
  const std::string release(
      absl::StripAsciiWhitespace(ReadKernelFile(in.proc + "/sys/kernel/osrelease")));
  int major = 0, minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2)
    return Warn(absl::StrCat("'", release, "' is no version of a Linux kernel"),
                "run on Linux 5.6 or newer");

  // openat2() confines the files of jobs to their roots (common/base/roots.h).
  if (major > 5 || (major == 5 && minor >= 6)) return Pass(absl::StrCat("Linux ", release));
  return Fail(absl::StrCat("Linux ", release, " has no openat2(), which Linux has from 5.6 on"),
              "install Linux 5.6 or newer; with an older one, daemons refuse --read-root and "
              "--write-root");
}

Finding CheckCpu(const DoctorInputs& in) {
  const std::string text = ReadKernelFile(in.proc + "/cpuinfo");
  std::vector<absl::string_view> flags;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, "flags") || line.find(':') == line.npos) continue;
    flags = absl::StrSplit(line.substr(line.find(':') + 1), ' ', absl::SkipEmpty());
    break;
  }
  const auto has = [&](absl::string_view flag) {
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };

  const std::string cores = absl::StrCat(UsableCores(), " cores for this process");
  if (has("avx512f") && has("avx512bw") && has("avx512vl") && has("avx512dq"))
    return Pass(absl::StrCat(cores, ", AVX-512"));
  if (has("avx2") && has("fma")) return Pass(absl::StrCat(cores, ", AVX2"));
  return Warn(absl::StrCat(cores, ", without AVX2: the kernels compute several times slower"),
              "use hosts with AVX2 for rollouts and trainers");
}

// The lowest memory limit of the cgroups that this process is in, or nothing if there is none.
std::optional<uint64_t> MemoryLimit(const DoctorInputs& in) {
  std::optional<uint64_t> lowest;
  for (const absl::string_view line :
       absl::StrSplit(ReadKernelFile(in.proc + "/self/cgroup"), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool v2 = parts[1].empty();
    if (!v2 && parts[1] != "memory") continue;
    const std::string root = v2 ? in.cgroup : in.cgroup + "/memory";
    const char* const file = v2 ? "/memory.max" : "/memory.limit_in_bytes";

    // A limit of a cgroup above holds too.
    std::string path = parts[2] == "/" ? "" : parts[2];
    for (;;) {
      uint64_t limit = 0;
      if (absl::SimpleAtoi(ReadKernelFile(root + path + file), &limit))
        lowest = std::min(lowest.value_or(limit), limit);
      if (path.empty()) break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return lowest;
}

Finding CheckMemory(const DoctorInputs& in) {
  constexpr uint64_t kLeast = 256 << 20, kUsual = uint64_t{2} << 30;
  uint64_t available = 0;
  for (const absl::string_view line : absl::StrSplit(ReadKernelFile(in.proc + "/meminfo"), '\n')) {
    absl::string_view value = line;
    if (!absl::ConsumePrefix(&value, "MemAvailable:")) continue;
    absl::ConsumeSuffix(&value, "kB");
    if (absl::SimpleAtoi(value, &available)) available *= 1024;
  }
  if (available == 0)
    return Warn(absl::StrCat(in.proc, "/meminfo has no MemAvailable"), "run on Linux");

  const std::optional<uint64_t> limit = MemoryLimit(in);
  // Without a limit, cgroups of version 1 show a number larger than any memory.
  const bool limited = limit && *limit < available;
  const uint64_t usable = limited ? *limit : available;
  const std::string found =
      limited ? absl::StrCat("the cgroup of this process may use ", ShortBytes(usable))
              : absl::StrCat(ShortBytes(usable), " are available");
  const std::string fix = limited ? "raise the memory limit of the cgroup or container"
                                  : "end other programs, or use a host with more memory";
  if (usable < kLeast)
    return Fail(absl::StrCat(found, ", but a fleet needs ", ShortBytes(kLeast)), fix);
  if (usable < kUsual)
    return Warn(absl::StrCat(found, "; below ", ShortBytes(kUsual), " only tiny models fit"), fix);
  return Pass(found);
}

Finding CheckOpenFiles(const DoctorInputs&) {
  constexpr rlim_t kLeast = 1024, kUsual = 4096;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return Warn(absl::StrCat("the limit of open files cannot be read: ", std::strerror(errno)), "");
  const std::string found = absl::StrCat("at most ", limit.rlim_cur, " open files");
  const std::string fix = absl::StrCat(
      "`ulimit -n ", kUsual, "` before the daemons start, or LimitNOFILE=", kUsual,
      " of their unit",
      limit.rlim_max < kUsual
          ? absl::StrCat("; the hard limit ", limit.rlim_max, " must be raised first (limits.conf)")
          : "");
  if (limit.rlim_cur < kLeast)
    return Fail(absl::StrCat(found, ", but a daemon may need ", kLeast), fix);
  if (limit.rlim_cur < kUsual && limit.rlim_max < kUsual)
    return Warn(absl::StrCat(found, "; a queue of a large fleet needs ", kUsual), fix);
  return Pass(found);
}

Finding CheckShm(const DoctorInputs& in) {
  constexpr uint64_t kLeast = 16 << 20;
  struct statvfs stat{};
  if (statvfs(in.shm.c_str(), &stat) != 0)
    return Fail(absl::StrCat(in.shm, ": ", std::strerror(errno)),
                absl::StrCat("mount a tmpfs at ", in.shm));
  const uint64_t free = uint64_t{stat.f_bavail} * stat.f_frsize;
  const std::string found = absl::StrCat(in.shm, " has ", ShortBytes(free), " free");
  if (free >= kLeast) return Pass(found);
  return Fail(
      absl::StrCat(found, ", but OpenMP and collectives of LibTorch keep files there and may need ",
                   ShortBytes(kLeast)),
      absl::StrCat("remove files of it, or enlarge it with `mount -o remount,size=1g ", in.shm,
                   "`; in a container: --shm-size=1g, or an emptyDir in memory"));
}

Finding CheckClock(const DoctorInputs& in) {
  // This source was written after this time, so an earlier clock is wrong.
  const absl::Time least = absl::FromCivil(absl::CivilSecond(2025, 1, 1), absl::UTCTimeZone());
  const std::string now = absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", in.now, absl::UTCTimeZone());
  if (in.now >= least) return Pass(now);
  return Fail(absl::StrCat("the clock says ", now, ": certificates are then not valid yet"),
              "set the clock, and run chrony or systemd-timesyncd");
}

}  // namespace

std::vector<DoctorCheck> HostChecks() {
  return {{"host", "kernel", "the kernel has the calls that daemons need", CheckKernel},
          {"host", "cpu", "the CPU has the instructions that make kernels fast", CheckCpu},
          {"host", "memory", "memory is available, also by the limit of the cgroup", CheckMemory},
          {"host", "open_files", "a daemon may open enough files", CheckOpenFiles},
          {"host", "shm", "there is space for shared memory", CheckShm},
          {"host", "clock", "the clock is not in the past", CheckClock}};
}

}  // namespace sluice::cli
