#include "common/plugins/launch.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace sluice {
namespace plugin_sdk {
extern const absl::string_view sluice_reward_py;
}  // namespace plugin_sdk

namespace {

constexpr const char* kEnvironment[] = {"PATH",   "HOME",       "LANG",        "LC_ALL",
                                        "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "TZ"};

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (absl::StrContains(name, '/')) return name;
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::NotFoundError(absl::StrCat("no folder of PATH has the program ", name));
}

}  // namespace

absl::StatusOr<PluginCommand> PluginCommandOf(const PluginSpec& spec) {
  PluginCommand command{.argv = spec.command, .folder = spec.file.substr(0, spec.file.rfind('/'))};
  if (spec.kind != PluginSpec::Kind::kExec) {
    const char* const convention = spec.kind == PluginSpec::Kind::kVerl  ? "--verl"
                                   : spec.kind == PluginSpec::Kind::kTrl ? "--trl"
                                                                         : "--native";
    command.argv = {
        spec.python, "-c", std::string(plugin_sdk::sluice_reward_py), convention,
        spec.function.empty() ? spec.file : absl::StrCat(spec.file, ":", spec.function)};
    if (spec.in_flight > 1)
      command.argv.insert(command.argv.end(), {"--max-in-flight", absl::StrCat(spec.in_flight)});
  }
  SLUICE_ASSIGN_OR_RETURN(command.argv[0], FindProgram(command.argv[0]));
  return command;
}

absl::StatusOr<Child> LaunchUnconfined(const PluginCommand& command) {
  ChildOptions options{.argv = command.argv,
                       .stderr_path = "",
                       .pipes = true,
                       .env = {{"PYTHONUNBUFFERED", "1"}, {"PYTHONDONTWRITEBYTECODE", "1"}},
                       .only_env = true,
                       .folder = command.folder};
  for (const char* const name : kEnvironment) {
    if (const char* const value = std::getenv(name); value != nullptr) options.env[name] = value;
  }
  return StartChild(options);
}

}  // namespace sluice
