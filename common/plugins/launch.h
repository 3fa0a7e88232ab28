#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/child.h"
#include "common/verifiers/plugin_spec.h"

namespace sluice {

// How to start a process of a plug-in.
struct PluginCommand {
  std::vector<std::string> argv;  // argv[0] is an absolute path.
  std::string folder;             // The process starts there: the folder of the plug-in's file.
};

// Starts a process with pipes for stdin, stdout and stderr, as the leader of a process group.
using LaunchPlugin = std::function<absl::StatusOr<Child>(const PluginCommand& command)>;

// The command of a plug-in. Python files are run by tools/sdk/sluice_reward.py, which is part of
// this program.
// NOT_FOUND: a program without a slash is in no folder of PATH.
absl::StatusOr<PluginCommand> PluginCommandOf(const PluginSpec& spec);

// Starts the process as a plain child, with the rights of this process. Of the environment it has
// only what programs need to run (PATH, HOME, languages, Python's folders), and no secrets.
absl::StatusOr<Child> LaunchUnconfined(const PluginCommand& command);

}  // namespace sluice
