#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::sandbox {

// How a container of a pod is confined. The defaults are those of Kubernetes for a container whose
// securityContext drops all capabilities and forbids new privileges.
struct Pod {
  bool root = true;               // Else user 10001, without capabilities.
  std::vector<int> capabilities;  // Those that are added for root.
  // seccompProfile: RuntimeDefault, as far as it matters to sandboxes: what containerd's refuses
  // containers without the capability SYS_ADMIN. Else Unconfined.
  bool default_seccomp = true;
  // procMount: Default, which hides parts of /proc and makes others read-only.
  bool masked_proc = true;
  bool own_cgroup = false;  // The container may write to its cgroup.
  // Most bytes of /run/sluice-sandbox: sizeLimit of its emptyDir.
  uint64_t sandbox_bytes = 256 << 20;
};

// Runs `work` as the second process of such a container, and returns what it returns. The files are
// those of this machine, or of the folder that the variable SLUICE_POD_ROOT names, read-only, with
// an empty /tmp and /run/sluice-sandbox. There is no network.
//
// This process must be root.
// INTERNAL: the container could not be made, or `work` ended its process.
absl::StatusOr<std::string> RunInPod(const Pod& pod, const std::function<std::string()>& work);

}  // namespace sluice::sandbox
