#pragma once

#include <string>
#include <vector>

#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// The command line of bubblewrap that runs `command` in namespaces of its own. The seccomp filter
// is read from descriptor 3.
std::vector<std::string> BubblewrapCommand(const std::string& bubblewrap, const Command& command);

}  // namespace sluice::sandbox
