#include "common/scoring/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// Raise this with every change of a verifier's results.
constexpr char kVerifiersVersion[] = "3";

bool Applies(const RewardRule& rule, const std::string& data_source) {
  return rule.data_sources.empty() || std::find(rule.data_sources.begin(), rule.data_sources.end(),
                                                data_source) != rule.data_sources.end();
}

nlohmann::json Canonical(const RewardRule& rule) {
  nlohmann::json canonical = {
      {"name", rule.name}, {"verifier", rule.verifier},   {"weight", rule.weight},
      {"gate", rule.gate}, {"gate_fail", rule.gate_fail}, {"sources", rule.data_sources},
      {"args", rule.args}};
  if (rule.scores_groups) canonical["granularity"] = "group";
  return canonical;
}

uint32_t GenerationOf(const std::vector<RewardRule>& rules, Combine combine,
                      const ScorerServices& services) {
  nlohmann::json canonical = {{"version", kVerifiersVersion},
                              {"combine", static_cast<int>(combine)},
                              {"rules", nlohmann::json::array()}};
  if (!services.judges.empty()) canonical["judges"] = services.judges;
  for (const RewardRule& rule : rules) {
    if (!rule.shadow.empty()) continue;  // It determines no score.
    if (rule.verifier == "code") canonical["toolchains"] = services.toolchains;
    const auto plugin = services.plugins.find(rule.args.dump());
    if (rule.verifier == "plugin" && plugin != services.plugins.end())
      canonical["plugins"].push_back(plugin->second);
    canonical["rules"].push_back(Canonical(rule));
  }
  uint32_t generation = 0;
  std::memcpy(&generation, Sha256(canonical.dump()).data(), sizeof generation);
  return generation;
}

std::string VersionOf(const RewardRule& rule, const ScorerServices& services) {
  nlohmann::json canonical = {{"version", kVerifiersVersion}, {"rule", Canonical(rule)}};
  const auto plugin = services.plugins.find(rule.args.dump());
  if (rule.verifier == "plugin" && plugin != services.plugins.end())
    canonical["plugin"] = plugin->second;
  if (rule.verifier == "judge") canonical["judges"] = services.judges;
  if (rule.verifier == "code") canonical["toolchains"] = services.toolchains;
  return ToHex(Sha256(canonical.dump()).substr(0, 4));
}

// Dumps JSON as text. A verifier may quote a part of an answer or row that ends inside a character,
// and dump() throws at such bytes by default.
std::string InfoText(const nlohmann::json& info) {
  return info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Score Unscorable(std::string reason, const nlohmann::json& info) {
  return {.status = std::move(reason), .parts = {}, .info = InfoText(info)};
}

}  // namespace

absl::StatusOr<Scorer> Scorer::Make(std::vector<RewardRule> rules, Combine combine,
                                    const ScorerServices& services) {
  if (rules.empty())
    return absl::InvalidArgumentError("reward.rewards is empty; at least one rule is needed");
  Scorer scorer;
  scorer.combine_ = combine;
  scorer.generation_ = GenerationOf(rules, combine, services);
  std::set<std::string> names;
  for (size_t i = 0; i < rules.size(); ++i) {
    RewardRule& rule = rules[i];
    const std::string where = absl::StrCat("reward.rewards[", i, "] (", rule.name, ")");
    if (!names.insert(rule.name).second)
      return absl::InvalidArgumentError(absl::StrCat(where, ": the name is used twice"));
    if (!std::isfinite(rule.weight) || !std::isfinite(rule.gate_fail))
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": weight and gate_fail must be finite"));

    auto verifier = MakeVerifier(rule.verifier, rule.args,
                                 {.ask_judge = services.ask_judge,
                                  .run_plugin = services.run_plugin,
                                  .run_code = services.run_code,
                                  .timeout = rule.timeout});
    if (!verifier.ok()) return Annotate(verifier.status(), where);
    if (!rule.shadow.empty() && rule.gate) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": it is a candidate (shadow), which cannot be a gate"));
    }
    if ((*verifier)->gives_credits() && rule.shadow.empty() && combine != Combine::kSum) {
      return absl::InvalidArgumentError(
          absl::StrCat(where,
                       ": it rewards single tokens, and these rewards cannot be multiplied or "
                       "compared with scores of whole answers; use reward.combine: sum"));
    }
    scorer.versions_[rule.name] = VersionOf(rule, services);
    std::vector<Part>& parts = rule.shadow.empty() ? scorer.parts_ : scorer.shadows_;
    parts.push_back({.rule = std::move(rule), .verifier = *std::move(verifier)});
  }
  if (scorer.parts_.empty()) {
    return absl::InvalidArgumentError(
        "reward.rewards has only candidates (shadow); at least one rule is needed that counts");
  }
  for (const Part& candidate : scorer.shadows_) {
    const bool found =
        std::any_of(scorer.parts_.begin(), scorer.parts_.end(),
                    [&](const Part& part) { return part.rule.name == candidate.rule.shadow; });
    if (found) continue;
    return absl::InvalidArgumentError(absl::StrCat("reward.rewards (", candidate.rule.name,
                                                   "): shadow is \"", candidate.rule.shadow,
                                                   "\", which is no other reward that counts"));
  }
  return scorer;
}

