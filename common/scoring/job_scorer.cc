#include "common/scoring/job_scorer.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/verifiers/judge.h"
#include "common/verifiers/plugin_spec.h"
#include "nlohmann/json.hpp"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
namespace {

bool GradesSteps(const job::v1::RewardEntry& entry) {
  const auto kind = entry.args().fields().find("template");
  return entry.verifier() == "judge" && kind != entry.args().fields().end() &&
         kind->second.string_value() == "prm";
}

double NumberIn(const job::v1::RewardEntry& entry, const char* arg, double unsaid) {
  const auto found = entry.args().fields().find(arg);
  return found == entry.args().fields().end() ? unsaid : found->second.number_value();
}

// A call of a judge or plug-in and the wait before it take a timeout each, and both may be needed
// twice: a judge's reply may be unreadable, and a plug-in's process may end.
constexpr int kCallTimeouts = 4;

// A program of the policy, and then a checker on what it printed.
absl::Duration LongestProgram(const job::v1::Reward& reward, const job::v1::RewardEntry& entry) {
  constexpr absl::Duration kGrace = absl::Seconds(10);  // For a sandbox beside the test.
  constexpr absl::Duration kUsualWall = absl::Seconds(10);
  constexpr double kMostTests = 100;
  const absl::Duration wall = reward.sandbox().has_wall()
                                  ? absl::Seconds(reward.sandbox().wall().seconds()) +
                                        absl::Nanoseconds(reward.sandbox().wall().nanos())
                                  : kUsualWall;
  // A test whose result is in doubt runs twice.
  const absl::Duration tests = NumberIn(entry, "max_tests", kMostTests) * (2 * wall + kGrace);
  return 2 * (kLongestTurn + kLongestCompile + 2 * kGrace + tests);
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

std::set<std::string> PluginServersOf(const job::v1::Reward& reward) {
  std::set<std::string> servers;
  for (const job::v1::RewardEntry* const entry : PluginsOf(reward)) {
    const auto& args = entry->args().fields();
    if (const auto server = args.find("grpc"); server != args.end())
      servers.insert(server->second.string_value());
  }
  return servers;
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

std::vector<const job::v1::RewardEntry*> PluginProgramsOf(const job::v1::Reward& reward) {
  std::vector<const job::v1::RewardEntry*> plugins = PluginsOf(reward);
  std::erase_if(plugins, [](const job::v1::RewardEntry* entry) {
    const absl::StatusOr<nlohmann::json> args = VerifierArgs(*entry);
    if (!args.ok()) return false;
    const absl::StatusOr<PluginSpec> spec = ParsePluginSpec(*args);
    return spec.ok() && spec->kind == PluginSpec::Kind::kGrpc;
  });
  return plugins;
}

bool ScoresOutside(const job::v1::Reward& reward, absl::string_view source) {
  return absl::c_any_of(reward.rewards(), [&](const job::v1::RewardEntry& entry) {
    const auto& sources = entry.when().data_source();
    const bool applies = sources.empty() || absl::c_linear_search(sources, source);
    return applies && !entry.has_shadow() &&
           (entry.verifier() == "judge" || entry.verifier() == "plugin" ||
            entry.verifier() == "code");
  });
}

bool ScoresGroups(const job::v1::Reward& reward) {
  return absl::c_any_of(reward.rewards(), [](const auto& entry) {
    return entry.granularity() == "group" && !entry.has_shadow();
  });
}

absl::Duration LongestTry(const job::v1::Reward& reward) {
  absl::Duration longest;
  for (const job::v1::RewardEntry& entry : reward.rewards()) {
    if (entry.has_shadow()) continue;  // No task waits for it.
    const absl::Duration timeout =
        absl::Seconds(entry.timeout().seconds()) + absl::Nanoseconds(entry.timeout().nanos());
    if (entry.verifier() == "code") {
      longest += LongestProgram(reward, entry);
    } else if (entry.verifier() == "judge") {
      const double votes = NumberIn(entry, "votes", GradesSteps(entry) ? kPrmVotes : 1);
      longest += kCallTimeouts * votes * timeout;
    } else if (entry.verifier() == "plugin") {
      longest += kCallTimeouts * timeout;
    } else {
      longest += timeout;
    }
  }
  return longest;
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
