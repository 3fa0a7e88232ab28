// Checks of ports and names on this host.

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/fd.h"
#include "tools/sluice/dial.h"
#include "tools/sluice/doctor/checks.h"

namespace sluice::cli {
namespace {

// The inodes of the sockets that listen on `port`.
std::set<std::string> ListeningInodes(const std::string& proc, int port) {
  std::set<std::string> inodes;
  for (const char* file : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream table(proc + file);
    for (std::string line; std::getline(table, line);) {
      const std::vector<absl::string_view> cells =
          absl::StrSplit(line, ' ', absl::SkipWhitespace());
      if (cells.size() < 10 || cells[3] != "0A") continue;  // Not in the state LISTEN.
      const std::vector<absl::string_view> local = absl::StrSplit(cells[1], ':');
      int found = 0;
      if (local.size() == 2 && absl::SimpleHexAtoi(local[1], &found) && found == port)
        inodes.insert(absl::StrCat("socket:[", cells[9], "]"));
    }
  }
  return inodes;
}

// "python3 (pid 4181)", or an empty text if this user may not see whose port it is.
std::string FindListener(const std::string& proc, int port) {
  const std::set<std::string> inodes = ListeningInodes(proc, port);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(proc, error)) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    std::error_code unreadable;
    for (const auto& fd : std::filesystem::directory_iterator(entry.path() / "fd", unreadable)) {
      const std::string target = std::filesystem::read_symlink(fd.path(), unreadable).string();
      if (inodes.count(target) == 0) continue;
      std::ifstream comm(entry.path() / "comm");
      std::string name;
      std::getline(comm, name);
      return absl::StrCat(name, " (pid ", pid, ")");
    }
  }
  return "";
}

// Whether a server could listen there now. Closes the socket again.
bool CanListen(const addrinfo& where, int* error) {
  const Fd socket_fd(socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, 0));
  const int one = 1;  // As the servers do: connections that were closed do not count.
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool bound = bind(socket_fd.get(), where.ai_addr, where.ai_addrlen) == 0 &&
                     listen(socket_fd.get(), 1) == 0;
  *error = errno;
  return bound;
}

Finding CheckPorts(const DoctorInputs& in) {
  if (in.local)
    return Pass(
        absl::StrCat("the fleet of `dev up` listens; its controller on ", in.local->controller));
  std::vector<std::string> taken;
  std::string owner;
  for (const std::string& address : in.listen) {
    const absl::StatusOr<AddressList> where = ResolveAddress(address);
    if (!where.ok()) return Fail(std::string(where.status().message()), "name another --listen");
    int error = 0;
    if (CanListen(**where, &error)) continue;
    if (error != EADDRINUSE)
      return Fail(absl::StrCat(address, ": ", std::strerror(error)), "name another --listen");

    int port = 0;
    (void)absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port);
    const std::string listener = FindListener(in.proc, port);
    taken.push_back(absl::StrCat(address, listener.empty() ? "" : absl::StrCat(" by ", listener)));
  }
  if (taken.empty()) return Pass(absl::StrCat(in.listen.size(), " ports of a fleet are free"));
  return Fail(absl::StrCat("taken: ", absl::StrJoin(taken, ", ")),
              "end that process, or start with other ports: `sluice dev up --free-ports`, or "
              "--listen and --ops of a daemon");
}

// The address may be a list, with commas between: the replicas of a controller.
Finding CheckNames(const DoctorInputs& in) {
  if (in.server.empty()) return Skip("no controller is named; give --server HOST:PORT");
  for (const absl::string_view server : absl::StrSplit(in.server, ',')) {
    const absl::StatusOr<AddressList> where = ResolveAddress(server);
    if (!where.ok())
      return Fail(std::string(where.status().message()),
                  "correct --server, SLUICE_SERVER or the context, or add the name to DNS");
  }
  return Pass(absl::StrCat("the name in ", in.server, " has an address"));
}

}  // namespace

std::vector<DoctorCheck> NetChecks() {
  return {{"net", "ports", "the ports of a fleet are free, or its own", CheckPorts},
          {"net", "names", "the controller's name has an address", CheckNames}};
}

}  // namespace sluice::cli
