#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/verifiers/plugin_spec.h"

namespace sluice {

// How to start a process of a plug-in.
struct PluginCommand {
  std::vector<std::string> argv;  // argv[0] is an absolute path.
  std::string folder;             // The process starts there: the folder of the plug-in's file.
};

// A process of a plug-in. Thread-safe.
class PluginChild {
 public:
  virtual ~PluginChild() = default;  // Calls Kill().

  // The other ends of the pipes that are its stdin, stdout and stderr. They are closed at the end
  // of this object.
  virtual int in() const = 0;
  virtual int out() const = 0;
  virtual int err() const = 0;

  // Waits until it has ended, and returns its status as waitpid() does.
  // DEADLINE_EXCEEDED: it still runs after `timeout`. FAILED_PRECONDITION: Kill() was called.
  virtual absl::StatusOr<int> Wait(absl::Duration timeout) = 0;
  // Ends it and all that it has started. Idempotent.
  virtual void Kill() = 0;
};

using LaunchPlugin =
    std::function<absl::StatusOr<std::unique_ptr<PluginChild>>(const PluginCommand& command)>;

// The folders of PATH, with colons between them.
std::string ProgramFolders();

// The command of a plug-in. Python files are run by tools/sdk/sluice_reward.py, which is part of
// this program. A program without a slash is looked for in `folders`, which have colons between
// them.
// NOT_FOUND: it is in none of them.
absl::StatusOr<PluginCommand> PluginCommandOf(const PluginSpec& spec, const std::string& folders);

// Starts the process as a plain child, with the rights of this process. Of the environment it has
// only what programs need to run (PATH, HOME, languages, Python's folders), and no secrets.
absl::StatusOr<std::unique_ptr<PluginChild>> LaunchUnconfined(const PluginCommand& command);

}  // namespace sluice
