#include "common/sandbox/slot.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/sandbox/bubblewrap.h"
#include "common/sandbox/landlock.h"
#include "common/sandbox/seccomp.h"

namespace sluice::sandbox {
namespace {

constexpr uint32_t kMostSlots = 256;  // On one machine.
constexpr int kWaitMs = 1000;         // For the end of what was killed.

bool IsRoot() { return geteuid() == 0; }

constexpr char kFolderOfRoot[] = "/run/sluice-sandbox";

// The user of slot n is FirstUser() + n. The kernel counts the processes of a user in all
// containers of a machine together, so a container takes users that depend on its own folder, which
// others will hardly take: with a limit of 64 processes, theirs would leave it none.
uid_t FirstUser() {
  constexpr uid_t kOfMachines = 64500, kOfContainers = 1u << 30, kBlocks = 1u << 20;
  constexpr ino_t kInitialPids = 0xEFFFFFFC;  // The kernel's number of the first pid namespace.
  struct stat pids = {}, folder = {};
  uint64_t inside = 0, outside = 0, users = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> users;
  if (stat("/proc/self/ns/pid", &pids) != 0 || pids.st_ino == kInitialPids ||
      stat(kFolderOfRoot, &folder) != 0 || users < uint64_t{kOfContainers} * 2)
    return kOfMachines;
  const std::string id = Sha256(absl::StrCat(folder.st_dev, ":", folder.st_ino));
  uint32_t block = 0;
  std::memcpy(&block, id.data(), sizeof block);
  return kOfContainers + block % kBlocks * kMostSlots;
}

// The folder of the slots' locks and boxes. Only this user may write to it, so nobody else can put
// a link there.
absl::StatusOr<std::string> StateFolder() {
  if (IsRoot()) {
    SLUICE_RETURN_IF_ERROR(MakeDirs(kFolderOfRoot));
    // Kubernetes makes its volumes writable for all.
    if (chmod(kFolderOfRoot, 0755) != 0) return ErrnoStatus(errno, kFolderOfRoot);
    return kFolderOfRoot;
  }
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder = runtime != nullptr && *runtime == '/'
                                 ? absl::StrCat(runtime, "/sluice-sandbox")
                                 : absl::StrCat("/tmp/sluice-sandbox-", geteuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, folder);
  struct stat info = {};
  if (lstat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " is not a folder of this user alone; remove it, as sandboxes need it"));
  }
  return folder;
}

std::string LockPath(const std::string& folder, uint32_t number) {
  return absl::StrCat(folder, "/", number, ".lock");
}
std::string BoxPath(const std::string& folder, uint32_t number) {
  return absl::StrCat(folder, "/", number, ".box");
}