std::vector<const RewardRule*> Scorer::rules() const {
  std::vector<const RewardRule*> rules;
  for (const Part& part : parts_) rules.push_back(&part.rule);
  return rules;
}

std::vector<const RewardRule*> Scorer::shadows() const {
  std::vector<const RewardRule*> rules;
  for (const Part& part : shadows_) rules.push_back(&part.rule);
  return rules;
}

std::vector<std::optional<RuleScore>> Scorer::RunRule(const std::string& name,
                                                      const std::vector<Answer>& answers,
                                                      const nlohmann::json& row,
                                                      const std::string& data_source) const {
  for (const std::vector<Part>* const parts : {&parts_, &shadows_}) {
    for (const Part& part : *parts) {
      if (part.rule.name != name || !Applies(part.rule, data_source)) continue;
      std::vector<absl::StatusOr<Verdict>> verdicts;
      if (part.rule.scores_groups) verdicts = part.verifier->ScoreGroup(answers, row);
      else
        for (const Answer& answer : answers) verdicts.push_back(part.verifier->Score(answer, row));

      std::vector<std::optional<RuleScore>> scores;
      for (absl::StatusOr<Verdict>& verdict : verdicts) {
        const bool scored = verdict.ok() && verdict->kind == Verdict::Kind::kScore &&
                            std::isfinite(verdict->score) &&
                            verdict->score >= part.verifier->low() &&
                            verdict->score <= part.verifier->high();
        if (scored) scores.push_back(RuleScore{verdict->score, std::move(verdict->credits)});
        else scores.push_back(std::nullopt);
      }
      return scores;
    }
  }
  return {};
}

Score Scorer::Run(const Answer& answer, const nlohmann::json& row,
                  const std::string& data_source) const {
  return Combined(data_source,
                  [&](size_t part) { return parts_[part].verifier->Score(answer, row); });
}

std::vector<Score> Scorer::RunGroup(const std::vector<Answer>& answers, const nlohmann::json& row,
                                    const std::string& data_source) const {
  std::vector<std::vector<absl::StatusOr<Verdict>>> of_part(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].rule.scores_groups && Applies(parts_[i].rule, data_source))
      of_part[i] = parts_[i].verifier->ScoreGroup(answers, row);
  }
  std::vector<Score> scores;
  for (size_t a = 0; a < answers.size(); ++a) {
    scores.push_back(Combined(data_source, [&](size_t part) {
      return of_part[part].empty() ? parts_[part].verifier->Score(answers[a], row)
                                   : std::move(of_part[part][a]);
    }));
  }
  return scores;
}

bool Scorer::scores_groups() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.rule.scores_groups; });
}

