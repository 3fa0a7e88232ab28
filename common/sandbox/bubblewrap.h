#pragma once

#include <string>
#include <vector>

#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// The command line of bubblewrap that runs `command` in namespaces of its own. The seccomp filter
// is read from descriptor 3, and what the binds show lies behind the descriptors from 4 on. With
// `limit_processes`, the user namespace counts the processes, because no cgroup does.
std::vector<std::string> BubblewrapCommand(const std::string& bubblewrap,
                                           const BubblewrapParts& parts, bool limit_processes,
                                           const Command& command);

}  // namespace sluice::sandbox
