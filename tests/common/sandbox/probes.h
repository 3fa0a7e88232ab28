#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// An attack on a sandbox, in Python. It prints ESCAPED if it gets what it must not, and may print
// anything else, raise or be killed if it does not. The text HOST_FILE in it stands for the path of
// a file of the host that all users can read, and HOST_PID for a process of the host.
struct Probe {
  const char* name;
  const char* code;
};

// Probes of x86-64, whose numbers of system calls some of them use.
const std::vector<Probe>& Probes();

// The whole program of a probe.
std::string CodeOf(const Probe& probe, const std::string& host_file, pid_t host_pid);

// Runs every probe. Returns a sentence for each that was not refused.
std::vector<std::string> FindEscapes(Launcher* launcher, const std::string& host_file,
                                     pid_t host_pid);

}  // namespace sluice::sandbox
