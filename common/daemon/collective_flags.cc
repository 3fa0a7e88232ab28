#include "common/daemon/collective_flags.h"

#include "common/base/loopback.h"
#include "common/base/status.h"

namespace sluice::daemon {
namespace {

constexpr char kHostFlag[] = "--collective-host", kPortsFlag[] = "--collective-ports";

}  // namespace

std::vector<About::Flag> CollectiveFlags() {
  return {
      {.name = kHostFlag,
       .help = "address or host name at which the other trainer ranks of a job, and the rollouts "
               "that its weights are broadcast to, reach this daemon, over TCP without encryption "
               "and certificates: use a network that only trainers and rollouts reach. Default: "
               "127.0.0.1 if --listen is on loopback, else this daemon takes no job with several "
               "trainer ranks or with weights.broadcast"},
      {.name = kPortsFlag,
       .help = "ports of --collective-host, as 29500-29600, on which this daemon lets the others "
               "connect, so that a firewall can name them. A trainer rank needs two, and a "
               "broadcast one. Default: ports that the kernel gives"}};
}

absl::StatusOr<CollectiveAddress> ReadCollectiveFlags(const Flags& flags,
                                                      absl::string_view listen) {
  CollectiveAddress address{.host = flags.OwnFlag(kHostFlag)};
  const absl::StatusOr<PortRange> ports = ParsePortRange(flags.OwnFlag(kPortsFlag));
  if (!ports.ok()) return Annotate(ports.status(), kPortsFlag);
  address.ports = *ports;
  const bool is_local = IsLoopback(std::string(listen.substr(0, listen.rfind(':'))));
  if (address.host.empty() && is_local) address.host = "127.0.0.1";
  return address;
}

}  // namespace sluice::daemon
