#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/deploy/manifest.h"

// What every rendered overlay must hold. Each function returns sentences about what does not hold.
namespace sluice::deploy {

// Names that nothing has: Secrets, ConfigMaps, claims, Services with their ports, volumes,
// variables in arguments, selectors without a pod, targets of autoscalers, images without a target
// in the Dockerfile. `secrets` are the Secrets that exist.
std::vector<std::string> FindUnresolvedNames(const Manifest& manifest, const Manifest& secrets);

// Pods that the level `restricted` of Pod Security would refuse, but for those of rewards, which
// may be root with five capabilities; that could write to their root file system, that carry a
// service account's token, or that have no limits.
std::vector<std::string> FindUnconfinedPods(const Manifest& manifest);

// Daemons without HTTP probes of /livez and /readyz on their ops port, or whose grace period
// differs from that of their role.
std::vector<std::string> FindWrongProbes(const Manifest& manifest);

// Who may open a connection to whom, as "rollout -> queue 7410/TCP", by the NetworkPolicies. Peers
// that are no pods of the fleet stand as "namespace{labels} pod{labels}". An edge between two roles
// counts only if both ends allow it.
std::set<std::string> ListEdges(const Manifest& manifest);

// Whether a policy denies all pods everything that no other policy allows.
bool DeniesByDefault(const Manifest& manifest);

}  // namespace sluice::deploy