Score Scorer::Combined(
    const std::string& data_source,
    const std::function<absl::StatusOr<Verdict>(size_t part)>& verdict_of) const {
  Score score;
  nlohmann::json info = nlohmann::json::object();

  bool applies = false;
  bool any = false;
  score.passes = true;
  const Part* failed_gate = nullptr;
  // The neutral element of the combination.
  double total = combine_ == Combine::kProduct ? 1
                 : combine_ == Combine::kMin   ? std::numeric_limits<double>::infinity()
                                               : 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (!Applies(part.rule, data_source)) {
      score.parts.push_back(std::numeric_limits<double>::quiet_NaN());
      score.part_credits.emplace_back();
      continue;
    }
    applies = true;
    // An error, or a score out of range, makes the whole answer unscorable.
    const absl::StatusOr<Verdict> verdict = verdict_of(i);
    if (!verdict.ok()) {
      const bool row_is_bad = absl::IsInvalidArgument(verdict.status());
      Score none = Unscorable(row_is_bad ? "bad_row" : "fault",
                              {{part.rule.name, std::string(verdict.status().message())}});
      if (!row_is_bad)
        none.fault = Annotate(verdict.status(), absl::StrCat("reward ", part.rule.name));
      return none;
    }
    if (verdict->kind == Verdict::Kind::kUnscorable)
      return Unscorable(verdict->status, {{part.rule.name, verdict->reason}});
    if (verdict->kind == Verdict::Kind::kAbsent) {
      score.parts.push_back(std::numeric_limits<double>::quiet_NaN());
      score.part_credits.emplace_back();
      info[part.rule.name] = verdict->reason;
      continue;
    }
    if (!std::isfinite(verdict->score) || verdict->score < part.verifier->low() ||
        verdict->score > part.verifier->high()) {
      return Unscorable("bad_value", {{part.rule.name, absl::StrCat(verdict->score, " is outside [",
                                                                    part.verifier->low(), ", ",
                                                                    part.verifier->high(), "]")}});
    }

    any = true;
    score.parts.push_back(verdict->score);
    score.part_credits.push_back(verdict->credits);
    for (const Verdict::Credit& credit : verdict->credits)
      score.credits.push_back({credit.end, part.rule.weight * credit.value});
    info[part.rule.name] = verdict->reason;
    // A rule without a positive weight does not count for `passes`.
    if (part.rule.weight > 0 && verdict->score < 1) score.passes = false;
    // If several gates fail, the first decides.
    if (part.rule.gate && verdict->score < 1 && failed_gate == nullptr) failed_gate = &part;

    const double weighted = part.rule.weight * verdict->score;
    switch (combine_) {
      case Combine::kSum: total += weighted; break;
      case Combine::kProduct: total *= weighted; break;
      case Combine::kMin: total = std::min(total, weighted); break;
    }
  }

  SLUICE_CHECK(score.parts.size() == parts_.size());
  if (!any && applies) return Unscorable("no_score", info);
  if (!any) return Unscorable("no_part", {{"data_source", data_source}});
  if (failed_gate != nullptr) score.credits.clear();
  std::stable_sort(score.credits.begin(), score.credits.end(),
                   [](const auto& a, const auto& b) { return a.end < b.end; });
  score.task_reward = failed_gate != nullptr ? failed_gate->rule.gate_fail : total;
  if (!std::isfinite(score.task_reward))
    return Unscorable("bad_value", {{"task_reward", absl::StrCat(score.task_reward)}});
  score.info = InfoText(info);
  return score;
}

absl::Status Scorer::CheckRow(const nlohmann::json& row, const std::string& data_source) const {
  bool any = false;
  for (const Part& part : parts_) {
    if (!Applies(part.rule, data_source)) continue;
    any = true;
    const absl::Status status = part.verifier->CheckRow(row);
    if (!status.ok()) return Annotate(status, absl::StrCat("reward ", part.rule.name));
  }
  if (any) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no entry of reward.rewards scores data source ",
                                                 data_source,
                                                 "; add it to an entry's when.data_source"));
}

absl::StatusOr<std::vector<double>> TokenRewards(absl::Span<const Verdict::Credit> credits,
                                                 absl::string_view ends, size_t text_bytes) {
  constexpr size_t kRow = 2 * sizeof(uint32_t);
  const auto row = [&](size_t i) {
    std::pair<uint32_t, uint32_t> out;  // Position and end.
    std::memcpy(&out.first, ends.data() + i * kRow, sizeof out.first);
    std::memcpy(&out.second, ends.data() + i * kRow + sizeof out.first, sizeof out.second);
    return out;
  };
  const size_t tokens = ends.size() / kRow;
  if (ends.size() % kRow != 0 || (tokens == 0 ? 0 : row(tokens - 1).second) != text_bytes) {
    return absl::DataLossError(absl::StrCat("answer_ends has ", ends.size(),
                                            " bytes, which are not the tokens of a text of ",
                                            text_bytes, " bytes"));
  }
  std::vector<double> rewards;
  size_t token = 0;
  for (const Verdict::Credit& credit : credits) {
    while (row(token).second < credit.end) ++token;
    const double position = row(token).first;
    // Two parts of the text may end in one token.
    if (!rewards.empty() && rewards[rewards.size() - 2] == position) {
      rewards.back() += credit.value;
    } else {
      rewards.insert(rewards.end(), {position, credit.value});
    }
  }
  return rewards;
}

absl::StatusOr<nlohmann::json> ParseRow(const std::string& text) {
  constexpr size_t kMaxDepth = 100;  // Nesting of lists and objects.
  if (const size_t depth = JsonDepth(text); depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row nests ", depth, " levels deep; the limit is ", kMaxDepth));
  }
  nlohmann::json row = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return absl::InvalidArgumentError("the row is not a JSON object");
  return row;
}

absl::StatusOr<std::string> LastAnswer(absl::string_view messages) {
  const nlohmann::json list =
      nlohmann::json::parse(messages.begin(), messages.end(), nullptr, /*allow_exceptions=*/false);
  if (list.is_array()) {
    for (auto message = list.rbegin(); message != list.rend(); ++message) {
      if (!message->is_object()) continue;
      // Records may be foreign or damaged: a role or a content may be of any type.
      const auto role = message->find("role"), content = message->find("content");
      if (role != message->end() && *role == "assistant" && content != message->end() &&
          content->is_string())
        return content->get<std::string>();
    }
  }
  return absl::InvalidArgumentError("the field `messages` holds no assistant message");
}

}  // namespace sluice
