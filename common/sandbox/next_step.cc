#include "common/sandbox/next_step.h"

#include <linux/capability.h>
#include <linux/landlock.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace sluice::sandbox {
namespace {

// The first line of a file; empty if there is none.
std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A field of /proc/self/status.
std::string ReadStatusField(absl::string_view name) {
  std::ifstream file("/proc/self/status");
  const std::string begin = absl::StrCat(name, ":\t");
  for (std::string line; std::getline(file, line);) {
    absl::string_view value = line;
    if (absl::ConsumePrefix(&value, begin)) return std::string(value);
  }
  return "";
}

bool InKubernetes() { return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr; }

// Whether a filter, such as that of the container's runtime, refuses system calls.
bool HasSeccompFilter() { return ReadStatusField("Seccomp") == "2"; }

// 0, or why this process may make no user namespace.
int TryUserNamespace() {
  // Without fork(), whose handlers may wait for this process's other threads.
  const auto pid =
      static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : errno);
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return EAGAIN;
  return WEXITSTATUS(status);
}

std::string AllowNamespaces() {
  if (ReadLine("/proc/sys/user/max_user_namespaces") == "0")
    return "set the sysctl user.max_user_namespaces above 0";
  if (ReadLine("/proc/sys/kernel/unprivileged_userns_clone") == "0")
    return "set the sysctl kernel.unprivileged_userns_clone to 1";
  if (HasSeccompFilter()) {
    return absl::StrCat(
        "run the daemon under a seccomp profile that allows namespaces (clone and unshare with "
        "their flags, mount, umount2, pivot_root)",
        InKubernetes() ? ": securityContext.seccompProfile of the pod, of type Localhost or "
                         "Unconfined"
                       : ", such as --security-opt seccomp=unconfined of docker and podman");
  }
  return "let AppArmor or SELinux allow user namespaces to bubblewrap (on Ubuntu the sysctl "
         "kernel.apparmor_restrict_unprivileged_userns=0)";
}

std::string NextForNamespaces(const std::string& bubblewrap) {
  if (access(bubblewrap.c_str(), X_OK) != 0)
    return absl::StrCat("install bubblewrap, which is not at ", bubblewrap);
  if (access("/usr/bin/prlimit", X_OK) != 0)
    return "install util-linux, because there is no /usr/bin/prlimit";
  if (TryUserNamespace() != 0) return AllowNamespaces();
  const std::string profile = ReadLine("/proc/self/attr/current");
  if (!profile.empty() && profile != "unconfined") {
    return absl::StrCat("let the profile ", profile, " allow mounts in user namespaces",
                        InKubernetes() ? ", or set securityContext.appArmorProfile of the pod to "
                                         "the type Unconfined"
                                       : "");
  }
  return "see what bubblewrap says";
}

std::string NextForCgroup() {
  if (InKubernetes()) {
    return "let the container's runtime give pods a cgroup that they may write to (containerd 2.1: "
           "cgroup_writable = true), and allow namespaces";
  }
  return "give the daemon a cgroup that it may write to, such as by systemd's Delegate=yes";
}

// The capabilities that a daemon which is root of a container needs.
struct Capability {
  int number;
  const char* name;
};
constexpr Capability kCapabilities[] = {{CAP_CHOWN, "CHOWN"},
                                        {CAP_DAC_OVERRIDE, "DAC_OVERRIDE"},
                                        {CAP_KILL, "KILL"},
                                        {CAP_SETGID, "SETGID"},
                                        {CAP_SETUID, "SETUID"}};

std::vector<std::string> FindMissingCapabilities() {
  uint64_t held = 0;
  (void)absl::SimpleHexAtoi(ReadStatusField("CapEff"), &held);
  std::vector<std::string> missing;
  for (const Capability& capability : kCapabilities) {
    if ((held >> capability.number & 1) == 0) missing.push_back(capability.name);
  }
  return missing;
}

// How to become root with these capabilities.
std::string BecomeRoot(const std::vector<std::string>& missing) {
  const bool root = geteuid() == 0;
  if (InKubernetes()) {
    return absl::StrCat("set in the pod's securityContext ", root ? "" : "runAsUser: 0 and ",
                        "capabilities.add: [", absl::StrJoin(missing, ", "), "]");
  }
  return absl::StrCat("run the daemon as root of its machine or container, with the capabilities ",
                      absl::StrJoin(missing, ", "));
}

std::string NextForLandlock() {
  if (syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 1)
    return "see the reason";
  if (errno == EOPNOTSUPP) return "add landlock to the kernel's boot parameter lsm=";
  if (HasSeccompFilter()) {
    return "use Linux 5.13 or later, and a container runtime whose default seccomp profile allows "
           "landlock_create_ruleset (containerd 1.6, CRI-O 1.23)";
  }
  return "use Linux 5.13 or later with Landlock";
}

}  // namespace

std::string NextStepFor(Tier tier, const std::string& bubblewrap) {
  const std::vector<std::string> missing = FindMissingCapabilities();
  // Root gives each sandbox a user in every tier.
  if (!missing.empty() && (geteuid() == 0 || tier == Tier::kLandlock)) return BecomeRoot(missing);
  switch (tier) {
    case Tier::kNamespaces: return NextForCgroup();
    case Tier::kNamespacesAlone: return NextForNamespaces(bubblewrap);
    case Tier::kLandlock: return NextForLandlock();
    case Tier::kUnsafe: break;
  }
  return "see the reason";
}

}  // namespace sluice::sandbox
