// The check that every name in a manifest is that of something.

#include <algorithm>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "tests/deploy/checks.h"

namespace sluice::deploy {
namespace {

class NameCheck {
 public:
  NameCheck(const Manifest& manifest, const Manifest& secrets)
      : manifest_(manifest), secrets_(secrets) {
    const auto text = ReadFile(std::string(SLUICE_SOURCE_DIR) + "/deploy/images/Dockerfile");
    dockerfile_ = text.ok() ? *text : "";
  }

  std::vector<std::string> Run() {
    for (const Object& object : manifest_) {
      object_ = &object;
      if (object.kind != "Namespace")
        Want(TextAt(object.yaml, "metadata.namespace") == "sluice", "it is in no namespace");
      if (PodSpec(object).IsDefined()) CheckWorkload();
      if (object.kind == "Service") CheckService();
      if (object.kind == "PodDisruptionBudget")
        Want(HasPods(object.yaml["spec"]["selector"]), "its selector selects no pod");
      if (object.kind == "HorizontalPodAutoscaler") CheckAutoscaler();
    }
    return std::move(findings_);
  }

 private:
  void Want(bool holds, const std::string& otherwise) {
    if (!holds)
      findings_.push_back(absl::StrCat(object_->kind, "/", object_->name, ": ", otherwise));
  }

  bool HasPods(const YAML::Node& selector) const {
    return std::any_of(manifest_.begin(), manifest_.end(), [&](const Object& object) {
      return PodSpec(object).IsDefined() && Selects(selector, PodLabels(object));
    });
  }

  // `address` is SERVICE:PORT.
  void CheckAddress(const std::string& address) {
    const std::vector<std::string> parts = absl::StrSplit(address, ':');
    const Object* const service = Find(manifest_, "Service", parts[0]);
    bool open = false;
    if (service != nullptr && parts.size() == 2)
      for (const YAML::Node& port : service->yaml["spec"]["ports"])
        open = open || TextAt(port, "port") == parts[1];
    Want(open, absl::StrCat("no Service has the address ", address));
  }

  void CheckWorkload() {
    const YAML::Node spec = object_->yaml["spec"], pod = PodSpec(*object_);
    if (object_->kind != "Job")
      Want(Selects(spec["selector"], PodLabels(*object_)), "its selector misses its own pods");
    if (object_->kind == "StatefulSet")
      Want(Find(manifest_, "Service", TextAt(spec, "serviceName")) != nullptr,
           absl::StrCat("there is no Service ", TextAt(spec, "serviceName")));
    std::set<std::string> volumes;
    for (const YAML::Node& volume : pod["volumes"]) {
      volumes.insert(TextAt(volume, "name"));
      CheckVolume(volume);
    }
    for (const YAML::Node& claim : spec["volumeClaimTemplates"])
      volumes.insert(TextAt(claim, "metadata.name"));
    for (const YAML::Node& container : pod["containers"]) CheckContainer(container, volumes);
  }

  void CheckVolume(const YAML::Node& volume) {
    const auto check = [&](const Manifest& in, const char* kind, const std::string& name) {
      if (!name.empty())
        Want(Find(in, kind, name) != nullptr, absl::StrCat("there is no ", kind, " ", name));
    };
    // An optional Secret need not be there.
    if (TextAt(volume, "secret.optional") != "true")
      check(secrets_, "Secret", TextAt(volume, "secret.secretName"));
    check(manifest_, "ConfigMap", TextAt(volume, "configMap.name"));
    check(manifest_, "PersistentVolumeClaim", TextAt(volume, "persistentVolumeClaim.claimName"));
    for (const YAML::Node& item : At(volume, "configMap.items"))
      Want(DataOf(volume).contains(TextAt(item, "key")),
           absl::StrCat("no ConfigMap has the key ", TextAt(item, "key")));
  }

  // The keys and values of a volume's ConfigMap.
  Labels DataOf(const YAML::Node& volume) const {
    const Object* const map = Find(manifest_, "ConfigMap", TextAt(volume, "configMap.name"));
    return map == nullptr ? Labels() : LabelsAt(map->yaml, "data");
  }

  // The file must be a key of a ConfigMap that the container mounts as a whole.
  void CheckMountedFile(const YAML::Node& container, const std::string& file) {
    bool found = false;
    for (const YAML::Node& volume : PodSpec(*object_)["volumes"]) {
      for (const YAML::Node& mount : container["volumeMounts"]) {
        if (TextAt(mount, "name") != TextAt(volume, "name")) continue;
        for (const auto& [key, value] : DataOf(volume))
          found = found || file == absl::StrCat(TextAt(mount, "mountPath"), "/", key);
      }
    }
    Want(found, absl::StrCat("no ConfigMap has the file ", file));
  }

