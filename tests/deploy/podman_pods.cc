// Renders an overlay, and turns its objects into pods that `podman play kube` runs, with what a
// cluster would do for them: volumes with the group and modes of a kubelet, addresses, and the
// names of Services.
//   podman_pods DEPLOY OVERLAY SECRETS DIR SUBNET
// DEPLOY is the folder deploy/, OVERLAY one of its overlays, SECRETS what make-secrets.sh has
// printed, and SUBNET the first three numbers of the addresses, as 10.89.7. Writes DIR/<pod>.yaml,
// and DIR/volumes/ for the pods to mount. Prints a line per pod: its name, address, file, and ops
// port (0 for a pod that ends by itself). The first pod has the address SUBNET.10. Must run as
// root, because Secrets belong to root.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "tests/deploy/manifest.h"

namespace sluice::deploy {
namespace {

constexpr int kFirstAddress = 10;

absl::Status SetOwner(const std::string& path, gid_t group, mode_t mode) {
  if (chown(path.c_str(), 0, group) != 0 || chmod(path.c_str(), mode) != 0)
    return ErrnoStatus(errno, absl::StrCat("owner and mode of ", path));
  return absl::OkStatus();
}

class Converter {
 public:
  Converter(Manifest rendered, Manifest secrets, std::string dir, std::string subnet)
      : rendered_(std::move(rendered)),
        secrets_(std::move(secrets)),
        dir_(std::move(dir)),
        subnet_(std::move(subnet)) {}

  absl::Status Run() {
    // The address of a Service is that of its only pod, so addresses are given first.
    int next = kFirstAddress;
    for (const Object& object : rendered_)
      if (PodSpec(object).IsDefined()) addresses_[object.name] = absl::StrCat(subnet_, ".", next++);
    for (const Object& object : rendered_)
      if (PodSpec(object).IsDefined()) SLUICE_RETURN_IF_ERROR(WritePod(object));
    return absl::OkStatus();
  }

 private:
  absl::Status WritePod(const Object& object) {
    const std::string name = absl::StrCat(object.name, "-0");
    YAML::Node spec = YAML::Clone(PodSpec(object));
    for (const auto& [service, address] : addresses_) {
      YAML::Node alias;
      alias["ip"] = address;
      alias["hostnames"].push_back(service);
      spec["hostAliases"].push_back(alias);
    }
    for (YAML::Node container : spec["containers"]) SetUpContainer(object, name, container);

    YAML::Node volumes;
    for (const YAML::Node& volume : spec["volumes"]) {
      SLUICE_ASSIGN_OR_RETURN(const std::string path, MakeVolume(name, spec, volume));
      volumes.push_back(HostPath(TextAt(volume, "name"), path));
    }
    for (const YAML::Node& claim : object.yaml["spec"]["volumeClaimTemplates"]) {
      SLUICE_ASSIGN_OR_RETURN(const std::string path, MakeVolume(name, spec, claim["metadata"]));
      volumes.push_back(HostPath(TextAt(claim, "metadata.name"), path));
    }
    spec["volumes"] = volumes;

    YAML::Node pod;
    pod["apiVersion"] = "v1";
    pod["kind"] = "Pod";
    pod["metadata"]["name"] = name;
    pod["metadata"]["labels"] = At(object.yaml, "spec.template.metadata.labels");
    pod["spec"] = spec;
    const std::string file = absl::StrCat(dir_, "/", name, ".yaml");
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(file, YAML::Dump(pod)));
    std::cout << name << " " << addresses_[object.name] << " " << file << " " << OpsPort(spec)
              << std::endl;
    return absl::OkStatus();
  }

  static std::string OpsPort(const YAML::Node& spec) {
    for (const YAML::Node& port : spec["containers"][0]["ports"])
      if (TextAt(port, "name") == "ops") return TextAt(port, "containerPort");
    return "0";
  }

