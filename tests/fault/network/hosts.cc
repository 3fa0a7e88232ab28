#include "tests/fault/network/hosts.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/integration/harness/process.h"

namespace sluice::fault {
namespace {

constexpr char kNamespaces[] = "/run/netns";  // Where `ip netns` keeps the names.
constexpr char kPrefix[] = "10.77.0.";        // Of the addresses. The switch has .1.

// Runs `ip` with the words of a command.
absl::Status RunIp(const std::string& command) {
  const auto done = integration::RunToEnd({.binary = "/sbin/ip",
                                           .args = absl::StrSplit(command, ' '),
                                           .log = absl::StrCat(kNamespaces, "/log")},
                                          absl::Seconds(10));
  if (!done.ok()) return Annotate(done.status(), "ip (Debian's package iproute2)");
  if (done->exit == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("`ip ", command, "` failed: ", done->out, done->err));
}

absl::Status RunIp(const std::vector<std::string>& commands) {
  for (const std::string& command : commands) SLUICE_RETURN_IF_ERROR(RunIp(command));
  return absl::OkStatus();
}

// Namespaces of this process alone: what it makes in them vanishes with it.
absl::Status LeaveMachine() {
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
    return ErrnoStatus(errno, "cannot make a network namespace (root may)");
  (void)mkdir(kNamespaces, 0755);
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", kNamespaces, "tmpfs", 0, nullptr) != 0)
    return ErrnoStatus(errno, "cannot mount in a mount namespace");
  return absl::OkStatus();
}

}  // namespace

std::string Hosts::NetworkPath(const std::string& name) {
  return absl::StrCat(kNamespaces, "/", name);
}

absl::StatusOr<std::unique_ptr<Hosts>> Hosts::Make(const std::vector<std::string>& names) {
  std::unique_ptr<Hosts> hosts(new Hosts);
  SLUICE_RETURN_IF_ERROR(LeaveMachine());
  SLUICE_RETURN_IF_ERROR(
      RunIp({"link set lo up", "link add switch type bridge",
             absl::StrCat("addr add ", kPrefix, "1/24 dev switch"), "link set switch up"}));

  int number = 2;
  for (const std::string& name : names) {
    const std::string address = absl::StrCat(kPrefix, number++), port = absl::StrCat("to-", name);
    hosts->addresses_[name] = address;
    SLUICE_RETURN_IF_ERROR(RunIp(absl::StrCat("netns add ", name)));
    if (name == names.back()) {
      SLUICE_ASSIGN_OR_RETURN(hosts->cable_, Cable::Make(port, "far"));
      SLUICE_RETURN_IF_ERROR(RunIp(absl::StrCat("link set far netns ", name, " name eth0")));
    } else {
      SLUICE_RETURN_IF_ERROR(
          RunIp(absl::StrCat("link add ", port, " type veth peer name eth0 netns ", name)));
    }
    SLUICE_RETURN_IF_ERROR(RunIp({absl::StrCat("link set ", port, " master switch"),
                                  absl::StrCat("link set ", port, " up"),
                                  absl::StrCat("-n ", name, " addr add ", address, "/24 dev eth0"),
                                  absl::StrCat("-n ", name, " link set lo up"),
                                  absl::StrCat("-n ", name, " link set eth0 up")}));
  }
  return hosts;
}

absl::Status Hosts::SetLink(const std::string& name, bool up) const {
  return RunIp(absl::StrCat("-n ", name, " link set eth0 ", up ? "up" : "down"));
}

}  // namespace sluice::fault
