#pragma once

#include "common/plugins/launch.h"
#include "common/sandbox/sandbox.h"

namespace sluice {

// The folders of programs that all sandboxes see.
inline constexpr char kSandboxProgramFolders[] = "/usr/local/bin:/usr/bin";

// Starts plug-ins in sandboxes of `launcher`, which outlives them. A process sees, besides /usr, the
// folder of its plug-in, the files that its command names, and, if its program lies in a folder
// `bin` outside of /usr (a virtual environment), the folder above that; all read-only and only as
// far as all users may read them. It starts in an empty folder of its own. It has no network, and of
// this process's environment only the language.
//
// Errors of the result are those of Launcher::Start().
// FAILED_PRECONDITION: the plug-in lies in /, which would show it the machine; or this process is
// root, and other users cannot read what the plug-in must see.
LaunchPlugin LaunchInSandbox(sandbox::Launcher* launcher, const sandbox::Limits& limits);

}  // namespace sluice
