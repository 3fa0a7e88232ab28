// Checks of the programs of the daemons on this host.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/child.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/daemon/daemon.h"
#include "tools/sluice/doctor/checks.h"

namespace sluice::cli {
namespace {

constexpr const char* kPrograms[] = {"sluice-controller", "sluice-queue", "sluice-rollout",
                                     "sluice-reward", "sluice-trainer"};

// Runs `program --version` and returns what it prints. It is killed at `deadline`.
absl::StatusOr<std::string> AskVersion(const std::string& program, absl::Time deadline) {
  SLUICE_ASSIGN_OR_RETURN(const Child child,
                          StartChild({.argv = {program, "--version"}, .stderr_path = "/dev/null"}));
  const Fd out(child.stdout_fd);
  std::string text;
  char buffer[256];
  bool ended = false;
  while (!ended) {
    pollfd ready{out.get(), POLLIN, 0};
    const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) == 0) break;
    const ssize_t n = read(out.get(), buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    ended = n <= 0;
  }

  if (!ended) kill(child.pid, SIGKILL);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (!ended) return absl::DeadlineExceededError("it does not end");
  if (status != 0) return absl::FailedPreconditionError(WaitStatusText(status));
  return std::string(absl::StripAsciiWhitespace(text));
}

// A program that cannot load LibTorch or another library fails this check too.
Finding CheckPrograms(const DoctorInputs& in) {
  const absl::Time deadline = absl::Now() + absl::Seconds(6);
  int found = 0;
  for (const char* name : kPrograms) {
    const std::string program = absl::StrCat(in.program_dir, "/", name);
    if (!PathExists(program)) continue;
    ++found;
    const absl::StatusOr<std::string> version = AskVersion(program, deadline);
    if (!version.ok())
      return Fail(absl::StrCat(program, " does not run: ", version.status().message()),
                  absl::StrCat("`", program,
                               " --version` shows why, often a library that is "
                               "missing; `ldd ",
                               program, "` lists them"));
    if (*version != daemon::kBuild)
      return Fail(absl::StrCat(program, " is of version ", *version, ", and this program of ",
                               daemon::kBuild),
                  "install or build all programs together");
  }
  if (found == 0)
    return Skip(absl::StrCat("there are no daemons in ", in.program_dir, ", only this program"));
  return Pass(absl::StrCat(found, " programs of version ", daemon::kBuild, " run"));
}

}  // namespace

std::vector<DoctorCheck> BuildChecks() {
  return {
      {"build", "programs", "the daemons' programs run and are of this version", CheckPrograms}};
}

}  // namespace sluice::cli
