#include "tools/sluice/reward_text.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/queue_text.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using queue::v1::PeekRow;
using TextRows = std::vector<std::vector<std::string>>;
using Steps = std::vector<std::pair<int64_t, int64_t>>;  // Ranges [first, last].

Json PeekedFields(const PeekRow& row) {
  Json fields = Json::parse(row.json(), nullptr, /*allow_exceptions=*/false);
  return fields.is_object() ? fields : Json::object();
}

std::string TextOr(const Json& json, const char* key, const std::string& otherwise) {
  const auto it = json.find(key);
  return it == json.end() || !it->is_string() || it->get<std::string>().empty()
             ? otherwise
             : it->get<std::string>();
}

std::string Plural(size_t count, const std::string& thing) {
  return absl::StrCat(count, " ", thing, count == 1 ? "" : "s");
}

// "1:2f/0/1/reward", from the group's id in full.
std::string BriefLetter(const std::string& id) {
  const size_t slash = id.find('/');
  return absl::StrCat(BriefGroup(id.substr(0, slash)),
                      slash == std::string::npos ? "" : id.substr(slash));
}

// "0..11, 14".
std::string RangesText(const Json& steps) {
  if (steps.empty()) return "-";
  return absl::StrJoin(steps, ", ", [](std::string* out, const Json& range) {
    const auto first = range.at(0).get<int64_t>(), last = range.at(1).get<int64_t>();
    absl::StrAppend(out, first, last > first ? absl::StrCat("..", last) : "");
  });
}

// The ranges joined where they touch or overlap.
Steps JoinSteps(Steps steps) {
  std::sort(steps.begin(), steps.end());
  Steps joined;
  for (const auto& [first, last] : steps) {
    if (!joined.empty() && first <= joined.back().second + 1)
      joined.back().second = std::max(joined.back().second, last);
    else joined.emplace_back(first, last);
  }
  return joined;
}

// Generations without a step come after those with one.
int64_t FirstStepOf(const Json& generation) {
  const Json& steps = generation.at("steps");
  return steps.empty() ? std::numeric_limits<int64_t>::max() : steps[0][0].get<int64_t>();
}

std::string VersionsText(const Json& rewards) {
  std::vector<std::string> versions;
  for (const auto& [name, version] : rewards.items())
    versions.push_back(absl::StrCat(name, " ", version.get<std::string>()));
  return versions.empty() ? "-" : absl::StrJoin(versions, "  ");
}

std::string FormatSince(const google::protobuf::Timestamp& at) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", rpc::FromProto(at), absl::UTCTimeZone());
}

std::string VersionIn(const reward::v1::DescribeResponse& described, const std::string& name) {
  for (const reward::v1::Reward& reward : described.rewards()) {
    if (reward.name() == name) return reward.version();
  }
  return "";
}

void AddComparison(const reward::v1::Shadow& of_daemon, Json& sum) {
  // The daemons have begun one after the other.
  const std::string since = of_daemon.has_since() ? FormatSince(of_daemon.since()) : "";
  if (const std::string first = sum.value("since", ""); first.empty() || since < first)
    sum["since"] = since;
  for (const auto& [key, count] : {std::pair("equal", of_daemon.equal()),
                                   {"higher", of_daemon.higher()},
                                   {"lower", of_daemon.lower()},
                                   {"unscorable", of_daemon.unscorable()},
                                   {"skipped", of_daemon.skipped()},
                                   {"same_steps", of_daemon.same_steps()},
                                   {"other_values", of_daemon.other_values()},
                                   {"other_places", of_daemon.other_places()}})
    sum[key] = sum.value(key, uint64_t{0}) + count;
  for (const auto& [key, value] : {std::pair("difference", of_daemon.difference()),
                                   {"distance", of_daemon.distance()},
                                   {"step_distance", of_daemon.step_distance()}})
    sum[key] = sum.value(key, 0.0) + value;
}