  void CheckContainer(const YAML::Node& container, const std::set<std::string>& volumes) {
    for (const YAML::Node& mount : container["volumeMounts"])
      Want(volumes.contains(TextAt(mount, "name")),
           absl::StrCat("there is no volume ", TextAt(mount, "name")));

    std::set<std::string> ports, variables;
    for (const YAML::Node& port : container["ports"]) ports.insert(TextAt(port, "name"));
    for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"}) {
      const std::string port = TextAt(container, absl::StrCat(probe, ".httpGet.port"));
      Want(port.empty() || ports.contains(port), absl::StrCat("it has no port ", port));
    }

    // A variable is replaced only if it is set before the place that names it.
    for (const YAML::Node& variable : container["env"]) {
      CheckVariables(TextAt(variable, "value"), variables);
      variables.insert(TextAt(variable, "name"));
      if (TextAt(variable, "name") == "SLUICE_SERVER") CheckAddress(TextAt(variable, "value"));
      if (TextAt(variable, "name") == "SLUICE_POLICY" ||
          TextAt(variable, "name") == "SLUICE_JUDGES")
        CheckMountedFile(container, TextAt(variable, "value"));
    }
    for (const YAML::Node& argument : container["args"]) {
      absl::string_view text = argument.Scalar();
      CheckVariables(std::string(text), variables);
      if (absl::ConsumePrefix(&text, "--controller=")) CheckAddress(std::string(text));
    }
    CheckImage(TextAt(container, "image"));
  }

  void CheckVariables(const std::string& text, const std::set<std::string>& set) {
    static const std::regex kVariable(R"(\$\((\w+)\))");
    for (std::sregex_iterator it(text.begin(), text.end(), kVariable), end; it != end; ++it)
      Want(set.contains((*it)[1]), absl::StrCat("no variable ", (*it)[1].str(), " is set"));
  }

  // The image of the Dockerfile's target T is sluice-T, and has a tag. That of Redis is its own.
  void CheckImage(const std::string& image) {
    static const std::regex kRedis(R"(.*/redis:[\w.-]+)");
    if (std::regex_match(image, kRedis)) return;
    static const std::regex kImage(R"((?:.*/)?sluice-(\w+):[\w.-]+)");
    std::smatch match;
    const bool named = std::regex_match(image, match, kImage) &&
                       absl::StrContains(dockerfile_, absl::StrCat(" AS ", match[1].str(), "\n"));
    Want(named, absl::StrCat("the Dockerfile makes no image ", image));
  }

  void CheckService() {
    // A Service's selector is a plain map.
    YAML::Node selector;
    selector["matchLabels"] = object_->yaml["spec"]["selector"];
    Want(HasPods(selector), "its selector selects no pod");
    for (const Object& workload : manifest_) {
      if (!PodSpec(workload).IsDefined() || !Selects(selector, PodLabels(workload))) continue;
      std::set<std::string> ports;
      for (const YAML::Node& port : PodSpec(workload)["containers"][0]["ports"])
        ports.insert(TextAt(port, "name"));
      for (const YAML::Node& port : object_->yaml["spec"]["ports"])
        Want(ports.contains(TextAt(port, "targetPort")),
             absl::StrCat("its pods have no port ", TextAt(port, "targetPort")));
    }
  }

  void CheckAutoscaler() {
    const std::string kind = TextAt(object_->yaml, "spec.scaleTargetRef.kind"),
                      name = TextAt(object_->yaml, "spec.scaleTargetRef.name");
    const Object* const target = Find(manifest_, kind, name);
    Want(target != nullptr, absl::StrCat("there is no ", kind, " ", name));
    // Else each `kubectl apply` would undo what the autoscaler did.
    if (target != nullptr)
      Want(TextAt(target->yaml, "spec.replicas").empty(), "its target sets `replicas` itself");
  }

  const Manifest& manifest_;
  const Manifest& secrets_;
  std::string dockerfile_;
  const Object* object_ = nullptr;  // The one being checked.
  std::vector<std::string> findings_;
};

}  // namespace

std::vector<std::string> FindUnresolvedNames(const Manifest& manifest, const Manifest& secrets) {
  return NameCheck(manifest, secrets).Run();
}

}  // namespace sluice::deploy
