#include <signal.h>
#include <sys/wait.h>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/pipe.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/sandbox/next_step.h"
#include "common/sandbox/sandbox.h"
#include "common/sandbox/slot.h"

namespace sluice::sandbox {
namespace {

constexpr absl::Duration kSelfTest = absl::Seconds(10);
constexpr char kTrue[] = "/usr/bin/true";

absl::Status CheckCommand(const Command& command) {
  if (command.argv.empty() || !absl::StartsWith(command.argv[0], "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sandbox needs the absolute path of a program, not \"",
                     command.argv.empty() ? "" : command.argv[0], "\""));
  }
  for (const Bind& bind : command.binds) {
    if (absl::StartsWith(bind.from, "/") && absl::StartsWith(bind.to, "/")) continue;
    return absl::InvalidArgumentError(absl::StrCat("a sandbox cannot show ", bind.from, " at ",
                                                   bind.to, ": both paths must be absolute"));
  }
  return absl::OkStatus();
}

// What the program has written to its standard error so far, up to 1 KiB.
std::string ReadSome(int fd) {
  char text[1024];
  const ssize_t got = read(fd, text, sizeof text);
  return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
}

}  // namespace

absl::string_view NameOf(Tier tier) {
  const absl::string_view text = Describe(tier);
  return text.substr(0, text.find(':'));
}

absl::string_view Describe(Tier tier) {
  switch (tier) {
    case Tier::kNamespaces: return "T1: namespaces, a seccomp filter and a cgroup";
    case Tier::kNamespacesAlone:
      return "T1b: namespaces, a seccomp filter and limits for each process";
    case Tier::kLandlock:
      return "T1b: users of their own, a seccomp filter, Landlock and limits for each process";
    case Tier::kUnsafe: break;
  }
  return "none: plain processes";
}

std::string Launcher::Describe() const {
  return absl::StrCat(sandbox::Describe(tier_), parts_.own_proc ? "" : "; without /proc");
}

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Make(Options options) {
  // A program that has ended must not end this process, which writes to its pipe.
  signal(SIGPIPE, SIG_IGN);
  auto launcher = absl::WrapUnique(new Launcher(std::move(options)));
  const Launcher::Options& wanted = launcher->options_;
  for (const Tier tier :
       {Tier::kNamespaces, Tier::kNamespacesAlone, Tier::kLandlock, Tier::kUnsafe}) {
    if (tier < wanted.strongest || (tier == Tier::kUnsafe && !wanted.allow_unsafe)) continue;
    const absl::Status works = launcher->Try(tier);
    if (works.ok()) return launcher;
    absl::StrAppend(&launcher->why_not_stronger_, launcher->why_not_stronger_.empty() ? "" : ". ",
                    sandbox::Describe(tier),
                    ", does not work: ", absl::StripAsciiWhitespace(works.message()), "; for it, ",
                    NextStepFor(tier, wanted.bubblewrap));
  }
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NO_SANDBOX", .hint = "make one of these tiers work"},
                   absl::StrCat("no sandbox works on this machine. ", launcher->why_not_stronger_));
}

Launcher::Launcher(Options options) : options_(std::move(options)) {}
Launcher::~Launcher() = default;

absl::Status Launcher::Try(Tier tier) {
  tier_ = tier;
  parts_ = {};
  {
    MutexLock lock(&mu_);
    free_.clear();  // Of the tier that was tried before.
  }
  absl::Status works = RunSelfTest();
  if (works.ok() || !HasNamespaces(tier)) return works;
  // In a container with a masked /proc, the kernel allows no other one.
  parts_ = {.own_proc = false, .disable_userns = false};
  if (RunSelfTest().ok()) return absl::OkStatus();
  parts_ = {};
  return works;
}

absl::Status Launcher::RunSelfTest() {
  SLUICE_RETURN_IF_ERROR(RunTrue());
  // It finds what the first one has left in the slot, and does not end by itself.
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Process> process,
                          Start({.argv = {"/usr/bin/sleep", "1000"}}));
  return process->Kill();
}