std::string ShadowLine(const Json& shadow, bool show_versions) {
  const uint64_t equal = shadow.at("equal"), higher = shadow.at("higher"),
                 lower = shadow.at("lower"), both = equal + higher + lower;
  std::string line = absl::StrCat("candidate ", shadow.at("name").get<std::string>(), " of ",
                                  shadow.at("of").get<std::string>());
  if (show_versions) {
    absl::StrAppend(&line, " (versions ", shadow.at("version").get<std::string>(), " and ",
                    shadow.at("of_version").get<std::string>(), ")");
  }
  absl::StrAppend(&line, ": ");
  if (both == 0) {
    absl::StrAppend(&line, "no answer compared yet");
  } else {
    const auto count = static_cast<double>(both);
    absl::StrAppend(&line,
                    absl::StrFormat("same score for %.1f %% of %d answers, higher %d, lower %d, "
                                    "mean difference %+.4f, mean distance %.4f",
                                    100 * static_cast<double>(equal) / count, both, higher, lower,
                                    shadow.at("difference").get<double>() / count,
                                    shadow.at("distance").get<double>() / count));
  }
  const uint64_t same = shadow.at("same_steps"), values = shadow.at("other_values"),
                 places = shadow.at("other_places"), stepped = same + values + places;
  if (stepped > 0) {
    absl::StrAppend(&line, absl::StrFormat("; steps rewarded the same in %d of %d answers, with "
                                           "other values in %d, at other places in %d, mean "
                                           "distance %.4f",
                                           same, stepped, values, places,
                                           shadow.at("step_distance").get<double>() /
                                               static_cast<double>(stepped)));
  }
  if (shadow.at("unscorable") > 0)
    absl::StrAppend(&line, ", unscorable ", shadow.at("unscorable").get<uint64_t>());
  if (shadow.at("skipped") > 0)
    absl::StrAppend(&line, ", skipped while busy ", shadow.at("skipped").get<uint64_t>());
  if (const std::string since = shadow.at("since"); !since.empty())
    absl::StrAppend(&line, ", since ", since);
  return line;
}

}  // namespace

absl::StatusOr<uint32_t> ParseGeneration(const std::string& name) {
  uint32_t generation = 0;
  if (name.size() == 8 && absl::SimpleHexAtoi(name, &generation) && generation != 0)
    return generation;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name,
                   "\" is no generation of the rewards; wanted eight hex digits, as `sluice reward "
                   "lineage` shows them"));
}

// Dead letters. -----------------------------------------------------------------------------------

Json DeadJson(const std::vector<PeekRow>& letters) {
  Json dead = Json::array();
  for (const PeekRow& letter : letters) {
    const Json fields = PeekedFields(letter);
    const std::string& id = letter.node().id();
    dead.push_back({{"id", BriefLetter(id)},
                    {"group", id.substr(0, id.find('/'))},
                    {"why", fields.value("why", "")},
                    {"cause", fields.value("cause", "")},
                    {"row", fields.value("row", Json::object())},
                    {"prompt", fields.value("prompt", "")},
                    {"generation", fields.value("generation", Json())},
                    {"worker", letter.worker()},
                    {"seconds", absl::ToDoubleSeconds(rpc::FromProto(letter.age()))}});
  }
  return dead;
}

std::string DeadText(const Json& dead) {
  if (dead.empty()) return "no answer is without a score\n";
  TextRows rows{{"ID", "ROW", "AGE", "WHY", "ITS PROMPT", "CAUSE"}};
  std::map<std::string, size_t> causes;
  for (const Json& letter : dead) {
    const Json& row = letter.at("row");
    const std::string cause = TextOr(letter, "cause", "-");
    ++causes[cause];
    rows.push_back(
        {TextOr(letter, "id", "-"),
         absl::StrCat(TextOr(row, "source", "-"), ":", row.value("index", 0)),
         ShortDuration(letter.at("seconds").get<double>()),
         letter.at("why") == "out_of_tries" ? "out of tries" : TextOr(letter, "why", "-"),
         TextOr(letter, "prompt", "-"), cause});
  }
  std::string text = Table(rows);
  if (dead.size() == 1) return text;

  std::vector<std::pair<size_t, std::string>> counts;
  for (const auto& [cause, count] : causes) counts.emplace_back(count, cause);
  std::sort(counts.rbegin(), counts.rend());
  TextRows summary{{"ANSWERS", "CAUSE"}};
  for (const auto& [count, cause] : counts) summary.push_back({absl::StrCat(count), cause});
  absl::StrAppend(&text, "\n", Table(summary));
  return text;
}

