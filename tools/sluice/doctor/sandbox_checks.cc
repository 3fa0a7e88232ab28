// Checks of the sandboxes in which rewards run programs.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/sandbox/sandbox.h"
#include "tools/sluice/doctor/checks.h"

namespace sluice::cli {
namespace {

// Runs a program in each tier, the strongest first.
Finding CheckTier(const DoctorInputs&) {
  const auto launcher = sandbox::Launcher::Make({});
  if (!launcher.ok()) {
    return Warn(std::string(launcher.status().message()),
                "jobs with the verifier code need one: install bubblewrap, and run sluice-reward "
                "with a cgroup that it may write to, or as root with Landlock (Linux 5.13)");
  }
  const sandbox::Tier tier = (*launcher)->tier();
  if (tier == sandbox::Tier::kNamespaces)
    return Pass("tier T1: namespaces, a seccomp filter and a cgroup");
  return Warn(
      absl::StrCat("tier ", NameOf(tier), ", a weaker one; ", (*launcher)->why_not_stronger()),
      "for tier T1 install bubblewrap, allow user namespaces, and give sluice-reward a "
      "cgroup that it may write to");
}

}  // namespace

std::vector<DoctorCheck> SandboxChecks() {
  return {{"sandbox", "tier", "programs of answers can be run in sandboxes", CheckTier}};
}

}  // namespace sluice::cli
