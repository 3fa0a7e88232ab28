#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/plugins/launch.h"
#include "common/plugins/plugin_source.h"
#include "common/verifiers/plugin_spec.h"

namespace sluice {

// The plug-in is a program: a Python file, which the SDK runs, or a command. Its instances are
// processes, and its version is that of its files. `job` is for its hello; `folders` as in
// PluginCommandOf(). Errors as PluginFiles() and PluginCommandOf().
absl::StatusOr<std::unique_ptr<PluginSource>> MakePluginProgram(PluginSpec spec, std::string job,
                                                                LaunchPlugin launch,
                                                                const std::string& folders);

}  // namespace sluice
