#include "common/policy/policy.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/check.h"
#include "common/config/fields.h"
#include "common/config/leaves.h"
#include "common/config/problems.h"
#include "common/config/read_file.h"
#include "common/config/rules.h"
#include "common/config/yaml_tree.h"
#include "sluice/job/v1/spec.pb.h"
#include "sluice/policy/v1/policy.pb.h"

namespace sluice {
namespace {

using config::Binder;
using config::Leaf;
using config::Problems;
using config::YamlNode;

constexpr int kBadCap = 18;

// The single value `key` of a spec. Nothing if there is no such key outside of lists.
std::optional<Leaf> FindLeaf(const job::v1::JobSpec& spec, absl::string_view key) {
  std::optional<Leaf> found;
  config::VisitLeaves(spec, /*unset_blocks=*/true, [&](const Leaf& leaf) {
    if (leaf.path == key && config::IsLeaf(*leaf.field) && !leaf.field->is_repeated()) found = leaf;
  });
  return found;
}

// Whether the value is `auto` or `none`.
bool IsUnset(const Leaf& leaf) {
  return !config::UnsetWord(*leaf.field).empty() && !config::IsSet(leaf);
}

// Reads the value of a cap as the job file would read it.
absl::StatusOr<double> ParseCap(const std::string& key, const std::string& text) {
  Problems problems({key});
  YamlNode root;
  root.kind = YamlNode::Kind::kMap;
  config::ApplySet(absl::StrCat(key, "=", text), 0, &root, &problems);
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  // A default job has no elements of lists, so their keys are not found.
  const bool known = FindLeaf(spec, key).has_value();
  if (problems.empty()) Binder("", "", "policy file", &problems).Bind(root, &spec, "");
  if (!problems.empty()) return absl::InvalidArgumentError(problems.Take()[0].text);

  const std::optional<Leaf> leaf = FindLeaf(spec, key);
  const std::optional<double> most = known && leaf ? config::NumberOf(*leaf) : std::nullopt;
  if (!most || IsUnset(*leaf)) {
    return absl::InvalidArgumentError(
        absl::StrCat("caps.", key, " is ", text,
                     ", but only a number, duration or size outside of lists can have a cap"));
  }
  return *most;
}

// Adds the problems of values that do not fit together.
void CheckPolicy(const policy::v1::Policy& file, const Binder& binder, Policy* policy,
                 Problems* problems) {
  for (const auto& [key, text] : file.caps()) {
    const absl::StatusOr<double> most = ParseCap(key, text);
    if (most.ok()) policy->caps.push_back({key, *most, text});
    else problems->Add(binder.PlaceOf("caps"), 10, std::string(most.status().message()));
  }
  std::sort(policy->caps.begin(), policy->caps.end(),
            [](const Policy::Cap& a, const Policy::Cap& b) { return a.key < b.key; });

  std::set<std::string> named;
  for (int i = 0; i < file.quotas_size(); ++i) {
    const policy::v1::Quota& quota = file.quotas(i);
    const std::string row = absl::StrCat("quotas.", i);
    if (!named.insert(quota.submitter()).second)
      problems->Add(
          binder.PlaceOf(row), 10,
          absl::StrCat(row, " is a second row for submitter \"", quota.submitter(), "\""));
    const absl::Status roots =
        Roots::Rules({quota.read_roots().begin(), quota.read_roots().end()},
                     {quota.write_roots().begin(), quota.write_roots().end()})
            .status();
    if (!roots.ok())
      problems->Add(binder.PlaceOf(row), 10, absl::StrCat(row, ": ", roots.message()));
  }
}

}  // namespace

const Policy::Quota* Policy::FindQuota(absl::string_view submitter) const {
  const Quota* every = nullptr;
  for (const Quota& quota : quotas) {
    if (quota.submitter == submitter) return &quota;
    if (quota.submitter == "*") every = &quota;
  }
  return every;
}

absl::StatusOr<Policy> ReadPolicy(const std::string& path) {
  policy::v1::Policy file;
  Policy policy;
  SLUICE_RETURN_IF_ERROR(config::ReadOperatorFile(path, "policy file", &file,
                                                  [&](const Binder& binder, Problems* problems) {
                                                    CheckPolicy(file, binder, &policy, problems);
                                                  }));

  for (const policy::v1::Quota& quota : file.quotas()) {
    Policy::Quota& row = policy.quotas.emplace_back();
    row.submitter = quota.submitter();
    if (quota.has_jobs()) row.jobs = quota.jobs();
    if (quota.has_trainers()) row.trainers = quota.trainers();
    if (quota.has_rollouts()) row.rollouts = quota.rollouts();
    row.pools.assign(quota.pools().begin(), quota.pools().end());
    row.judges.assign(quota.judges().begin(), quota.judges().end());
    row.plugin_servers.assign(quota.plugin_servers().begin(), quota.plugin_servers().end());
    row.read_roots.assign(quota.read_roots().begin(), quota.read_roots().end());
    row.write_roots.assign(quota.write_roots().begin(), quota.write_roots().end());
  }
  return policy;
}

std::vector<SpecProblem> CheckCaps(const Policy& policy, const job::v1::JobSpec& spec) {
  config::SpecProblems found;
  for (const Policy::Cap& cap : policy.caps) {
    const std::optional<Leaf> leaf = FindLeaf(spec, cap.key);
    if (!leaf) continue;  // In a block that the job leaves out.
    if (IsUnset(*leaf) && config::UnsetWord(*leaf->field) == "auto") continue;
    if (!IsUnset(*leaf) && config::NumberOf(*leaf) <= cap.most) continue;
    found.Add(kBadCap, cap.key, " is ", config::LeafText(*leaf->message, *leaf->field),
              ", but the operator's policy allows at most ", cap.text);
  }
  return found.errors();
}

}  // namespace sluice
