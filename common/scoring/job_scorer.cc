#include "common/scoring/job_scorer.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/verifiers/judge.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

bool GradesSteps(const job::v1::RewardEntry& entry) {
  const auto kind = entry.args().fields().find("template");
  return entry.verifier() == "judge" && kind != entry.args().fields().end() &&
         kind->second.string_value() == "prm";
}

}  // namespace

absl::StatusOr<nlohmann::json> VerifierArgs(const job::v1::RewardEntry& entry) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(entry.args(), &text).ok()) {
    return absl::InvalidArgumentError(
        "the args have no JSON form: a number is not finite, or a value is not set");
  }
  return nlohmann::json::parse(text);
}

absl::StatusOr<Scorer> MakeScorer(const job::v1::Reward& reward, const ScorerServices& services) {
  std::vector<RewardRule> rules;
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    RewardRule rule{.name = entry.name(),
                    .verifier = entry.verifier(),
                    .weight = entry.weight(),
                    .gate = entry.gate(),
                    .gate_fail = entry.gate_fail(),
                    .scores_groups = entry.granularity() == "group",
                    .shadow = entry.shadow()};
    if (entry.has_timeout())
      rule.timeout =
          absl::Seconds(entry.timeout().seconds()) + absl::Nanoseconds(entry.timeout().nanos());
    const auto& sources = entry.when().data_source();
    rule.data_sources.assign(sources.begin(), sources.end());
    SLUICE_ASSIGN_OR_RETURN(rule.args, VerifierArgs(entry));
    rules.push_back(std::move(rule));
  }
  const Combine combine = reward.combine() == "product" ? Combine::kProduct
                          : reward.combine() == "min"   ? Combine::kMin
                                                        : Combine::kSum;
  return Scorer::Make(std::move(rules), combine, services);
}

std::set<std::string> JudgesOf(const job::v1::Reward& reward) {
  std::set<std::string> judges;
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    if (entry.verifier() != "judge") continue;
    const auto& args = entry.args().fields();
    const auto judge = args.find("judge");
    judges.insert(judge == args.end() ? "" : judge->second.string_value());
  }
  return judges;
}

bool RunsCode(const job::v1::Reward& reward) {
  return absl::c_any_of(reward.rewards(), [](const job::v1::RewardEntry& entry) {
    return entry.verifier() == "code";
  });
}

std::vector<const job::v1::RewardEntry*> PluginsOf(const job::v1::Reward& reward) {
  std::vector<const job::v1::RewardEntry*> plugins;
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    if (entry.verifier() == "plugin") plugins.push_back(&entry);
  }
  return plugins;
}

bool ScoresOutside(const job::v1::Reward& reward, absl::string_view source) {
  return absl::c_any_of(reward.rewards(), [&](const job::v1::RewardEntry& entry) {
    const auto& sources = entry.when().data_source();
    const bool applies = sources.empty() || absl::c_linear_search(sources, source);
    return applies && (entry.verifier() == "judge" || entry.verifier() == "plugin" ||
                       entry.verifier() == "code");
  });
}

bool ScoresGroups(const job::v1::Reward& reward) {
  return absl::c_any_of(reward.rewards(),
                        [](const auto& entry) { return entry.granularity() == "group"; });
}

int LongestTimeouts(const job::v1::RewardEntry& entry) {
  if (entry.has_shadow()) return 0;  // No task waits for it.
  // A second call is made if the process ended during the first.
  if (entry.verifier() == "plugin") return 4;
  if (entry.verifier() != "judge") return 1;
  const auto& args = entry.args().fields();
  const auto votes = args.find("votes");
  const int unsaid = GradesSteps(entry) ? kPrmVotes : 1;
  // Each vote may be asked for twice.
  return 4 * (votes == args.end() ? unsaid : static_cast<int>(votes->second.number_value()));
}

bool GivesTokenRewards(const job::v1::Reward& reward) {
  return absl::c_any_of(reward.rewards(), [](const job::v1::RewardEntry& entry) {
    return !entry.has_shadow() && GradesSteps(entry);
  });
}

std::string TaskPoolOf(const job::v1::Reward& reward) {
  const job::v1::Reward counted = WithoutShadows(reward);
  if (!JudgesOf(counted).empty() || !PluginsOf(counted).empty()) return "io";
  return RunsCode(counted) ? "sandbox" : "cpu";
}

job::v1::Reward WithoutShadows(const job::v1::Reward& reward) {
  job::v1::Reward counted = reward;
  counted.clear_rewards();
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    if (!entry.has_shadow()) *counted.add_rewards() = entry;
  }
  return counted;
}

}  // namespace sluice
