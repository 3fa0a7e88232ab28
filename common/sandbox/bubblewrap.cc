#include "common/sandbox/bubblewrap.h"

#include "absl/strings/str_cat.h"

namespace sluice::sandbox {

std::vector<std::string> BubblewrapCommand(const std::string& bubblewrap, const Command& command) {
  std::vector<std::string> out = {
      bubblewrap,
      // Namespaces. --disable-userns needs --unshare-user beside --unshare-all.
      "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session",
      // Without this, bubblewrap leaves the first process of the namespace as an orphan.
      "--as-pid-1", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
      // Files.
      "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
      "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev"};
  const auto add = [&](std::initializer_list<std::string> words) {
    out.insert(out.end(), words.begin(), words.end());
  };
  add({"--size", absl::StrCat(command.limits.box_bytes), "--tmpfs", "/box"});
  add({"--size", "16777216", "--tmpfs", "/tmp"});
  for (const Bind& bind : command.binds) add({"--ro-bind", bind.from, bind.to});
  add({"--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box"});
  if (command.network) add({"--share-net"});

  add({"--clearenv"});
  if (command.environment.count("PATH") == 0) add({"--setenv", "PATH", "/usr/bin"});
  for (const auto& [name, value] : command.environment) add({"--setenv", name, value});
  add({"--seccomp", "3", "--"});
  out.insert(out.end(), command.argv.begin(), command.argv.end());
  return out;
}

}  // namespace sluice::sandbox
