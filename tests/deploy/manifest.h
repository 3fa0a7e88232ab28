#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Rendered Kubernetes objects, and how the tests of deploy/k8s get and read them.
namespace sluice::deploy {

struct Object {
  std::string kind, name;
  YAML::Node yaml;
};
using Manifest = std::vector<Object>;
using Labels = std::map<std::string, std::string>;

// Whether `kubectl` is there. It alone renders; no cluster is needed.
bool HasKubectl();

// Renders k8s/overlays/<overlay> of the folder deploy/ with `kubectl kustomize`. A kubectl below
// 1.21, such as that of Debian 12, gets a copy in the older words that it knows. `deploy` is that
// folder; empty: the one of this source tree.
absl::StatusOr<std::string> Render(const std::string& overlay, const std::string& deploy = "");

// Reads a stream of objects. INVALID_ARGUMENT: it is not YAML, or an object has no kind or name.
absl::StatusOr<Manifest> ParseManifest(const std::string& text);

// A path of keys and list indexes such as "spec.template.spec.containers.0.image". An undefined
// node if something on the way is missing.
YAML::Node At(const YAML::Node& node, const std::string& path);
// The scalar at `path`; empty if there is none.
std::string TextAt(const YAML::Node& node, const std::string& path);
// A map of scalars at `path`; empty if there is none.
Labels LabelsAt(const YAML::Node& node, const std::string& path);

// The spec of the pods that a Deployment, StatefulSet or Job makes; undefined for other kinds.
YAML::Node PodSpec(const Object& object);
// The labels of these pods.
Labels PodLabels(const Object& object);
// The role of an object of Sluice, its label app.kubernetes.io/component.
std::string RoleOf(const Object& object);

const Object* Find(const Manifest& manifest, const std::string& kind, const std::string& name);

// Whether a label selector (matchLabels, and matchExpressions with In) selects `labels`.
bool Selects(const YAML::Node& selector, const Labels& labels);

// One line for each scalar, "Kind/name path = value", in a fixed order. Two manifests with the same
// lines mean the same.
std::string Describe(const Manifest& manifest);

}  // namespace sluice::deploy
