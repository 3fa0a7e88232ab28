// Checks of pods: how they are confined, what they may use, and their probes.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/deploy/checks.h"

namespace sluice::deploy {
namespace {

// The value that `path` must have in the pods of an object.
struct Wanted {
  const char* path;
  const char* value;
};

constexpr Wanted kOfPods[] = {
    {"automountServiceAccountToken", "false"},
    {"securityContext.seccompProfile.type", "RuntimeDefault"},
    // Without it the group of the pod could not read its key.
    {"securityContext.fsGroup", "10001"},
};
constexpr Wanted kOfContainers[] = {
    {"securityContext.allowPrivilegeEscalation", "false"},
    {"securityContext.readOnlyRootFilesystem", "true"},
    {"securityContext.capabilities.drop.0", "ALL"},
};
// What people expect of pods but those of rewards, whose sandboxes need users of their own, and so
// these capabilities (pod_test.cc of tests/common/sandbox shows that they need each).
constexpr Wanted kOfUnprivilegedPods[] = {{"securityContext.runAsNonRoot", "true"}};
constexpr const char* kCapabilitiesOfRewards[] = {"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID",
                                                  "SETUID"};

// What `restricted` forbids by name, and what would leave the confinement.
constexpr const char* kForbidden[] = {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"};

// The time that each role gets between SIGTERM and SIGKILL.
const std::map<std::string, std::string> kGrace = {{"controller", "15"},
                                                   {"queue", "30"},
                                                   {"rollout", "120"},
                                                   {"reward", "30"},
                                                   {"trainer", "600"}};

class Findings {
 public:
  void Expect(const Object& object, const YAML::Node& node, const std::string& path,
              const std::string& wanted) {
    const std::string is = TextAt(node, path);
    if (is != wanted) Add(object, absl::StrCat(path, " is '", is, "', wanted: '", wanted, "'"));
  }
  void Add(const Object& object, const std::string& what) {
    sentences_.push_back(absl::StrCat(object.kind, "/", object.name, ": ", what));
  }
  std::vector<std::string> Take() { return std::move(sentences_); }

 private:
  std::vector<std::string> sentences_;
};

void CheckResources(const Object& object, const YAML::Node& container, Findings* findings) {
  for (const char* what : {"memory", "ephemeral-storage"}) {
    const std::string limit = TextAt(container, absl::StrCat("resources.limits.", what));
    if (limit.empty()) findings->Add(object, absl::StrCat("no limit of ", what));
    findings->Expect(object, container, absl::StrCat("resources.requests.", what), limit);
  }
  if (TextAt(container, "resources.requests.cpu").empty())
    findings->Add(object, "no request of cpu");
  // A limit of CPU time would stop a daemon that holds a lease in the middle of its work.
  findings->Expect(object, container, "resources.limits.cpu", "");
}

void CheckPrivileges(const Object& object, const YAML::Node& pod, Findings* findings) {
  const bool of_reward = RoleOf(object) == "reward";
  if (!of_reward) {
    for (const Wanted& wanted : kOfUnprivilegedPods)
      findings->Expect(object, pod, wanted.path, wanted.value);
  }
  for (const YAML::Node& container : pod["containers"]) {
    const YAML::Node added = At(container, "securityContext.capabilities.add");
    size_t known = 0;
    for (const char* capability : kCapabilitiesOfRewards) {
      if (of_reward && TextAt(added, absl::StrCat(known)) == capability) ++known;
    }
    if (added.IsDefined() && added.size() != known) findings->Add(object, "a capability is added");
  }
}

void CheckVolumes(const Object& object, const YAML::Node& pod, Findings* findings) {
  for (const YAML::Node& volume : pod["volumes"]) {
    const bool known = volume["secret"] || volume["configMap"] || volume["emptyDir"] ||
                       volume["persistentVolumeClaim"];
    if (!known) findings->Add(object, absl::StrCat("volume ", TextAt(volume, "name")));
    // Others than the group of the pod must not read a key: 0440.
    if (volume["secret"]) findings->Expect(object, volume, "secret.defaultMode", "288");
    if (volume["emptyDir"] && TextAt(volume, "emptyDir.sizeLimit").empty())
      findings->Add(object, absl::StrCat("volume ", TextAt(volume, "name"), " has no sizeLimit"));
  }
}

}  // namespace

std::vector<std::string> FindUnconfinedPods(const Manifest& manifest) {
  Findings findings;
  for (const Object& object : manifest) {
    const YAML::Node pod = PodSpec(object);
    if (!pod.IsDefined()) continue;
    for (const Wanted& wanted : kOfPods) findings.Expect(object, pod, wanted.path, wanted.value);
    for (const char* path : kForbidden) findings.Expect(object, pod, path, "");
    CheckVolumes(object, pod, &findings);
    CheckPrivileges(object, pod, &findings);
    for (const YAML::Node& container : pod["containers"]) {
      for (const Wanted& wanted : kOfContainers)
        findings.Expect(object, container, wanted.path, wanted.value);
      CheckResources(object, container, &findings);
    }
    if (pod["initContainers"]) findings.Add(object, "an initContainer, which no check looks at");
  }
  return findings.Take();
}

std::vector<std::string> FindWrongProbes(const Manifest& manifest) {
  Findings findings;
  for (const auto& [role, grace] : kGrace) {
    const auto found = std::find_if(manifest.begin(), manifest.end(), [&](const Object& object) {
      return RoleOf(object) == role && PodSpec(object).IsDefined();
    });
    if (found == manifest.end()) {
      findings.Add({"Role", role, {}}, "no object makes its pods");
      continue;
    }
    const YAML::Node pod = PodSpec(*found), daemon = pod["containers"][0];
    findings.Expect(*found, pod, "terminationGracePeriodSeconds", grace);
    for (const auto& [probe, path] : {std::pair{"startupProbe", "/livez"},
                                      {"livenessProbe", "/livez"},
                                      {"readinessProbe", "/readyz"}}) {
      findings.Expect(*found, daemon, absl::StrCat(probe, ".httpGet.path"), path);
      findings.Expect(*found, daemon, absl::StrCat(probe, ".httpGet.port"), "ops");
    }
  }
  return findings.Take();
}

}  // namespace sluice::deploy
