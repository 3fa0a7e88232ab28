#include "common/config/check.h"

#include <functional>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/checkpoint/model_config.h"
#include "common/config/fields.h"
#include "common/config/leaves.h"
#include "common/config/refused.h"
#include "common/config/rules.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice {
namespace {

// Replaces invalid bytes in the problem texts: they may quote files, which hold any bytes, and are
// sent in protobuf strings, which must be UTF-8.
std::vector<SpecProblem> WithCleanTexts(std::vector<SpecProblem> problems) {
  for (SpecProblem& problem : problems) problem.text = Utf8Lossy(problem.text);
  return problems;
}

// Warnings are only of interest if there are no errors.
SpecCheck ResultOf(const config::SpecProblems& found) {
  SpecCheck check{.errors = WithCleanTexts(found.errors()), .warnings = {}};
  if (check.errors.empty()) check.warnings = WithCleanTexts(found.warnings());
  return check;
}

absl::Status CheckProcessRoots(const std::string& path, bool written) {
  const std::shared_ptr<const Roots> roots = ProcessRoots();
  if (roots == nullptr) return absl::OkStatus();
  return roots->Check(path, written ? Roots::Access::kWrite : Roots::Access::kRead);
}

}  // namespace

void VisitPaths(const job::v1::JobSpec& spec,
                const std::function<void(const std::string& key, const std::string& path,
                                         bool written)>& visit) {
  config::VisitLeaves(spec, /*unset_blocks=*/false, [&](const config::Leaf& leaf) {
    const rpc::v1::FieldRule& rule = config::RuleOf(*leaf.field);
    if (!rule.path() || !config::IsSet(leaf)) return;
    const std::string path = leaf.message->GetReflection()->GetString(*leaf.message, leaf.field);
    if (path.empty() || absl::c_linear_search(rule.choices(), path)) return;
    visit(leaf.path, path, rule.written());
  });
  for (int i = 0; i < spec.reward().rewards_size(); ++i) {
    const job::v1::RewardEntry& entry = spec.reward().rewards(i);
    absl::StatusOr<nlohmann::json> args = VerifierArgs(entry);
    if (entry.verifier() != "plugin" || !args.ok()) continue;
    VisitPluginPaths(&*args, [&](const std::string& name, std::string* path) {
      // The interpreter is a program of the host, and no file of the job.
      if (name != "python")
        visit(absl::StrCat("reward.rewards.", i, ".args.", name), *path, /*written=*/false);
    });
  }
}

std::string SpecProblem::ToString() const {
  return absl::StrFormat("SLUICE-CONFIG-%04d %s", number, text);
}

uint32_t QueueTokenBytes(const job::v1::JobSpec& spec, const ModelConfig* model) {
  uint64_t bytes = 20;
  if (model != nullptr) bytes += sizeof(uint16_t) * model->num_layers * model->experts_per_token;
  if (GivesTokenRewards(spec.reward())) bytes += 2 * sizeof(uint32_t);
  return static_cast<uint32_t>(bytes);
}

SpecCheck CheckSingleValues(const job::v1::JobSpec& spec) {
  config::SpecProblems found;
  config::CheckValues(spec, &found);
  config::CheckRefused(spec, &found);
  return ResultOf(found);
}

SpecCheck CheckJobSpec(const job::v1::JobSpec& spec, const SpecCheckOptions& options) {
  SpecCheck check = CheckSingleValues(spec);
  // Stop here if single values are wrong: the rules across values would report them again, and the
  // file checks need correct values.
  if (!check.errors.empty()) return check;

  config::SpecProblems found;
  config::CheckRules(spec, &found);
  VisitPaths(spec, [&](const std::string& key, const std::string& path, bool written) {
    const absl::Status status = CheckProcessRoots(path, written);
    if (!status.ok()) found.Add(18, key, ": ", status.message());
  });
  if (found.errors().empty()) config::CheckUnusual(spec, &found);
  if (found.errors().empty() && options.check_files) {
    config::CheckFiles(spec, options.files_must_exist, &found);
  }
  return ResultOf(found);
}

absl::Status CheckOnDaemon(const job::v1::JobSpec& spec, bool writes) {
  config::SpecProblems missing;
  config::CheckRefused(spec, &missing);
  if (!missing.errors().empty()) {
    return absl::UnimplementedError(absl::StrJoin(
        missing.errors(), "; ",
        [](std::string* out, const SpecProblem& problem) { out->append(problem.text); }));
  }

  absl::Status outside;
  VisitPaths(spec, [&](const std::string& key, const std::string& path, bool written) {
    if (writes || !written) outside.Update(Annotate(CheckProcessRoots(path, written), key));
  });
  return outside;
}

}  // namespace sluice
