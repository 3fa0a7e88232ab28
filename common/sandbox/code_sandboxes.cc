#include <unistd.h>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/machine_memory.h"
#include "common/base/status.h"
#include "common/cores/usable_cores.h"
#include "common/sandbox/code_runner.h"

namespace sluice::sandbox {
namespace {

// Sandboxes beside those that run: each job has some ready. The processes of one machine share 256.
constexpr uint32_t kMostSandboxes = 128;

}  // namespace

absl::StatusOr<std::unique_ptr<CodeSandboxes>> CodeSandboxes::Make(const Options& options) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Launcher> launcher,
                          Launcher::Make({.slots = kMostSandboxes,
                                          .allow_unsafe = options.allow_unsafe,
                                          .strongest = options.strongest}));
  const uint32_t runs = options.runs > 0 ? options.runs : static_cast<uint32_t>(UsableCores());
  auto sandboxes = absl::WrapUnique(new CodeSandboxes(std::move(launcher), runs));
  sandboxes->identity_ =
      absl::StrCat(sandboxes->launcher_->Describe(), "; ", sandboxes->ReadVersions());
  return sandboxes;
}

CodeSandboxes::CodeSandboxes(std::unique_ptr<Launcher> launcher, uint32_t runs)
    : launcher_(std::move(launcher)), runs_(runs), memory_(MachineMemory() / 2) {}

// One line of each program; a program that is not there says so.
std::string CodeSandboxes::ReadVersions() {
  std::string versions;
  for (const char* program : {"/usr/bin/python3", "/usr/bin/g++"}) {
    std::string line = absl::StrCat("no ", program);
    const auto process = launcher_->Start({.argv = {program, "--version"}});
    if (process.ok()) {
      const auto status = (*process)->Wait(absl::Seconds(10));
      char text[256];
      const ssize_t got =
          status.ok() && *status == 0 ? read((*process)->out(), text, sizeof text) : 0;
      if (got > 0) line.assign(text, static_cast<size_t>(got));
    }
    absl::StrAppend(&versions, versions.empty() ? "" : "; ", line.substr(0, line.find('\n')));
  }
  return versions;
}

absl::StatusOr<std::unique_ptr<CodeSandboxes::Turn>> CodeSandboxes::AwaitTurn(
    uint64_t memory, absl::Duration timeout) {
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  MutexLock lock(&mu_);
  // One program may always run, whatever its limit.
  const auto may_run = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return running_ == 0 || (running_ < runs_ && reserved_ + memory <= memory_);
  };
  while (!may_run()) {
    const absl::Duration left = end - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) {
      return ErrorWith(absl::StatusCode::kResourceExhausted, {.reason = "SANDBOXES_BUSY"},
                       absl::StrCat("all ", runs_, " sandboxes run programs"));
    }
    changed_.WaitFor(&mu_, left);
  }
  ++running_;
  reserved_ += memory;
  return std::make_unique<Turn>(this, memory);
}

CodeSandboxes::Turn::~Turn() {
  {
    MutexLock lock(&owner_->mu_);
    --owner_->running_;
    owner_->reserved_ -= memory_;
  }
  owner_->changed_.NotifyAll();
}

}  // namespace sluice::sandbox
