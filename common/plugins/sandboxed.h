#pragma once

#include "common/plugins/launch.h"
#include "common/sandbox/sandbox.h"

namespace sluice {

// The folders of programs that all sandboxes see.
inline constexpr char kSandboxProgramFolders[] = "/usr/local/bin:/usr/bin";

// Starts plug-ins in sandboxes of `launcher`, which outlives them. A process sees, besides /usr,
// the folder of its plug-in, the files that its command names, and the virtual environment of its
// Python; all read-only. If this process is root, it sees only what all users may read, else what
// this process's user may. It starts in an empty folder of its own. It has no network, and of this
// process's environment only the language.
//
// Errors of the result are those of Launcher::Start().
// FAILED_PRECONDITION: what the plug-in must see is / or is named by a link, or this process is
// root and other users cannot read it.
LaunchPlugin LaunchInSandbox(sandbox::Launcher* launcher, const sandbox::Limits& limits);

}  // namespace sluice
