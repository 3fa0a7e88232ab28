#include "common/config/job_file.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "common/config/bind.h"
#include "common/config/check.h"
#include "common/config/rules.h"
#include "common/config/yaml_tree.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/plugin_spec.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

using config::Binder;
using config::Problems;
using config::YamlNode;

constexpr char kDefaultPreset[] = "async_decoupled";

// Returns the name under algorithm.preset, or the default preset.
std::string PresetOf(const YamlNode& root) {
  const YamlNode* algorithm = root.Find("algorithm");
  const YamlNode* preset = algorithm == nullptr ? nullptr : algorithm->Find("preset");
  return preset == nullptr ? kDefaultPreset : preset->text;
}

void BindPreset(const std::string& name, Binder* binder, job::v1::JobSpec* spec) {
  const Row<AlgorithmSpec>* preset = FindRow(PresetRows(), name);
  if (preset == nullptr) return;  // CheckJobSpec() reports it.
  ApplyPreset(preset->value, spec->mutable_algorithm());

  // The values that `origins` attributes to the preset. ApplyPreset() also writes the other fields,
  // but no preset changes them from their defaults.
  for (const char* path :
       {"advantage.kind", "advantage.group_filter", "advantage.truncated", "advantage.kl",
        "loss.kind", "loss.prox", "loss.clip_low", "loss.clip_high", "loss.dual", "loss.tis",
        "loss.tis_level", "loss.veto", "loss.aggregation", "loss.kl", "loss.tis_low",
        "loss.tis_outside", "loss.ess_lr"}) {
    binder->MarkPreset(absl::StrCat("algorithm.", path));
  }
}

// Sets values that depend on others and are not given in the file.
void SetDerivedValues(const std::string& preset_name, Binder* binder, job::v1::JobSpec* spec) {
  // Whether neither the file nor a --set gives the value. A preset's value counts as not given.
  const auto not_given = [&](const std::string& path) {
    const auto at = binder->origins().find(path);
    return at == binder->origins().end() || at->second.place.line == 0;
  };
  job::v1::RolloutGroup& group = *spec->mutable_rollout()->mutable_group();
  if (not_given("rollout.group.min"))
    group.set_min(group.has_first_wave() ? std::min(group.first_wave(), group.size())
                                         : group.size());
  // A loss that the file names instead of the preset's brings its own bounds and averages, because
  // those of another loss would mean something else.
  const Row<AlgorithmSpec>* preset = FindRow(PresetRows(), preset_name);
  if (!not_given("algorithm.loss.kind") && preset != nullptr &&
      spec->algorithm().loss().kind() != preset->value.loss.kind) {
    ApplyLossDefaults(
        [&](const char* field) { return !not_given(absl::StrCat("algorithm.loss.", field)); },
        spec->mutable_algorithm()->mutable_loss());
  }
  // A preset's `self` takes the current policy as its own anchor, which is only right for one
  // optimizer step per batch. With more steps, the anchor is computed before the first (recompute).
  if (not_given("algorithm.loss.prox") && spec->algorithm().loss().prox() == "self" &&
      spec->trainer().batching().minibatches() > 1) {
    spec->mutable_algorithm()->mutable_loss()->set_prox("recompute");
  }
  if (not_given("weights.kv_cache") && spec->run().deterministic())
    spec->mutable_weights()->set_kv_cache("recompute");
}

// Warns of keys that the file gives although the loss that it trains with does not read them. Their
// defaults are there for every loss, so that only the file can say what was meant.
void WarnOfUnreadKeys(const job::v1::JobSpec& spec, const Binder& binder, Problems* warnings) {
  const job::v1::Loss& loss = spec.algorithm().loss();
  const Row<LossEntry>* row = FindRow(LossRows(), loss.kind());
  if (spec.kind() != "rl" || row == nullptr) return;
  const bool clips = row->value.clip != nullptr && loss.kind() != "cispo";
  struct Key {
    const char* name;
    bool read;
    const char* reader;
  };
  for (const Key& key :
       {Key{"clip_low", clips, "a loss that clips"}, Key{"clip_high", clips, "a loss that clips"},
        Key{"dual", (clips && !row->value.sequence_ratio) || !loss.has_dual(), "ppo, dapo or aepo"},
        Key{"tis_level", loss.has_tis(), "loss.tis"}, Key{"kl_kind", loss.kl() > 0, "loss.kl"}}) {
    const std::string path = absl::StrCat("algorithm.loss.", key.name);
    const auto origin = binder.origins().find(path);
    if (key.read || origin == binder.origins().end() || origin->second.place.line == 0) continue;
    warnings->Add(binder.PlaceOf(path), config::kWarningNumber,
                  absl::StrCat(path, " has no effect with loss.kind ", loss.kind(), "; it needs ",
                               key.reader));
  }
}

// Adds the problems that the check of the spec found, with their places in the file. If a value
// could not be read, the spec holds its default, and problems of that default are left out.
void AddWithPlaces(const std::vector<SpecProblem>& found, const Binder& binder,
                   Problems* problems) {
  const Problems unread = *problems;
  for (const SpecProblem& problem : found) {
    const config::Place place = binder.PlaceOf(problem.path);
    const bool given = binder.origins().count(problem.path) > 0;
    if (!given || !unread.Has(place)) problems->Add(place, problem.number, problem.text);
  }
}

