#pragma once

#include <string>

namespace sluice {

// The files in which the kernel says what a process may use. Tests pass others.
struct CoreSources {
  std::string cgroup = "/proc/self/cgroup";  // The cgroups that the process is in.
  std::string mount = "/sys/fs/cgroup";      // Where the files of the cgroups are.
};

// The number of cores that this process may compute on: those of its affinity mask, or fewer if a
// CPU quota of its cgroup, or of a cgroup above it, allows less CPU time. At least 1.
int UsableCores(const CoreSources& sources = {});

}  // namespace sluice