// Locks the file. Not valid: another process holds it.
Fd LockFile(const std::string& path, int flags) {
  Fd lock(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  struct stat locked = {}, there = {};
  // Its last owner may have removed the file meanwhile.
  if (lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0 &&
      fstat(lock.get(), &locked) == 0 && stat(path.c_str(), &there) == 0 &&
      locked.st_ino == there.st_ino)
    return lock;
  return Fd();
}

// Locks the first number that no living process holds.
absl::StatusOr<std::pair<uint32_t, Fd>> LockNumber(const std::string& folder) {
  for (uint32_t number = 0; number < kMostSlots; ++number) {
    Fd lock = LockFile(LockPath(folder, number), O_CREAT);
    if (lock.valid()) return std::make_pair(number, std::move(lock));
  }
  return absl::FailedPreconditionError(absl::StrCat("all ", kMostSlots,
                                                    " sandboxes of this machine are taken, or ",
                                                    folder, " cannot be written to"));
}

void RemoveFolder(const std::string& box) {
  (void)umount2(box.c_str(), MNT_DETACH);
  (void)RemoveTree(box);
}

// 0: no limit. What this process may not exceed itself, it may not allow others.
std::pair<int, rlimit> Limit(int resource, uint64_t value) {
  rlimit own = {};
  (void)getrlimit(static_cast<__rlimit_resource>(resource), &own);
  const rlim_t limit = std::min<rlim_t>(value == 0 ? RLIM_INFINITY : value, own.rlim_max);
  return {resource, {limit, limit}};
}

// With `memory`, no cgroup counts the memory, so that each process has a limit.
std::vector<std::pair<int, rlimit>> LimitsOf(const Limits& limits, bool memory) {
  const uint64_t space = limits.address_space_bytes;
  const uint64_t bytes = !memory      ? space
                         : space == 0 ? limits.memory_bytes
                                      : std::min(space, limits.memory_bytes);
  std::vector<std::pair<int, rlimit>> out = {
      {RLIMIT_CORE, {0, 0}},
      Limit(RLIMIT_AS, bytes),
      Limit(RLIMIT_FSIZE, limits.file_bytes),
      Limit(RLIMIT_STACK, limits.stack_bytes),
      {RLIMIT_MEMLOCK, {0, 0}},
      {RLIMIT_MSGQUEUE, {0, 0}},
      Limit(RLIMIT_NOFILE, limits.open_files),
  };
  return out;
}

// The descriptors of what the binds show. Those that are opened here are kept in `held`.
absl::StatusOr<std::vector<int>> OpenBinds(const std::vector<Bind>& binds, std::vector<Fd>* held) {
  std::vector<int> opened;
  for (const Bind& bind : binds) {
    if (bind.opened == nullptr) {
      held->emplace_back(open(bind.from.c_str(), O_PATH | O_CLOEXEC));
      if (!held->back().valid()) return ErrnoStatus(errno, bind.from);
    }
    opened.push_back(bind.opened == nullptr ? held->back().get() : bind.opened->get());
  }
  return opened;
}

// A file in memory with the filter, as bubblewrap reads it.
absl::StatusOr<Fd> FilterFile(bool network) {
  const std::vector<sock_filter> filter = MakeSeccompFilter(network);
  Fd file(memfd_create("seccomp", MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "memfd_create");
  const absl::string_view bytes(reinterpret_cast<const char*>(filter.data()),
                                filter.size() * sizeof filter[0]);
  SLUICE_RETURN_IF_ERROR(WriteAll(file.get(), bytes, "memfd"));
  if (lseek(file.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, "lseek");
  return file;
}

}  // namespace

std::string CgroupName(const std::string& folder, uint32_t number) {
  struct stat info = {};
  (void)stat(folder.c_str(), &info);
  return absl::StrCat("sluice-sandbox-", info.st_dev, "-", info.st_ino, "-", number);
}

void EndLeftovers() {
  const absl::StatusOr<std::string> folder = StateFolder();
  if (!folder.ok()) return;
  for (uint32_t number = 0; number < kMostSlots; ++number) {
    // A slot that was given back has no file.
    const std::string path = LockPath(*folder, number);
    const Fd lock = LockFile(path, 0);
    if (!lock.valid()) continue;
    if (IsRoot()) (void)KillAllOf(FirstUser() + number);
    (void)Cgroup::Make(CgroupName(*folder, number));
    RemoveFolder(BoxPath(*folder, number));
    (void)unlink(path.c_str());
  }
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::Acquire(Tier tier) {
  SLUICE_ASSIGN_OR_RETURN(const std::string folder, StateFolder());
  SLUICE_ASSIGN_OR_RETURN(auto locked, LockNumber(folder));
  std::unique_ptr<Slot> slot(new Slot(tier, locked.first, folder, std::move(locked.second)));
  slot->box_ = BoxPath(folder, locked.first);
  SLUICE_RETURN_IF_ERROR(slot->Prepare());
  return slot;
}

Slot::Slot(Tier tier, uint32_t number, std::string folder, Fd lock)
    : tier_(tier),
      number_(number),
      folder_(std::move(folder)),
      lock_(std::move(lock)),
      thread_([this] { Loop(); }) {}

Slot::~Slot() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
  // The thread has left the cgroup now.
  cgroup_.reset();
  RemoveFolder(box_);
  (void)unlink(LockPath(folder_, number_).c_str());
}

absl::Status Slot::Prepare() {
  if (IsRoot() && tier_ != Tier::kUnsafe) {
    user_ = FirstUser() + number_;
    if (KillAllOf(*user_) == Left::kProcesses) {
      return absl::FailedPreconditionError(absl::StrCat("processes of user ", *user_,
                                                        " do not end, or this process may not "
                                                        "change its user"));
    }
  }
  RemoveFolder(box_);
  if (tier_ == Tier::kLandlock && !user_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "only root can give each sandbox a user of its own, and this is user ", geteuid()));
  }
  if (tier_ != Tier::kNamespaces) return absl::OkStatus();

  SLUICE_ASSIGN_OR_RETURN(cgroup_, Cgroup::Make(CgroupName(folder_, number_)));
  absl::Status entered;
  RunOnThread([&] { entered = cgroup_->EnterThread(); });
  if (!entered.ok())
    return absl::FailedPreconditionError(absl::StrCat("cgroup: ", entered.message()));
  return absl::OkStatus();
}