// Relative paths in the args of plug-ins are resolved as those of other keys: against the folder of
// the job file, or in a --set against the working folder.
void ResolvePluginPaths(const std::filesystem::path& folder, const Binder& binder,
                        job::v1::JobSpec* spec) {
  for (int i = 0; i < spec->reward().rewards_size(); ++i) {
    job::v1::RewardEntry& entry = *spec->mutable_reward()->mutable_rewards(i);
    if (entry.verifier() != "plugin") continue;
    absl::StatusOr<nlohmann::json> args = VerifierArgs(entry);
    if (!args.ok()) continue;  // CheckJobSpec() reports it.

    const bool set = binder.PlaceOf(absl::StrCat("reward.rewards.", i, ".args")).source > 0;
    const std::filesystem::path base = set ? std::filesystem::current_path() : folder;
    VisitPluginPaths(&*args, [&](const std::string&, std::string* path) {
      *path = (base / *path).lexically_normal().string();
    });
    entry.mutable_args()->Clear();
    const std::string text = args->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    SLUICE_CHECK(google::protobuf::util::JsonStringToMessage(text, entry.mutable_args()).ok());
  }
}

JobFile FailedJobFile(const std::string& path, int number, std::string text) {
  JobFile file;
  file.problems.push_back({path, 0, 0, number, std::move(text)});
  return file;
}

}  // namespace

JobFile::JobFile() : spec(std::make_unique<job::v1::JobSpec>()) {}
JobFile::~JobFile() = default;
JobFile::JobFile(JobFile&&) noexcept = default;
JobFile& JobFile::operator=(JobFile&&) noexcept = default;

std::string ConfigProblem::ToString() const {
  const std::string place = line > 0 ? absl::StrCat(file, ":", line, ":", column) : file;
  const char* const severity = number == config::kWarningNumber ? "warning: " : "";
  return absl::StrFormat("%s SLUICE-CONFIG-%04d %s%s", place, number, severity, text);
}

absl::Status ProblemStatus(const std::vector<ConfigProblem>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "BAD_CONFIG",
       .catalogue = absl::StrFormat("SLUICE-CONFIG-%04d", problems[0].number)},
      absl::StrJoin(problems, "\n", [](std::string* out, const ConfigProblem& problem) {
        out->append(problem.ToString());
      }));
}

JobFile ParseJobFile(absl::string_view text, const std::string& path,
                     const JobFileOptions& options) {
  if (text.size() > kMaxJobFileBytes) {
    return FailedJobFile(path, 2,
                         absl::StrCat("is ", text.size(), " bytes, but the maximum is ",
                                      kMaxJobFileBytes, " (1 MiB)"));
  }

  std::vector<std::string> sources{path};
  for (const std::string& set : options.sets) sources.push_back(absl::StrCat("--set ", set));
  Problems problems(sources), warnings(sources);
  // The sets change the tree, not the message, so that they have the same precedence rules and
  // error messages as the file.
  YamlNode root = config::ParseYaml(text, 0, &problems);
  for (size_t i = 0; i < options.sets.size() && problems.empty(); ++i) {
    config::ApplySet(options.sets[i], static_cast<int>(i) + 1, &root, &problems);
  }

  JobFile file;
  const std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  if (problems.empty()) {
    Binder binder(absolute.parent_path().string(), std::filesystem::current_path().string(),
                  "job file", &problems);
    // In order of precedence: default < preset < file and --set.
    binder.FillDefaults(file.spec.get(), "");
    BindPreset(PresetOf(root), &binder, file.spec.get());
    binder.Bind(root, file.spec.get(), "");
    SetDerivedValues(PresetOf(root), &binder, file.spec.get());
    ResolvePluginPaths(absolute.parent_path(), binder, file.spec.get());
    // If a value could not be read, its default is in the spec, and rules across values would
    // report something that nobody wrote. Then check single values only.
    const SpecCheck check = problems.empty()
                                ? CheckJobSpec(*file.spec, {.check_files = options.check_paths})
                                : CheckSingleValues(*file.spec);
    AddWithPlaces(check.errors, binder, &problems);
    AddWithPlaces(check.warnings, binder, &warnings);
    WarnOfUnreadKeys(*file.spec, binder, &warnings);
    for (const auto& [key, origin] : binder.origins()) file.origins[key] = origin.word;
  }

  file.problems = problems.Take();
  file.warnings = warnings.Take();
  file.hash = Sha256(absl::StrCat(absolute.parent_path().string(), absl::string_view("\0", 1), text,
                                  absl::string_view("\0", 1),
                                  absl::StrJoin(options.sets, absl::string_view("\0", 1))));
  return file;
}

JobFile ReadJobFile(const std::string& path, const JobFileOptions& options) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxJobFileBytes + 1);
  if (!text.ok()) return FailedJobFile(path, 1, std::string(text.status().message()));
  return ParseJobFile(*text, path, options);
}

absl::StatusOr<job::v1::JobSpec> LoadJobFile(const std::string& path,
                                             const std::vector<std::string>& sets) {
  JobFile file = ReadJobFile(path, {.sets = sets});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(file.problems));
  return std::move(*file.spec);
}

}  // namespace sluice