absl::StatusOr<Json> ChooseDead(const Json& dead, const std::vector<std::string>& ids,
                                const std::string& cause) {
  Json chosen = Json::array();
  std::vector<bool> found(ids.size());
  for (const Json& letter : dead) {
    const std::string id = letter.at("id"), group = letter.at("group");
    bool named = ids.empty();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != id && ids[i] != group && ids[i] != BriefGroup(group)) continue;
      named = found[i] = true;
    }
    if (named && absl::StrContains(letter.at("cause").get<std::string>(), cause))
      chosen.push_back(letter);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (found[i]) continue;
    return absl::NotFoundError(
        absl::StrCat("no answer without a score has the id ", ids[i],
                     "; `sluice reward dead` lists the ids, of which the newest 1000 are kept"));
  }
  if (!chosen.empty()) return chosen;
  return absl::NotFoundError(absl::StrCat("no answer without a score has a cause with \"", cause,
                                          "\"; `sluice reward dead` lists the causes"));
}

// Lineage. ----------------------------------------------------------------------------------------

Json LineageJson(const std::vector<PeekRow>& rows) {
  std::vector<Json> generations;
  std::map<std::pair<std::string, std::string>, Steps> versions;  // By reward and version.
  for (const PeekRow& row : rows) {
    const Json fields = PeekedFields(row);
    Json generation = {{"generation", row.node().id()},
                       {"state", row.state()},
                       {"steps", fields.value("steps", Json::array())},
                       {"groups", fields.value("groups", Json::object())},
                       {"rewards", fields.value("rewards", Json::object())},
                       {"workers", fields.value("workers", Json::array())}};
    for (const auto& [name, version] : generation.at("rewards").items()) {
      Steps& steps = versions[{name, version.get<std::string>()}];
      for (const Json& range : generation.at("steps"))
        steps.emplace_back(range.at(0).get<int64_t>(), range.at(1).get<int64_t>());
    }
    generations.push_back(std::move(generation));
  }
  std::stable_sort(generations.begin(), generations.end(),
                   [](const Json& a, const Json& b) { return FirstStepOf(a) < FirstStepOf(b); });

  Json rewards = Json::array();
  for (const auto& [key, steps] : versions) {
    rewards.push_back({{"name", key.first}, {"version", key.second}, {"steps", JoinSteps(steps)}});
  }
  return {{"generations", generations}, {"rewards", std::move(rewards)}};
}

std::string LineageText(const Json& lineage, const std::string& output) {
  const Json& generations = lineage.at("generations");
  if (output == "name") {
    return absl::StrJoin(generations, "", [](std::string* out, const Json& generation) {
      absl::StrAppend(out, generation.at("generation").get<std::string>(), "\n");
    });
  }
  if (generations.empty()) return "no group is scored yet\n";
  TextRows rows{{"GENERATION", "STATE", "TRAINED STEPS", "NOT IN A BATCH", "REWARDS"}};
  for (const Json& generation : generations) {
    const Json& groups = generation.at("groups");
    const int64_t loose = groups.value("open", int64_t{0}) + groups.value("accepted", int64_t{0});
    const std::string state = generation.at("state");
    rows.push_back({TextOr(generation, "generation", "-"), state == "in_use" ? "in use" : state,
                    RangesText(generation.at("steps")),
                    loose == 0 ? "-" : Plural(static_cast<size_t>(loose), "group"),
                    VersionsText(generation.at("rewards"))});
  }
  std::string text = Table(rows);
  if (lineage.at("rewards").empty()) return text;

  TextRows versions{{"REWARD", "VERSION", "TRAINED STEPS"}};
  for (const Json& reward : lineage.at("rewards")) {
    versions.push_back({TextOr(reward, "name", "-"), TextOr(reward, "version", "-"),
                        RangesText(reward.at("steps"))});
  }
  absl::StrAppend(&text, "\n", Table(versions));
  return text;
}

// What daemons have. ------------------------------------------------------------------------------

Json RewardsJson(const job::v1::InspectResponse& response) {
  Json daemons = Json::array();
  std::vector<Json> shadows;
  for (const job::v1::RewardDescribed& described : response.rewards()) {
    Json daemon = {{"daemon", described.daemon()},
                   {"error", described.error()},
                   {"generation", absl::StrFormat("%08x", described.answer().generation())},
                   {"earlier", Json::array()},
                   {"rewards", Json::array()}};
    for (const uint32_t earlier : described.answer().earlier())
      daemon["earlier"].push_back(absl::StrFormat("%08x", earlier));
    for (const reward::v1::Reward& reward : described.answer().rewards()) {
      daemon["rewards"].push_back({{"name", reward.name()},
                                   {"verifier", reward.verifier()},
                                   {"version", reward.version()},
                                   {"message", reward.message()}});
      if (!reward.has_shadow()) continue;
      // Daemons may have different versions for a while.
      const std::string of_version = VersionIn(described.answer(), reward.shadow().of());
      auto sum = std::find_if(shadows.begin(), shadows.end(), [&](const Json& shadow) {
        return shadow.at("name") == reward.name() && shadow.at("version") == reward.version() &&
               shadow.at("of_version") == of_version;
      });
      if (sum == shadows.end()) {
        shadows.push_back({{"name", reward.name()},
                           {"of", reward.shadow().of()},
                           {"version", reward.version()},
                           {"of_version", of_version}});
        sum = std::prev(shadows.end());
      }
      AddComparison(reward.shadow(), *sum);
    }
    daemons.push_back(std::move(daemon));
  }
  return {{"daemons", std::move(daemons)}, {"shadows", shadows}};
}

