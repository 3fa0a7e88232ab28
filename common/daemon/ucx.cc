#include "common/daemon/ucx.h"

#include "absl/strings/str_cat.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/ucx/ucx.h"

namespace sluice::daemon {
namespace {

constexpr char kUcxFlag[] = "--ucx-devices";

}  // namespace

About::Flag UcxFlag() {
  return {
      .name = kUcxFlag,
      .help =
          "network devices with RDMA over which daemons of jobs with weights.ucx read weights "
          "from each other's memory, as mlx5_0:1, or shm for daemons of this host alone. UCX has "
          "no encryption, and whoever reaches these devices can read and write the memory of "
          "this daemon: use a network that only trainers and rollouts reach. Default: shm if "
          "--listen is on loopback, else weights come by calls"};
}

absl::Status CheckUcxFlag(const Flags& flags) {
  const std::string devices = flags.OwnFlag(kUcxFlag);
  if (devices.empty()) return absl::OkStatus();
  return Annotate(TryUcx(devices), absl::StrCat(kUcxFlag, " ", devices));
}

absl::StatusOr<std::string> UcxDevices(const Flags& flags) {
  std::string devices = flags.OwnFlag(kUcxFlag);
  if (!devices.empty()) return devices;
  if (IsLoopback(flags.listen.substr(0, flags.listen.rfind(':'))))
    return std::string(kUcxSharedMemory);
  return absl::FailedPreconditionError(absl::StrCat(flags.id, " was started without ", kUcxFlag));
}

}  // namespace sluice::daemon
