#pragma once

#include <linux/filter.h>

#include <vector>

namespace sluice::sandbox {

// The system calls of sandboxed programs, as a seccomp filter. What computing needs is allowed.
// Calls that only an attack makes (ptrace, mount, bpf, ..) kill the process, and all others fail
// with EPERM. Sockets other than stream pairs need `network`.
std::vector<sock_filter> MakeSeccompFilter(bool network);

}  // namespace sluice::sandbox
