// The edges that a set of NetworkPolicies allows.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/deploy/checks.h"

namespace sluice::deploy {
namespace {

std::string DescribeLabels(const YAML::Node& peer, const std::string& path) {
  return absl::StrCat("{", absl::StrJoin(LabelsAt(peer, path), ",", absl::PairFormatter("=")), "}");
}

std::string DescribePort(const YAML::Node& port) {
  const std::string end = TextAt(port, "endPort");
  return absl::StrCat(TextAt(port, "port"), end.empty() ? "" : absl::StrCat("-", end), "/",
                      TextAt(port, "protocol"));
}

// All labels that a pod of Sluice can have, by role: those of the workloads, and those of the CLI,
// which people run too.
std::map<std::string, Labels> LabelsOfRoles(const Manifest& manifest) {
  std::map<std::string, Labels> roles;
  for (const Object& object : manifest)
    if (PodSpec(object).IsDefined()) roles[RoleOf(object)] = PodLabels(object);
  roles["cli"] = {{"app.kubernetes.io/name", "sluice"}, {"app.kubernetes.io/component", "cli"}};
  return roles;
}

// The peers of a rule. A peer with a namespaceSelector is outside of the fleet.
std::vector<std::string> ListPeers(const YAML::Node& peers,
                                   const std::map<std::string, Labels>& roles) {
  if (!peers.IsDefined() || peers.size() == 0) return {"anyone"};
  std::vector<std::string> names;
  for (const YAML::Node& peer : peers) {
    const bool inside = !peer["namespaceSelector"].IsDefined() && peer["podSelector"].IsDefined();
    if (!inside) {
      names.push_back(absl::StrCat("namespace",
                                   DescribeLabels(peer, "namespaceSelector.matchLabels"), " pod",
                                   DescribeLabels(peer, "podSelector.matchLabels")));
      continue;
    }
    for (const auto& [role, labels] : roles)
      if (Selects(peer["podSelector"], labels)) names.push_back(role);
  }
  return names;
}

// Edges as the policies of one direction, "ingress" or "egress", allow them.
std::set<std::string> ListAllowed(const Manifest& manifest, const std::string& direction,
                                  const std::map<std::string, Labels>& roles) {
  std::set<std::string> edges;
  for (const Object& policy : manifest) {
    const YAML::Node rules = At(policy.yaml, absl::StrCat("spec.", direction));
    if (policy.kind != "NetworkPolicy" || !rules.IsDefined()) continue;
    for (const auto& [role, labels] : roles) {
      if (!Selects(At(policy.yaml, "spec.podSelector"), labels)) continue;
      for (const YAML::Node& rule : rules) {
        for (const std::string& peer :
             ListPeers(At(rule, direction == "ingress" ? "from" : "to"), roles)) {
          const std::string who = direction == "ingress" ? absl::StrCat(peer, " -> ", role)
                                                         : absl::StrCat(role, " -> ", peer);
          const YAML::Node ports = At(rule, "ports");
          if (!ports.IsDefined()) edges.insert(absl::StrCat(who, " any port"));
          for (const YAML::Node& port : ports)
            edges.insert(absl::StrCat(who, " ", DescribePort(port)));
        }
      }
    }
  }
  return edges;
}

}  // namespace

std::set<std::string> ListEdges(const Manifest& manifest) {
  const std::map<std::string, Labels> roles = LabelsOfRoles(manifest);
  const std::set<std::string> in = ListAllowed(manifest, "ingress", roles),
                              out = ListAllowed(manifest, "egress", roles);
  std::set<std::string> edges;
  std::set_intersection(in.begin(), in.end(), out.begin(), out.end(),
                        std::inserter(edges, edges.end()));
  // The other end of these edges is not for our policies to allow.
  for (const std::set<std::string>* one : {&in, &out})
    for (const std::string& edge : *one)
      if (edge.find("namespace{") != std::string::npos || edge.find("anyone") != std::string::npos)
        edges.insert(edge);
  return edges;
}

bool DeniesByDefault(const Manifest& manifest) {
  return std::any_of(manifest.begin(), manifest.end(), [](const Object& object) {
    if (object.kind != "NetworkPolicy") return false;
    const YAML::Node spec = object.yaml["spec"];
    const bool all = spec["podSelector"].IsMap() && spec["podSelector"].size() == 0;
    return all && spec["policyTypes"].size() == 2 && !spec["ingress"] && !spec["egress"];
  });
}

}  // namespace sluice::deploy
