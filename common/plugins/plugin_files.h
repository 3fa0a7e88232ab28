#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/verifiers/plugin_spec.h"

namespace sluice {

// The files that make a plug-in what it is. Of a Python file: itself, and the modules that it
// imports and that lie below its folder, and those that they import, found by the import statements
// in their text. Of a command: each word that is the path of a file; a Python script counts as
// above.
//
// INVALID_ARGUMENT: there are more than 1000 files, or more than 64 MiB.
// NOT_FOUND, PERMISSION_DENIED and others: the plug-in's own file cannot be read.
absl::StatusOr<std::vector<std::string>> PluginFiles(const PluginSpec& spec);

// The sizes and times of these files. It changes when one of them is written, and costs no reading.
std::string FileStamps(const std::vector<std::string>& files);

// SHA-256 of these files and their names below the plug-in's folder, in hex. It does not depend on
// where the folder is. Errors as PluginFiles().
absl::StatusOr<std::string> PluginVersion(const PluginSpec& spec);

}  // namespace sluice