absl::Status Launcher::RunTrue() {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Process> process,
                          Start({.argv = {kTrue}, .binds = {{kTrue, kTrue, nullptr}}}));
  SLUICE_ASSIGN_OR_RETURN(const int status, process->Wait(kSelfTest));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return process->Kill();
  return absl::FailedPreconditionError(
      absl::StrCat("/usr/bin/true ended with status ", status, ": ", ReadSome(process->err())));
}

absl::StatusOr<std::unique_ptr<Slot>> Launcher::TakeSlot() {
  {
    MutexLock lock(&mu_);
    if (!free_.empty()) {
      std::unique_ptr<Slot> slot = std::move(free_.back());
      free_.pop_back();
      ++taken_;
      return slot;
    }
    if (taken_ + retired_ >= options_.slots) {
      return absl::ResourceExhaustedError(
          absl::StrCat("all ", options_.slots, " sandboxes are in use", retired_ == 0 ? "" : " (",
                       retired_ == 0 ? "" : absl::StrCat(retired_, " of them were given up)")));
    }
    ++taken_;
  }
  absl::StatusOr<std::unique_ptr<Slot>> slot = Slot::Acquire(tier_);
  if (!slot.ok()) {
    MutexLock lock(&mu_);
    --taken_;
  }
  return slot;
}

void Launcher::ReturnSlot(std::unique_ptr<Slot> slot, bool empty) {
  MutexLock lock(&mu_);
  --taken_;
  if (empty) {
    free_.push_back(std::move(slot));
    return;
  }
  ++retired_;
  // The slot keeps its number for as long as this process lives, as something still runs in it.
  (void)slot.release();
  log::Error("sandbox_given_up",
             {{"message", "a process in a sandbox did not end within a second of SIGKILL"},
              {"given_up", retired_},
              {"sandboxes", options_.slots}});
}

uint32_t Launcher::retired() const {
  MutexLock lock(&mu_);
  return retired_;
}

void Launcher::WarnIfUnsafe() {
  if (tier_ != Tier::kUnsafe) return;
  const absl::Duration now = Clock::Real()->Monotonic();
  {
    MutexLock lock(&mu_);
    if (now - warned_ < absl::Minutes(1)) return;
    warned_ = now;
  }
  log::Error("no_sandbox",
             {{"message",
               "untrusted programs run WITHOUT A SANDBOX, as --unsafe-no-sandbox asks: they can "
               "read and change everything that this daemon can"}});
}

absl::StatusOr<std::unique_ptr<Process>> Launcher::Start(const Command& command) {
  SLUICE_RETURN_IF_ERROR(CheckCommand(command));
  WarnIfUnsafe();
  SLUICE_ASSIGN_OR_RETURN(Pipe in, MakePipe());
  SLUICE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  SLUICE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, TakeSlot());
  absl::StatusOr<Spawned> spawned = slot->Start(command, options_.bubblewrap, parts_,
                                                {in.read.get(), out.write.get(), err.write.get()});
  if (!spawned.ok()) {
    ReturnSlot(std::move(slot), true);
    return spawned.status();
  }
  return absl::WrapUnique(new Process(this, std::move(slot), spawned->pid,
                                      std::move(spawned->pidfd), std::move(in.write),
                                      std::move(out.read), std::move(err.read)));
}

Process::Process(Launcher* launcher, std::unique_ptr<Slot> slot, pid_t pid, Fd pidfd, Fd in, Fd out,
                 Fd err)
    : launcher_(launcher),
      pid_(pid),
      pidfd_(std::move(pidfd)),
      in_(std::move(in)),
      out_(std::move(out)),
      err_(std::move(err)),
      slot_(std::move(slot)) {}

Process::~Process() { (void)Kill(); }

absl::StatusOr<int> Process::Wait(absl::Duration timeout) {
  // Kill() takes the program out of the process table. Until then its pid is not used again.
  return AwaitChild(pidfd_.get(), timeout);
}

absl::Status Process::Kill() {
  MutexLock lock(&mu_);
  if (slot_ == nullptr) return absl::OkStatus();
  const bool empty = slot_->Clear(pid_, pidfd_.get());
  launcher_->ReturnSlot(std::move(slot_), empty);
  if (empty) return absl::OkStatus();
  return absl::InternalError("a process in the sandbox did not end within a second of SIGKILL");
}

}  // namespace sluice::sandbox
