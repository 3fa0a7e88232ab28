#pragma once

#include <string>
#include <vector>

namespace sluice::sandbox {

// An attack on a sandbox, in Python. It prints ESCAPED if it gets what it must not, and may print
// anything else, raise or be killed if it does not. The text HOST_FILE in it stands for the path of
// a file of the host that all users can read, and HOST_PID for the process of the test.
struct Probe {
  const char* name;
  const char* code;
};

// Probes of x86-64, whose numbers of system calls some of them use.
const std::vector<Probe>& Probes();

}  // namespace sluice::sandbox
