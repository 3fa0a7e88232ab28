#include "tests/deploy/manifest.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/command.h"

namespace sluice::deploy {
namespace {
namespace fs = std::filesystem;

const std::string kFolder = std::string(SLUICE_SOURCE_DIR) + "/deploy";

// The minor version of kubectl 1.x, such as 20; -1 if there is no kubectl.
int KubectlMinor() {
  static const int minor = [] {
    const absl::StatusOr<std::string> text =
        RunCommand({"kubectl", "version", "--client", "-o", "json"});
    if (!text.ok()) return -1;
    // Some builds add a word or a plus sign to the number.
    const std::string version = TextAt(YAML::Load(*text), "clientVersion.gitVersion");
    const std::vector<std::string> parts = absl::StrSplit(version, '.');
    int number = -1;
    return parts.size() > 1 && absl::SimpleAtoi(parts[1], &number) ? number : -1;
  }();
  return minor;
}

// Rewrites a kustomization for kustomize 2.0.3, which takes folders only under `bases`, files only
// under `resources`, and patches as a plain list of files. Both forms render the same.
std::string InOldWords(const fs::path& file, const std::string& text) {
  YAML::Node node = YAML::Load(text), bases, resources, patches;
  for (const YAML::Node& entry : node["resources"]) {
    const bool folder = fs::is_directory(file.parent_path() / entry.as<std::string>());
    (folder ? bases : resources).push_back(entry);
  }
  for (const YAML::Node& patch : node["patches"]) patches.push_back(patch["path"]);

  node.remove("resources");
  node.remove("patches");
  if (bases.size() > 0) node["bases"] = bases;
  if (resources.size() > 0) node["resources"] = resources;
  if (patches.size() > 0) node["patchesStrategicMerge"] = patches;
  return YAML::Dump(node);
}

absl::StatusOr<std::string> RenderInOldWords(const std::string& overlay,
                                             const std::string& deploy) {
  SLUICE_ASSIGN_OR_RETURN(const std::string copy, MakeTempDir());
  std::error_code error;
  fs::copy(deploy, copy, fs::copy_options::recursive, error);
  if (error) return absl::InternalError(absl::StrCat("copying ", deploy, ": ", error.message()));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(copy)) {
    if (entry.path().filename() != "kustomization.yaml") continue;
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(entry.path().string()));
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(entry.path().string(), InOldWords(entry.path(), text)));
  }
  return RunCommand({"kubectl", "kustomize", absl::StrCat(copy, "/k8s/overlays/", overlay)});
}

void AddLines(const YAML::Node& node, const std::string& path, std::set<std::string>* lines) {
  if (node.IsMap()) {
    for (const auto& entry : node)
      AddLines(entry.second, absl::StrCat(path, ".", entry.first.as<std::string>()), lines);
  } else if (node.IsSequence()) {
    // Elements with a name go by it: their order differs between versions of kubectl.
    for (size_t i = 0; i < node.size(); ++i) {
      const std::string name = node[i].IsMap() ? TextAt(node[i], "name") : "";
      AddLines(node[i], absl::StrCat(path, ".", name.empty() ? absl::StrCat(i) : name), lines);
    }
  }
  const bool leaf = !node.IsMap() && !node.IsSequence();
  if (leaf || node.size() == 0)
    lines->insert(absl::StrCat(path, " = ", leaf ? node.as<std::string>("null") : "{}"));
}

}  // namespace

bool HasKubectl() { return KubectlMinor() >= 0; }

absl::StatusOr<std::string> Render(const std::string& overlay, const std::string& deploy) {
  const std::string folder = deploy.empty() ? kFolder : deploy;
  if (KubectlMinor() < 21) return RenderInOldWords(overlay, folder);
  return RunCommand({"kubectl", "kustomize", absl::StrCat(folder, "/k8s/overlays/", overlay)});
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text) {
  Manifest manifest;
  try {
    for (const YAML::Node& node : YAML::LoadAll(text)) {
      Object object{TextAt(node, "kind"), TextAt(node, "metadata.name"), node};
      if (object.kind.empty() || object.name.empty())
        return absl::InvalidArgumentError("an object has no kind or no name");
      manifest.push_back(std::move(object));
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return manifest;
}

YAML::Node At(const YAML::Node& node, const std::string& path) {
  YAML::Node here = node;
  // Label keys have dots too, so they cannot be a part of a path: see LabelsAt().
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    size_t index = 0;
    const bool indexed = here.IsSequence() && absl::SimpleAtoi(part, &index);
    if (!indexed && !here.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
    const YAML::Node next = indexed ? std::as_const(here)[index] : std::as_const(here)[part];
    if (!next.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    here.reset(next);
  }
  return here;
}

std::string TextAt(const YAML::Node& node, const std::string& path) {
  const YAML::Node found = At(node, path);
  return found.IsDefined() && found.IsScalar() ? found.as<std::string>() : "";
}

Labels LabelsAt(const YAML::Node& node, const std::string& path) {
  const YAML::Node found = At(node, path);
  return found.IsDefined() && found.IsMap() ? found.as<Labels>() : Labels();
}

YAML::Node PodSpec(const Object& object) { return At(object.yaml, "spec.template.spec"); }

Labels PodLabels(const Object& object) {
  return LabelsAt(object.yaml, "spec.template.metadata.labels");
}

std::string RoleOf(const Object& object) {
  const Labels labels = LabelsAt(object.yaml, "metadata.labels");
  const auto role = labels.find("app.kubernetes.io/component");
  return role == labels.end() ? "" : role->second;
}

const Object* Find(const Manifest& manifest, const std::string& kind, const std::string& name) {
  const auto found = std::find_if(manifest.begin(), manifest.end(), [&](const Object& object) {
    return object.kind == kind && object.name == name;
  });
  return found == manifest.end() ? nullptr : &*found;
}

bool Selects(const YAML::Node& selector, const Labels& labels) {
  const auto value = [&](const std::string& key) {
    const auto label = labels.find(key);
    return label == labels.end() ? "" : label->second;
  };
  for (const auto& [key, wanted] : LabelsAt(selector, "matchLabels"))
    if (value(key) != wanted) return false;
  const YAML::Node expressions = At(selector, "matchExpressions");
  if (!expressions.IsDefined()) return true;
  return std::all_of(expressions.begin(), expressions.end(), [&](const YAML::Node& expression) {
    const auto allowed = expression["values"].as<std::vector<std::string>>();
    return TextAt(expression, "operator") == "In" &&
           std::count(allowed.begin(), allowed.end(), value(TextAt(expression, "key"))) > 0;
  });
}

std::string Describe(const Manifest& manifest) {
  std::set<std::string> lines;
  for (const Object& object : manifest)
    AddLines(object.yaml, absl::StrCat(object.kind, "/", object.name, " "), &lines);
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

}  // namespace sluice::deploy
