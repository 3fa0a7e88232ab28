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
                "jobs with the verifier code and jobs with plug-ins need one of these tiers where "
                "sluice-reward runs");
  }
  const std::string tier = absl::StrCat("tier ", (*launcher)->Describe());
  if ((*launcher)->tier() == sandbox::Tier::kNamespaces) return Pass(tier);
  return Warn(absl::StrCat(tier, ". ", (*launcher)->why_not_stronger()),
              "jobs run as it is, unless they want tier T1; a cgroup also limits the memory of all "
              "processes of a program together");
}

}  // namespace

std::vector<DoctorCheck> SandboxChecks() {
  return {{"sandbox", "tier", "programs of answers can be run in sandboxes", CheckTier}};
}

}  // namespace sluice::cli