void Slot::RunOnThread(const std::function<void()>& work) {
  MutexLock lock(&mu_);
  work_ = &work;
  changed_.NotifyAll();
  while (work_ != nullptr) changed_.Wait(&mu_);
}

void Slot::Loop() {
  pthread_setname_np(pthread_self(), "sandbox");
  MutexLock lock(&mu_);
  while (!stopped_) {
    if (work_ != nullptr) {
      (*work_)();
      work_ = nullptr;
      changed_.NotifyAll();
    } else {
      changed_.Wait(&mu_);
    }
  }
}

absl::Status Slot::MakeBox(uint64_t bytes) {
  RemoveFolder(box_);
  if (mkdir(box_.c_str(), 0700) != 0) return ErrnoStatus(errno, box_);
  if (user_.has_value()) {
    // Without the right to mount, the limit of its size is that of each file alone.
    (void)mount("tmpfs", box_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV,
                absl::StrCat("mode=0700,size=", bytes).c_str());
    if (chown(box_.c_str(), *user_, *user_) != 0) return ErrnoStatus(errno, box_);
  }
  return absl::OkStatus();
}

absl::StatusOr<SpawnPlan> Slot::Plan(const Command& command, const std::string& bubblewrap,
                                     const BubblewrapParts& parts, const int (&stdio)[3],
                                     std::vector<Fd>* held) {
  SpawnPlan plan;
  std::copy(std::begin(stdio), std::end(stdio), plan.stdio);
  plan.user = user_;
  plan.limits = LimitsOf(command.limits, cgroup_ == nullptr && tier_ != Tier::kUnsafe);

  if (HasNamespaces(tier_)) {
    SLUICE_ASSIGN_OR_RETURN(Fd filter, FilterFile(command.network));
    plan.passed = {filter.get()};
    held->push_back(std::move(filter));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<int> shown, OpenBinds(command.binds, held));
    plan.passed.insert(plan.passed.end(), shown.begin(), shown.end());
    // The environment of bubblewrap itself can be read inside, so it is empty.
    plan.argv = BubblewrapCommand(bubblewrap, parts, cgroup_ == nullptr, command);
    if (cgroup_ == nullptr) return plan;
    SLUICE_RETURN_IF_ERROR(cgroup_->SetLimits(command.limits));
    plan.cgroup = cgroup_->clone_fd();
    return plan;
  }

  SLUICE_RETURN_IF_ERROR(MakeBox(command.limits.box_bytes));
  plan.folder = box_;
  plan.argv = command.argv;
  for (const auto& [name, value] : command.environment)
    plan.environment.push_back(absl::StrCat(name, "=", value));
  if (command.environment.count("PATH") == 0) plan.environment.push_back("PATH=/usr/bin");
  if (command.environment.count("TMPDIR") == 0)
    plan.environment.push_back(absl::StrCat("TMPDIR=", box_));
  if (tier_ == Tier::kUnsafe) return plan;

  for (const Bind& bind : command.binds) {
    if (bind.from == bind.to) continue;
    return absl::InvalidArgumentError(absl::StrCat("sandboxes of tier ", NameOf(tier_),
                                                   " cannot show ", bind.from, " at ", bind.to));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int> readable, OpenBinds(command.binds, held));
  SLUICE_ASSIGN_OR_RETURN(Fd landlock, MakeLandlockRuleset(readable, box_));
  plan.landlock = landlock.get();
  held->push_back(std::move(landlock));
  plan.seccomp = MakeSeccompFilter(command.network);
  plan.limits.push_back(Limit(RLIMIT_NPROC, command.limits.pids));
  return plan;
}

