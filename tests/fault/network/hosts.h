#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fault/network/cable.h"

namespace sluice::fault {

// Hosts of a test: network namespaces on one switch (a bridge), with private addresses. Nothing
// leads out of them, so other processes of the machine neither reach them nor see them. All of it
// vanishes with this process, however it ends.
class Hosts {
 public:
  // Moves the calling thread, and threads that it starts later, to a network namespace of their
  // own, in which the switch stands; so this thread reaches all hosts and nothing else. Call it
  // before other threads start, once per process. The last of `names` hangs on a cable that a test
  // can make bad, the others on good ones.
  // The error says what this machine lacks: root, iproute2, /dev/net/tun, ..
  static absl::StatusOr<std::unique_ptr<Hosts>> Make(const std::vector<std::string>& names);

  // The IP address of a host.
  std::string address(const std::string& name) const { return addresses_.at(name); }
  // The path of its network namespace, for Process::Options::network.
  static std::string NetworkPath(const std::string& name);

  // The cable of the last host; its far end is that host.
  Cable& cable() { return *cable_; }
  // Takes a host's only network device down, or up again: it then has no route to anybody.
  absl::Status SetLink(const std::string& name, bool up) const;

 private:
  Hosts() = default;

  std::map<std::string, std::string> addresses_;
  std::unique_ptr<Cable> cable_;
};

}  // namespace sluice::fault
