#include "tools/sluice/queue_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/rpc/convert.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using nlohmann::json;
using queue::v1::PeekRow;
using Rows = std::vector<std::vector<std::string>>;

int64_t TotalDropped(const common::v1::Ledger& ledger) {
  int64_t dropped = 0;
  for (const auto& [reason, count] : ledger.dropped()) dropped += count;
  return dropped;
}

template <typename Map>
uint64_t CountAt(const Map& map, const char* key) {
  const auto it = map.find(key);
  return it == map.end() ? 0 : static_cast<uint64_t>(it->second);
}

// Formats the counts that are not zero as "name count", largest first.
template <typename Map>
std::string CountsText(const Map& map) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const auto& [key, count] : map) {
    if (count != 0) counts.emplace_back(key, static_cast<int64_t>(count));
  }
  std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
    return std::pair(-a.second, a.first) < std::pair(-b.second, b.first);
  });
  return counts.empty() ? "none"
                        : absl::StrJoin(counts, "  ", [](std::string* out, const auto& entry) {
                            absl::StrAppend(out, entry.first, " ", entry.second);
                          });
}

// Formats the shares of the trained tokens by staleness.
std::string StalenessText(const queue::v1::StatsResponse& stats) {
  std::map<int64_t, int64_t> sorted;
  int64_t total = 0;
  for (const auto& [age, count] : stats.staleness()) {
    int64_t versions = 0;
    if (!absl::SimpleAtoi(age, &versions)) continue;
    sorted[versions] = count;
    total += count;
  }
  if (total == 0) return "nothing is trained yet";
  return absl::StrJoin(sorted, "  ", [&](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, ": ",
                    absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(entry.second) /
                                                   static_cast<double>(total)));
  });
}

std::string LengthRatioText(const queue::v1::StatsResponse& stats) {
  std::map<std::string, double> sorted;
  for (const auto& [name, ratio] : stats.length_ratio()) {
    // Leave out the ratios of single ranges of lengths, which are named SOURCE/EIGHTH.
    if (!absl::StrContains(name, "/")) sorted[name] = ratio;
  }
  if (sorted.empty()) return "nothing is trained yet";
  return absl::StrJoin(sorted, "  ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, " ", absl::StrFormat("%.2f", entry.second));
  });
}

