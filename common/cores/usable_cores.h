#pragma once

#include <string>

namespace sluice {

// Where the kernel says what a process may use; tests give others.
struct CoreSources {
  std::string cgroup = "/proc/self/cgroup";  // The cgroups that the process is in.
  std::string mount = "/sys/fs/cgroup";      // Where their files are.
};

// The cores that this process may compute on: those of its affinity mask, or fewer where a CPU
// quota of its cgroup, or of one above it, allows less time. At least 1.
int UsableCores(const CoreSources& sources = {});

}  // namespace sluice
