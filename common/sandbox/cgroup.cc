#include "common/sandbox/cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::sandbox {
namespace {

// Where the process stands in one hierarchy.
struct Hierarchy {
  std::vector<std::string> controllers;  // Empty for version 2.
  std::string folder;
};

// Files of cgroups and of /proc have the size 0, so they are read to their end.
std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Status WriteText(const std::string& path, absl::string_view text) {
  const Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return ErrnoStatus(errno, absl::StrCat("write ", text, " to ", path));
  return absl::OkStatus();
}

// The cgroups of this process, from its lines in /proc/self/cgroup (ID:CONTROLLERS:PATH) and the
// places at which their hierarchies are mounted.
std::vector<Hierarchy> FindHierarchies() {
  std::vector<Hierarchy> out;
  const std::string mounts = ReadText("/proc/self/mountinfo");
  const std::string cgroups = ReadText("/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(cgroups, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    Hierarchy hierarchy;
    hierarchy.controllers = absl::StrSplit(parts[1], ',', absl::SkipEmpty());

    // A line of mountinfo: id, parent, device, root, mount point, .. - type, source, options.
    for (const absl::string_view mount : absl::StrSplit(mounts, '\n', absl::SkipEmpty())) {
      const std::vector<absl::string_view> halves = absl::StrSplit(mount, " - ");
      if (halves.size() != 2) continue;
      const std::vector<absl::string_view> where = absl::StrSplit(halves[0], ' ');
      const std::vector<absl::string_view> what = absl::StrSplit(halves[1], ' ');
      if (where.size() < 5 || what.size() < 3) continue;
      const std::vector<absl::string_view> options = absl::StrSplit(what[2], ',');
      const bool same =
          parts[1].empty()
              ? what[0] == "cgroup2"
              : what[0] == "cgroup" && absl::c_linear_search(options, hierarchy.controllers[0]);
      if (!same) continue;
      absl::string_view path = parts[2];
      if (where[3] != "/") absl::ConsumePrefix(&path, where[3]);
      hierarchy.folder = absl::StrCat(where[4], absl::StripSuffix(path, "/"));
    }
    if (!hierarchy.folder.empty()) out.push_back(std::move(hierarchy));
  }
  return out;
}

std::string FolderOf(const std::vector<Hierarchy>& hierarchies, absl::string_view controller) {
  for (const Hierarchy& hierarchy : hierarchies) {
    if (absl::c_linear_search(hierarchy.controllers, controller)) return hierarchy.folder;
  }
  return "";
}

// Where the processes of this cgroup go, so that it may give controllers to others: in version 2
// only cgroups without processes may.
constexpr char kDaemonLeaf[] = "sluice-daemon";

absl::Status Delegate(const std::string& own) {
  const std::string control = absl::StrCat(own, "/cgroup.subtree_control");
  if (WriteText(control, "+memory +pids").ok()) return absl::OkStatus();
  const std::string leaf = absl::StrCat(own, "/", kDaemonLeaf);
  if (mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoStatus(errno, leaf);
  SLUICE_RETURN_IF_ERROR(WriteText(absl::StrCat(leaf, "/cgroup.procs"), "0"));
  return Annotate(WriteText(control, "+memory +pids"),
                  "controllers cannot be given to sandboxes, perhaps because other processes share "
                  "the daemon's cgroup");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cgroup>> Cgroup::Make(const std::string& name) {
  const std::vector<Hierarchy> hierarchies = FindHierarchies();
  const std::string memory = FolderOf(hierarchies, "memory"), pids = FolderOf(hierarchies, "pids");
  auto cgroup = absl::WrapUnique(new Cgroup);
  absl::Status made = absl::NotFoundError("no hierarchy with memory and pids is mounted");
  if (!memory.empty() && !pids.empty()) {
    made = cgroup->MakeV1(name, memory, pids, FolderOf(hierarchies, "cpu"));
  } else {
    for (const Hierarchy& hierarchy : hierarchies) {
      if (hierarchy.controllers.empty()) made = cgroup->MakeV2(name, hierarchy.folder);
    }
  }
  if (made.ok()) return cgroup;
  return absl::FailedPreconditionError(absl::StrCat("no cgroup: ", made.message()));
}

absl::Status Cgroup::MakeV1(const std::string& name, const std::string& memory,
                            const std::string& pids, const std::string& cpu) {
  memory_ = absl::StrCat(memory, "/", name);
  pids_ = absl::StrCat(pids, "/", name);
  SLUICE_RETURN_IF_ERROR(MakeFolders());
  const std::string cpu_folder = absl::StrCat(cpu, "/", name);
  if (!cpu.empty() && (mkdir(cpu_folder.c_str(), 0755) == 0 || errno == EEXIST)) cpu_ = cpu_folder;
  return absl::OkStatus();
}

absl::Status Cgroup::MakeV2(const std::string& name, const std::string& own) {
  const std::string base(absl::StripSuffix(own, absl::StrCat("/", kDaemonLeaf)));
  SLUICE_RETURN_IF_ERROR(Delegate(base));
  v2_ = true;
  memory_ = pids_ = absl::StrCat(base, "/", name);
  // This controller may be missing; the folder shows whether it is there.
  (void)WriteText(absl::StrCat(base, "/cgroup.subtree_control"), "+cpu");
  SLUICE_RETURN_IF_ERROR(MakeFolders());
  if (PathExists(absl::StrCat(pids_, "/cpu.max"))) cpu_ = pids_;
  clone_into_ = Fd(open(pids_.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC));
  return clone_into_.valid() ? absl::OkStatus() : ErrnoStatus(errno, pids_);
}

absl::Status Cgroup::MakeFolders() {
  for (const std::string& folder : {memory_, pids_}) {
    if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoStatus(errno, folder);
  }
  if (!KillAll(absl::Seconds(1)))
    return absl::FailedPreconditionError(absl::StrCat(pids_, " holds processes that do not end"));
  return absl::OkStatus();
}

Cgroup::~Cgroup() {
  // The kernel lets go of a thread that has just ended a little later.
  const absl::Duration end = Clock::Real()->Monotonic() + absl::Seconds(1);
  for (const std::string& folder : {memory_, pids_, cpu_}) {
    if (folder.empty()) continue;
    while (rmdir(folder.c_str()) != 0 && errno == EBUSY && Clock::Real()->Monotonic() < end)
      absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Status Cgroup::SetLimits(const Limits& limits) {
  const std::string memory = absl::StrCat(limits.memory_bytes);
  constexpr int64_t kPeriodUs = 100000;
  const int64_t quota = std::llround(limits.cores * kPeriodUs);
  // The entered thread counts as well.
  const uint32_t pids = limits.pids + (entered_ != 0 ? 1 : 0);
  SLUICE_RETURN_IF_ERROR(WriteText(absl::StrCat(pids_, "/pids.max"), absl::StrCat(pids)));

  if (v2_) {
    SLUICE_RETURN_IF_ERROR(WriteText(absl::StrCat(memory_, "/memory.max"), memory));
    if (const std::string swap = absl::StrCat(memory_, "/memory.swap.max"); PathExists(swap))
      SLUICE_RETURN_IF_ERROR(WriteText(swap, "0"));
    if (cpu_.empty()) return absl::OkStatus();
    return WriteText(
        absl::StrCat(cpu_, "/cpu.max"),
        absl::StrCat(quota > 0 ? absl::StrCat(quota) : std::string("max"), " ", kPeriodUs));
  }

  // The limit with swap may not be the lower one, so which is written first depends on the change.
  const std::string plain = absl::StrCat(memory_, "/memory.limit_in_bytes");
  const std::string with_swap = absl::StrCat(memory_, "/memory.memsw.limit_in_bytes");
  const bool swap = PathExists(with_swap);
  if (swap) (void)WriteText(with_swap, "-1");
  SLUICE_RETURN_IF_ERROR(WriteText(plain, memory));
  if (swap) SLUICE_RETURN_IF_ERROR(WriteText(with_swap, memory));
  if (cpu_.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      WriteText(absl::StrCat(cpu_, "/cpu.cfs_period_us"), absl::StrCat(kPeriodUs)));
  return WriteText(absl::StrCat(cpu_, "/cpu.cfs_quota_us"),
                   quota > 0 ? absl::StrCat(quota) : std::string("-1"));
}

absl::Status Cgroup::EnterThread() {
  if (v2_) return absl::OkStatus();
  entered_ = gettid();
  for (const std::string& folder : {memory_, pids_, cpu_}) {
    if (!folder.empty())
      SLUICE_RETURN_IF_ERROR(WriteText(absl::StrCat(folder, "/tasks"), absl::StrCat(entered_)));
  }
  return absl::OkStatus();
}

std::vector<pid_t> Cgroup::Tasks() const {
  std::vector<pid_t> tasks;
  const std::string text = ReadText(absl::StrCat(pids_, v2_ ? "/cgroup.procs" : "/tasks"));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    pid_t task = 0;
    if (absl::SimpleAtoi(line, &task) && task > 0 && task != entered_) tasks.push_back(task);
  }
  return tasks;
}

void Cgroup::KillAllBut(pid_t spared) {
  for (const pid_t task : Tasks()) {
    if (task != spared) kill(task, SIGKILL);
  }
}

bool Cgroup::KillAll(absl::Duration within) {
  const absl::Duration end = Clock::Real()->Monotonic() + within;
  while (true) {
    const std::vector<pid_t> tasks = Tasks();
    if (tasks.empty()) return true;
    for (const pid_t task : tasks) kill(task, SIGKILL);
    if (Clock::Real()->Monotonic() >= end) return false;
    absl::SleepFor(absl::Microseconds(200));
  }
}

}  // namespace sluice::sandbox