std::string AgeText(const PeekRow& row) {
  return ShortDuration(absl::ToDoubleSeconds(rpc::FromProto(row.age())));
}
json ParseRowJson(const PeekRow& row) {
  const json parsed = json::parse(row.json(), nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json::object();
}

std::string PromptText(const json& row) {
  if (!row.is_object()) return "-";
  const uint64_t occurrence = row.value("occurrence", uint64_t{0});
  return absl::StrCat(row.value("source", ""), " row ", row.value("index", uint64_t{0}), " epoch ",
                      row.value("epoch", uint64_t{0}),
                      occurrence > 0 ? absl::StrCat(" again ", occurrence) : "");
}

// Counts a group's members by state: "3 sealed, 1 running".
std::string MembersText(const json& members) {
  std::map<std::string, int> states;
  for (const json& member : members) {
    const bool scored = member.contains("task_reward");
    ++states[scored ? "scored" : member.value("state", "")];
  }
  return absl::StrJoin(states, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
}

// Shortens the id of a task: GROUP/MEMBER/ATTEMPT/NAME, or GROUP/NAME if the task is about a whole
// group.
std::string TaskName(const std::string& id) {
  const std::vector<std::string> parts = absl::StrSplit(id, '/');
  std::vector<std::string> rest(parts.begin() + 1, parts.end());
  return absl::StrCat(BriefGroup(parts[0]), rest.empty() ? "" : "/", absl::StrJoin(rest, "/"));
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

void AddTasks(const std::vector<PeekRow>& tasks, std::string* out) {
  Rows rows{{"TASK", "STATE", "WORKER", "AGE", "CAUSE"}};
  for (const PeekRow& task : tasks) {
    rows.push_back({TaskName(task.node().id()), task.state(), OrDash(task.worker()), AgeText(task),
                    OrDash(ParseRowJson(task).value("cause", ""))});
  }
  if (rows.size() > 1) absl::StrAppend(out, "\n", Table(rows));
}

std::string IndentText(const std::string& text) {
  return absl::StrCat("    ", absl::StrJoin(absl::StrSplit(text, '\n'), "\n    "), "\n");
}

}  // namespace

int64_t LedgerGap(const common::v1::Ledger& ledger) {
  return ledger.accepted() - ledger.durable() - ledger.applied() - ledger.live() -
         TotalDropped(ledger);
}

std::string LedgerLine(const common::v1::Ledger& ledger) {
  const int64_t gap = LedgerGap(ledger);
  return absl::StrCat("accepted ", ledger.accepted(), " = durable ", ledger.durable(),
                      " + applied ", ledger.applied(), " + live ", ledger.live(), " + dropped ",
                      TotalDropped(ledger), gap == 0 ? "" : absl::StrCat("   OFF BY ", gap));
}

std::string StatsText(const queue::v1::StatsResponse& stats) {
  const common::v1::Ledger& ledger = stats.ledger();
  const uint64_t limit = CountAt(stats.slots(), "limit_per_step"),
                 window = CountAt(stats.slots(), "window_steps"),
                 overdue = CountAt(stats.slots(), "overdue");
  const std::string lowest =
      stats.lowest() < 0 ? "none: no live engine" : absl::StrCat(stats.lowest());
  std::vector<std::vector<std::string>> rows = {
      {"ledger",
       absl::StrCat(LedgerLine(ledger), LedgerGap(ledger) == 0 ? "   trajectories, balanced" : "")},
      {"dropped", CountsText(ledger.dropped())},
      {"tokens",
       absl::StrCat("generated ", ShortCount(static_cast<double>(ledger.tokens_generated())),
                    "  trained ", ShortCount(static_cast<double>(ledger.tokens_trained())),
                    "  masked ", ShortCount(static_cast<double>(ledger.tokens_masked())))},
      {"versions", absl::StrCat("K ", stats.version(), " (steps trained)  L ", lowest,
                                " (lowest an engine holds)  durable ", ledger.durable_version())},
      {"admission", absl::StrCat("up to ", absl::StrFormat("%g", stats.admission_staleness()),
                                 " versions ahead of L: ", window, " steps open")},
      {"advice", stats.advice()},
      {"slots", absl::StrCat("used ", CountAt(stats.slots(), "used"), " of ", window * limit, " (",
                             window, " steps x ", limit, ")",
                             overdue > 0 ? absl::StrCat("  of steps already cut ", overdue) : "")},
      {"groups", CountsText(stats.groups())},
      {"bytes", absl::StrCat("stored ", ShortBytes(CountAt(stats.bytes(), "stored")), "  reserved ",
                             ShortBytes(CountAt(stats.bytes(), "reserved")), "  quota ",
                             ShortBytes(CountAt(stats.bytes(), "quota")))},
      {"staleness",
       absl::StrCat(StalenessText(stats),
                    stats.staleness().empty() ? "" : "   of trained tokens, by versions")},
      {"length",
       absl::StrCat(LengthRatioText(stats),
                    stats.length_ratio().empty() ? "" : "   mean length trained / generated")},
      {"waiting", CountsText(stats.waiting())}};
  if (stats.groups().contains("first_wave_only")) {
    rows.push_back(
        {"waves", absl::StrCat("groups that ended with their first wave ",
                               CountAt(stats.groups(), "first_wave_only"), "  that got the second ",
                               CountAt(stats.groups(), "second_wave"), "  answers saved ",
                               stats.answers_saved())});
  }
  for (const std::string& sentence : stats.sampler()) rows.push_back({"sampler", sentence});
  return Table(rows);
}

std::string BriefGroup(const std::string& id) {
  uint64_t incarnation = 0, ordinal = 0;
  if (id.size() != 32 || !absl::SimpleHexAtoi(id.substr(0, 8), &incarnation) ||
      !absl::SimpleHexAtoi(id.substr(16), &ordinal))
    return id;
  return absl::StrFormat("%x:%02x", incarnation, ordinal);
}

std::string GroupIdOf(const std::string& name) {
  const std::vector<std::string> halves = absl::StrSplit(name, ':');
  uint64_t incarnation = 0, ordinal = 0;
  if (halves.size() == 2 && absl::SimpleHexAtoi(halves[0], &incarnation) &&
      absl::SimpleHexAtoi(halves[1], &ordinal) && incarnation <= 0xffffffff) {
    return FromHex(absl::StrFormat("%08x%08x%016x", incarnation, 0, ordinal)).value_or("");
  }
  return name.size() == 32 ? FromHex(absl::AsciiStrToLower(name)).value_or("") : "";
}

std::string PeekText(const PeekAnswers& answers, const std::string& output) {
  if (output == "name") {
    return absl::StrJoin(answers.groups, "", [](std::string* out, const PeekRow& row) {
      absl::StrAppend(out, BriefGroup(row.node().id()), "\n");
    });
  }
  const bool wide = output == "wide";
  Rows groups{{"GROUP", "STATE", "STEP", "AGE", "MEMBERS", "WORKERS", "PROMPT"}};
  if (wide) groups[0].push_back("ID");
  for (const PeekRow& row : answers.groups) {
    const json parsed = ParseRowJson(row), members = parsed.value("members", json::array());
    std::map<std::string, int> workers;
    for (const json& member : members) {
      const std::string state = member.value("state", "");
      if (state == "reserved" || state == "running") ++workers[OrDash(member.value("worker", ""))];
    }

    const int64_t slot = parsed.value("slot", int64_t{-1}),
                  batch = parsed.value("batch", int64_t{-1});
    groups.push_back({BriefGroup(row.node().id()), row.state(),
                      absl::StrCat(batch >= 0 ? batch : slot), AgeText(row), MembersText(members),
                      OrDash(absl::StrJoin(workers, " ",
                                           [](std::string* out, const auto& entry) {
                                             absl::StrAppend(out, entry.first, " ", entry.second);
                                           })),
                      PromptText(parsed.value("row", json()))});
    if (wide) groups.back().push_back(row.node().id());
  }

  std::string out = groups.size() > 1 ? Table(groups) : "no groups\n";

  // All tasks by state, then those with a failure (now or before) one by one.
  std::map<std::string, int> states;
  std::vector<PeekRow> shown;
  for (const PeekRow& task : answers.tasks) {
    ++states[task.state()];
    if (wide || !ParseRowJson(task).value("cause", "").empty()) shown.push_back(task);
  }
  if (!states.empty()) absl::StrAppend(&out, "\ntasks: ", CountsText(states), "\n");
  AddTasks(shown, &out);

  Rows batches{{"BATCH", "STATE", "GROUPS", "WORKER", "AGE"}};
  for (const PeekRow& row : answers.batches) {
    batches.push_back({row.node().id(), row.state(),
                       absl::StrCat(ParseRowJson(row).value("groups", uint64_t{0})),
                       OrDash(row.worker()), row.worker().empty() ? "-" : AgeText(row)});
  }
  if (batches.size() > 1) absl::StrAppend(&out, "\n", Table(batches));

  Rows prompts{{"PROMPT", "STATE"}};
  for (const PeekRow& row : answers.prompts)
    prompts.push_back({PromptText(ParseRowJson(row)),
                       row.state() == "again" ? "to be drawn again" : row.state()});
  if (prompts.size() > 1) absl::StrAppend(&out, "\n", Table(prompts));
  return out;
}

std::string GroupText(const PeekRow& group, const std::vector<PeekRow>& tasks,
                      const Decode& decode) {
  const json parsed = ParseRowJson(group), members = parsed.value("members", json::array());
  std::string out = absl::StrCat(
      "group ", BriefGroup(group.node().id()), "  ", group.state(), " for ", AgeText(group),
      "  step ",
      parsed.value("batch", int64_t{-1}) >= 0 ? parsed.value("batch", int64_t{-1})
                                              : parsed.value("slot", int64_t{-1}),
      "  ", PromptText(parsed.value("row", json())), "  id ", group.node().id(), "\n\n");
  Rows rows{{"MEMBER", "ATTEMPT", "STATE", "WORKER", "AGE", "TOKENS", "VERSIONS", "END", "REWARD"}};
  for (size_t m = 0; m < members.size(); ++m) {
    const json& member = members[m];
    const json versions = member.value("versions", json::array());
    rows.push_back(
        {absl::StrCat(m), absl::StrCat(member.value("attempt", 0)), member.value("state", ""),
         OrDash(member.value("worker", "")), ShortDuration(member.value("age", 0.0)),
         absl::StrCat(member.value("tokens", uint64_t{0})),
         versions.size() != 2         ? "-"
         : versions[0] == versions[1] ? versions[0].dump()
                                      : absl::StrCat(versions[0].dump(), "..", versions[1].dump()),
         OrDash(member.value("dropped", member.value("finish", ""))),
         member.contains("task_reward") ? absl::StrFormat("%g", member.value("task_reward", 0.0))
                                        : "-"});
  }
  absl::StrAppend(&out, Table(rows));
  AddTasks(tasks, &out);
  if (!decode) return out;
  absl::StrAppend(&out, "\nprompt:\n",
                  IndentText(decode(parsed.value("prompt_ids", std::vector<int32_t>()))));
  for (size_t m = 0; m < members.size(); ++m)
    absl::StrAppend(&out, "member ", m, ":\n",
                    IndentText(decode(members[m].value("ids", std::vector<int32_t>()))));
  return out;
}

}  // namespace sluice::cli