  // Puts values in place of references, and removes the probes: podman would run them in the
  // container, which has no curl.
  void SetUpContainer(const Object& object, const std::string& name, YAML::Node container) {
    std::map<std::string, std::string> values;
    for (YAML::Node variable : container["env"]) {
      const std::string field = TextAt(variable, "valueFrom.fieldRef.fieldPath");
      std::string value = absl::StrReplaceAll(TextAt(variable, "value"), values);
      if (field == "metadata.name") value = name;
      if (field == "status.podIP") value = addresses_[object.name];
      if (TextAt(variable, "valueFrom.resourceFieldRef.resource") == "requests.cpu")
        value = TextAt(container, "resources.requests.cpu");
      variable.remove("valueFrom");
      variable["value"] = value;
      values[absl::StrCat("$(", TextAt(variable, "name"), ")")] = value;
    }
    for (YAML::Node argument : container["args"])
      argument = absl::StrReplaceAll(argument.Scalar(), values);
    for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"})
      container.remove(probe);
    container["image"] = absl::StrCat("localhost/", TextAt(container, "image"));
  }

  static YAML::Node HostPath(const std::string& name, const std::string& path) {
    YAML::Node volume;
    volume["name"] = name;
    volume["hostPath"]["path"] = path;
    return volume;
  }

  // Makes the folder of a volume as a kubelet does: it belongs to root and to the group of the pod.
  absl::StatusOr<std::string> MakeVolume(const std::string& pod, const YAML::Node& spec,
                                         const YAML::Node& volume) {
    const std::string path = absl::StrCat(dir_, "/volumes/", pod, "/", TextAt(volume, "name"));
    int group = 0;
    if (!absl::SimpleAtoi(TextAt(spec, "securityContext.fsGroup"), &group))
      return absl::InvalidArgumentError(absl::StrCat(pod, " has no fsGroup"));
    SLUICE_RETURN_IF_ERROR(MakeDirs(path));
    SLUICE_RETURN_IF_ERROR(SetOwner(path, group, 02775));
    if (const std::string map = TextAt(volume, "configMap.name"); !map.empty()) {
      const Object* const found = Find(rendered_, "ConfigMap", map);
      if (found == nullptr) return absl::NotFoundError(absl::StrCat("there is no ConfigMap ", map));
      for (const auto& [key, value] : LabelsAt(found->yaml, "data")) {
        const std::string file = absl::StrCat(path, "/", key);
        SLUICE_RETURN_IF_ERROR(WriteFileAtomic(file, value));
        SLUICE_RETURN_IF_ERROR(SetOwner(file, group, 0644));
      }
      return path;
    }
    const std::string secret = TextAt(volume, "secret.secretName");
    if (secret.empty()) return path;

    const Object* const found = Find(secrets_, "Secret", secret);
    if (found == nullptr && TextAt(volume, "secret.optional") == "true") return path;
    if (found == nullptr) return absl::NotFoundError(absl::StrCat("there is no Secret ", secret));
    SLUICE_RETURN_IF_ERROR(MakeDirs(absl::StrCat(path, "/..1")));
    for (const auto& [key, value] : LabelsAt(found->yaml, "data")) {
      std::string text;
      SLUICE_CHECK(absl::Base64Unescape(value, &text));
      const std::string file = absl::StrCat(path, "/..1/", key);
      SLUICE_RETURN_IF_ERROR(WriteSecretAtomic(file, text));
      int mode = 0;  // The rendered number is decimal.
      SLUICE_CHECK(absl::SimpleAtoi(TextAt(volume, "secret.defaultMode"), &mode));
      SLUICE_RETURN_IF_ERROR(SetOwner(file, group, static_cast<mode_t>(mode)));
      std::filesystem::create_symlink(absl::StrCat("..data/", key), absl::StrCat(path, "/", key));
    }
    std::filesystem::create_symlink("..1", absl::StrCat(path, "/..data"));
    return path;
  }

  const Manifest rendered_, secrets_;
  const std::string dir_, subnet_;
  std::map<std::string, std::string> addresses_;  // By the name of the object that makes the pod.
};

absl::StatusOr<Manifest> ReadManifest(const char* path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseManifest(text);
}

absl::Status Convert(char** argv) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Render(argv[2], argv[1]));
  SLUICE_ASSIGN_OR_RETURN(Manifest rendered, ParseManifest(text));
  SLUICE_ASSIGN_OR_RETURN(Manifest secrets, ReadManifest(argv[3]));
  return Converter(std::move(rendered), std::move(secrets), argv[4], argv[5]).Run();
}

}  // namespace
}  // namespace sluice::deploy

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: %s DEPLOY OVERLAY SECRETS DIR SUBNET\n", argv[0]);
    return 2;
  }
  const absl::Status status = sluice::deploy::Convert(argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return 1;
}