absl::Status Slot::AwaitNoZombies() {
  const absl::Duration end = Clock::Real()->Monotonic() + absl::Milliseconds(5 * kWaitMs);
  while (left_ != Left::kNothing) {
    if (Clock::Real()->Monotonic() >= end) {
      return absl::UnavailableError(
          absl::StrCat("processes of user ", *user_,
                       " have ended, but the first process of this machine or "
                       "container takes no notice; use one that does, such as tini"));
    }
    absl::SleepFor(absl::Milliseconds(10));
    left_ = FindProcessesOf(*user_);
  }
  return absl::OkStatus();
}

absl::StatusOr<Spawned> Slot::Start(const Command& command, const std::string& bubblewrap,
                                    const BubblewrapParts& parts, const int (&stdio)[3]) {
  SLUICE_RETURN_IF_ERROR(AwaitNoZombies());
  std::vector<Fd> held;
  SLUICE_ASSIGN_OR_RETURN(const SpawnPlan plan, Plan(command, bubblewrap, parts, stdio, &held));
  absl::StatusOr<Spawned> spawned = absl::InternalError("not started");
  RunOnThread([&] { spawned = Spawn(plan); });
  return spawned;
}

void Slot::KillNamespace(pid_t bubblewrap, int pidfd) {
  // The only child of bubblewrap is the first process of the namespace: its end is that of all
  // others, and bubblewrap, which waits for it, ends too. It may not have started it yet.
  pollfd wait{pidfd, POLLIN, 0};
  const absl::Duration end = Clock::Real()->Monotonic() + absl::Milliseconds(kWaitMs);
  do {
    for (const pid_t child : ChildrenOf(bubblewrap)) kill(child, SIGKILL);
  } while (poll(&wait, 1, 10) != 1 && Clock::Real()->Monotonic() < end);
  kill(bubblewrap, SIGKILL);
}

bool Slot::Clear(pid_t pid, int pidfd) {
  pollfd wait{pidfd, POLLIN, 0};
  bool empty = true;
  if (cgroup_ != nullptr) {
    // Bubblewrap is spared at first. It waits for the first process of the namespace, whose end is
    // that of all others, and ends itself. An orphan would stay in the process table until the
    // first process of the machine takes notice of it.
    cgroup_->KillAllBut(pid);
    (void)poll(&wait, 1, kWaitMs);
    empty = cgroup_->KillAll(absl::Milliseconds(kWaitMs));
  } else if (tier_ == Tier::kNamespacesAlone) {
    KillNamespace(pid, pidfd);
  } else {
    // The program leads a session; what it started goes with it where there is no better way.
    kill(tier_ == Tier::kUnsafe ? -pid : pid, SIGKILL);
  }
  empty = poll(&wait, 1, kWaitMs) == 1 && empty;
  waitpid(pid, nullptr, WNOHANG);
  // With namespaces the user has no process outside of them.
  if (tier_ == Tier::kLandlock) {
    left_ = KillAllOf(*user_);
    empty = left_ != Left::kProcesses && empty;
  }
  if (!HasNamespaces(tier_)) RemoveFolder(box_);
  return empty;
}

}  // namespace sluice::sandbox