std::string RewardsText(const Json& rewards) {
  TextRows rows{{"DAEMON", "GENERATION", "REWARD", "VERIFIER", "VERSION", "REMARK"}};
  for (const Json& daemon : rewards.at("daemons")) {
    const std::string id = daemon.at("daemon");
    if (const std::string error = daemon.at("error"); !error.empty()) {
      rows.push_back({id, "-", "-", "-", "-", error});
      continue;
    }
    for (const Json& reward : daemon.at("rewards")) {
      rows.push_back({id, TextOr(daemon, "generation", "-"), TextOr(reward, "name", "-"),
                      TextOr(reward, "verifier", "-"), TextOr(reward, "version", "-"),
                      TextOr(reward, "message", "-")});
    }
    for (const Json& earlier : daemon.at("earlier"))
      rows.push_back({id, earlier.get<std::string>(), "-", "-", "-",
                      "ends the groups that it began to score"});
  }
  if (rows.size() == 1) return "the job has no reward daemon now\n";
  const std::string shadows = ShadowsText(rewards);
  return absl::StrCat(Table(rows), shadows.empty() ? "" : "\n", shadows);
}

std::string ShadowsText(const Json& rewards) {
  std::string text;
  std::map<std::string, int> lines;  // By the candidate's name.
  for (const Json& shadow : rewards.at("shadows")) ++lines[shadow.at("name")];
  for (const Json& shadow : rewards.at("shadows"))
    absl::StrAppend(&text, ShadowLine(shadow, lines[shadow.at("name")] > 1), "\n");
  return text;
}

// Reload. -----------------------------------------------------------------------------------------

Json ReloadJson(const job::v1::ReloadRewardsResponse& response) {
  Json rewards = Json::array();
  for (const job::v1::RewardReloaded& daemon : response.rewards()) {
    if (!daemon.error().empty()) {
      rewards.push_back({{"daemon", daemon.daemon()},
                         {"name", ""},
                         {"outcome", "ERROR"},
                         {"before", ""},
                         {"after", ""},
                         {"generation", ""},
                         {"message", daemon.error()}});
    }
    for (const reward::v1::Reloaded& reward : daemon.answer().rewards()) {
      const Json fields = ToJson(reward);
      rewards.push_back({{"daemon", daemon.daemon()},
                         {"name", reward.name()},
                         {"outcome", fields.at("outcome")},
                         {"before", reward.before()},
                         {"after", reward.after()},
                         {"generation", absl::StrFormat("%08x", daemon.answer().generation())},
                         {"message", reward.message()}});
    }
  }
  return rewards;
}

std::string ReloadText(const Json& reloaded) {
  TextRows rows{{"DAEMON", "REWARD", "OUTCOME", "VERSION", "GENERATION", "REMARK"}};
  for (const Json& reward : reloaded) {
    const std::string before = TextOr(reward, "before", "-"), after = TextOr(reward, "after", "-");
    std::string outcome = reward.at("outcome");
    std::transform(outcome.begin(), outcome.end(), outcome.begin(), absl::ascii_tolower);
    rows.push_back({TextOr(reward, "daemon", "-"), TextOr(reward, "name", "-"), outcome,
                    before == after ? before : absl::StrCat(before, " -> ", after),
                    TextOr(reward, "generation", "-"), TextOr(reward, "message", "-")});
  }
  return Table(rows);
}

bool AllLoaded(const Json& reloaded) {
  return std::none_of(reloaded.begin(), reloaded.end(), [](const Json& reward) {
    return reward.at("outcome") == "ERROR" || reward.at("outcome") == "FAILED";
  });
}

}  // namespace sluice::cli
