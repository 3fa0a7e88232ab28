#include "tools/sluice/context.h"

#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/nearest.h"
#include "common/base/status.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

absl::Status FormError(const std::string& path, const YAML::Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", node.Mark().line + 1, ": ", what,
                   "; `sluice context set NAME --server HOST:PORT` writes the file"));
}

// The text of a key's value, or an empty one if there is no such key.
absl::StatusOr<std::string> TextOf(const std::string& path, const YAML::Node& map,
                                   const char* key) {
  const YAML::Node value = map[key];
  if (!value || value.IsNull()) return std::string();
  if (!value.IsScalar()) return FormError(path, value, absl::StrCat(key, " is not a text"));
  return value.Scalar();
}

absl::Status CheckKeys(const std::string& path, const YAML::Node& map,
                       const std::set<std::string>& known) {
  for (const auto& entry : map) {
    if (!entry.first.IsScalar() || known.count(entry.first.Scalar()) == 0)
      return FormError(
          path, entry.first,
          absl::StrCat("an unknown key; the keys here are ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Contexts> ContextsFromYaml(const std::string& path, const YAML::Node& root) {
  Contexts contexts;
  if (root.IsNull()) return contexts;
  if (!root.IsMap()) return FormError(path, root, "not a map of current and contexts");
  SLUICE_RETURN_IF_ERROR(CheckKeys(path, root, {"current", "contexts"}));
  SLUICE_ASSIGN_OR_RETURN(contexts.current, TextOf(path, root, "current"));
  const YAML::Node all = root["contexts"];
  if (!all || all.IsNull()) return contexts;
  if (!all.IsMap()) return FormError(path, all, "contexts is not a map");
  for (const auto& entry : all) {
    if (!entry.first.IsScalar() || !entry.second.IsMap())
      return FormError(path, entry.first, "a context is not NAME: {server: .., tls: ..}");
    SLUICE_RETURN_IF_ERROR(CheckKeys(path, entry.second, {"server", "tls"}));
    Context& context = contexts.all[entry.first.Scalar()];
    SLUICE_ASSIGN_OR_RETURN(context.server, TextOf(path, entry.second, "server"));
    SLUICE_ASSIGN_OR_RETURN(context.tls, TextOf(path, entry.second, "tls"));
  }
  return contexts;
}

}  // namespace

std::string ContextsPath() {
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config != '\0')
    return absl::StrCat(config, "/sluice/contexts.yaml");
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "/tmp" : home, "/.config/sluice/contexts.yaml");
}

absl::StatusOr<Contexts> ReadContexts(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return Contexts();
  if (!text.ok()) return text.status();
  try {
    return ContextsFromYaml(path, YAML::Load(*text));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

absl::Status WriteContexts(const std::string& path, const Contexts& contexts) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [name, context] : contexts.all)
    all[name] = {{"server", context.server}, {"tls", context.tls}};
  SLUICE_RETURN_IF_ERROR(MakeDirs(std::filesystem::path(path).parent_path().string()));
  return WriteFileAtomic(
      path, FormatData({{"current", contexts.current}, {"contexts", std::move(all)}}, "yaml"));
}

absl::StatusOr<std::optional<ChosenContext>> ChooseContext(const std::string& flag) {
  SLUICE_ASSIGN_OR_RETURN(const Contexts contexts, ReadContexts(ContextsPath()));
  const char* const env = std::getenv("SLUICE_CONTEXT");
  const std::string name = !flag.empty()                    ? flag
                           : env != nullptr && *env != '\0' ? std::string(env)
                                                            : contexts.current;
  if (name.empty()) return std::nullopt;
  const auto found = contexts.all.find(name);
  if (found != contexts.all.end()) return ChosenContext{name, found->second, !flag.empty()};

  std::vector<absl::string_view> names;
  for (const auto& [known, context] : contexts.all) names.emplace_back(known);
  const absl::string_view nearest = NearestMatch(name, names);
  return ErrorWith(
      absl::StatusCode::kNotFound,
      {.hint = !nearest.empty() ? absl::StrCat("did you mean ", nearest, "?")
               : names.empty()  ? "`sluice context set NAME --server HOST:PORT` makes one"
                                : absl::StrCat("there are ", absl::StrJoin(names, ", "))},
      absl::StrCat("there is no context ", name, " in ", ContextsPath()));
}

std::string& ContextFlag() {
  static std::string* const flag = new std::string();
  return *flag;
}

}  // namespace sluice::cli
