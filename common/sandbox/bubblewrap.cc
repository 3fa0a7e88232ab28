#include "common/sandbox/bubblewrap.h"

#include "absl/strings/str_cat.h"

namespace sluice::sandbox {

std::vector<std::string> BubblewrapCommand(const std::string& bubblewrap,
                                           const BubblewrapParts& parts, bool limit_processes,
                                           const Command& command) {
  std::vector<std::string> out = {
      bubblewrap,
      // Namespaces. --disable-userns needs --unshare-user beside --unshare-all.
      "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session",
      // Without this, bubblewrap leaves the first process of the namespace as an orphan.
      "--as-pid-1", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
      // Files.
      "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
      "--symlink", "usr/lib64", "/lib64", "--dev", "/dev"};
  const auto add = [&](std::initializer_list<std::string> words) {
    out.insert(out.end(), words.begin(), words.end());
  };
  if (parts.disable_userns) add({"--disable-userns"});
  if (parts.own_proc) add({"--proc", "/proc"});
  add({"--size", absl::StrCat(command.limits.box_bytes), "--tmpfs", "/box"});
  add({"--size", "16777216", "--tmpfs", "/tmp"});
  int fd = 4;
  for (const Bind& bind : command.binds) add({"--ro-bind-fd", absl::StrCat(fd++), bind.to});
  add({"--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box"});
  if (command.network) add({"--share-net"});

  add({"--clearenv"});
  if (command.environment.count("PATH") == 0) add({"--setenv", "PATH", "/usr/bin"});
  for (const auto& [name, value] : command.environment) add({"--setenv", name, value});
  add({"--seccomp", "3", "--"});
  // Only a limit that is set inside counts this namespace's processes alone. One from outside would
  // count all of the daemon's user.
  if (limit_processes) add({"/usr/bin/prlimit", absl::StrCat("--nproc=", command.limits.pids)});
  out.insert(out.end(), command.argv.begin(), command.argv.end());
  return out;
}

}  // namespace sluice::sandbox
