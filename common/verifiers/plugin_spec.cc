#include "common/verifiers/plugin_spec.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"

namespace sluice {
namespace {

constexpr const char* kPlaces[] = {"verl", "trl", "native"};  // In the order of PluginSpec::Kind.

template <typename... Parts>
absl::Status BadPlugin(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("plugin: args.", parts...));
}

// Where the path ends in FILE.py:FUNCTION.
size_t PathEnd(const std::string& place) {
  const size_t end = place.rfind(".py:");
  return end == std::string::npos ? place.size() : end + 3;
}

// Reads FILE.py:FUNCTION into `spec`.
absl::Status ReadPlace(const std::string& name, const std::string& place, PluginSpec* spec) {
  const size_t end = PathEnd(place);
  spec->file = place.substr(0, end);
  if (end < place.size()) spec->function = place.substr(end + 1);
  if (!absl::EndsWith(spec->file, ".py"))
    return BadPlugin(name, " is \"", place, "\"; wanted: FILE.py:FUNCTION");
  if (spec->function.empty() && name != "native")
    return BadPlugin(name, " is \"", place,
                     "\", which names no function; wanted: FILE.py:FUNCTION");
  return absl::OkStatus();
}

// Whether a word of a command is the path of a file of the plug-in, and not of the system.
bool IsOwnPath(const std::string& word) {
  return absl::StrContains(word, '/') && !absl::StartsWith(word, "-") &&
         !absl::StartsWith(word, "/usr/") && !absl::StartsWith(word, "/bin/");
}

absl::Status ReadCommand(PluginSpec* spec) {
  for (const std::string& word : spec->command) {
    if (spec->file.empty() && IsOwnPath(word)) spec->file = word;
  }
  if (!spec->file.empty()) return absl::OkStatus();
  return BadPlugin("exec is [", absl::StrJoin(spec->command, ", "),
                   "]; one of its words must be the path of your program or script, with a slash");
}

}  // namespace

absl::StatusOr<PluginSpec> ParsePluginSpec(const nlohmann::json& args) {
  ArgReader reader("plugin", args);
  PluginSpec spec;
  std::string name, place;
  int given = 0;
  for (int i = 0; i < 3; ++i) {
    const std::string value = reader.String(kPlaces[i], "");
    if (value.empty()) continue;
    ++given;
    name = kPlaces[i];
    place = value;
    spec.kind = static_cast<PluginSpec::Kind>(i);
  }
  spec.command = reader.Strings("exec");
  spec.server = reader.String("grpc", "");
  spec.python = reader.String("python", spec.python);
  spec.config = reader.Object("config");
  spec.processes = static_cast<int>(reader.Integer("processes", spec.processes, 1, 64));
  spec.in_flight = static_cast<int>(reader.Integer("in_flight", spec.in_flight, 1, 256));
  constexpr double kMost = std::numeric_limits<double>::max();
  spec.low = reader.Number("low", -kMost, -kMost, kMost);
  spec.high = reader.Number("high", kMost, -kMost, kMost);
  const std::string reload = reader.String("reload", "auto");
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (reload != "auto" && reload != "manual")
    return BadPlugin("reload is \"", reload, "\"; wanted: auto or manual");
  spec.reload_by_itself = reload == "auto";

  for (const char* const key : {"verl", "trl", "native", "exec", "grpc"}) {
    if (args.contains(key) && (args.at(key) == "" || args.at(key) == nlohmann::json::array()))
      return BadPlugin(key, " is empty; leave it out, or say what scores the answers");
  }
  if (given + (spec.command.empty() ? 0 : 1) + (spec.server.empty() ? 0 : 1) != 1) {
    return absl::InvalidArgumentError(
        "plugin: args must have one of verl, trl, native (FILE.py:FUNCTION), exec (a command) and "
        "grpc (a server's name), which says what scores the answers");
  }
  if (spec.low >= spec.high)
    return BadPlugin("low is ", spec.low, ", but must be below high, which is ", spec.high);
  if (!spec.server.empty()) {
    spec.kind = PluginSpec::Kind::kGrpc;
    for (const char* const other : {"python", "processes", "in_flight"}) {
      if (!args.contains(other)) continue;
      return BadPlugin(other, " is given, but the server ", spec.server,
                       " of grpc runs by itself; leave it out");
    }
    return spec;
  }
  if (spec.command.empty()) {
    SLUICE_RETURN_IF_ERROR(ReadPlace(name, place, &spec));
  } else {
    name = "exec";
    spec.kind = PluginSpec::Kind::kExec;
    SLUICE_RETURN_IF_ERROR(ReadCommand(&spec));
  }
  if (!absl::StartsWith(spec.file, "/"))
    return BadPlugin(name, " names ", spec.file, "; wanted: an absolute path");
  return spec;
}

void VisitPluginPaths(
    nlohmann::json* args,
    const std::function<void(const std::string& name, std::string* path)>& visit) {
  if (!args->is_object()) return;
  for (auto& [name, value] : args->items()) {
    if (name == "exec" && value.is_array()) {
      for (nlohmann::json& word : value) {
        if (word.is_string() && IsOwnPath(word.get_ref<const std::string&>()))
          visit(name, &word.get_ref<std::string&>());
      }
      continue;
    }
    if (!value.is_string()) continue;
    std::string& text = value.get_ref<std::string&>();
    if (name == "python" && absl::StrContains(text, '/')) visit(name, &text);
    if (name != "verl" && name != "trl" && name != "native") continue;
    const size_t end = PathEnd(text);
    std::string path = text.substr(0, end);
    visit(name, &path);
    text.replace(0, end, path);
  }
}

}  // namespace sluice
