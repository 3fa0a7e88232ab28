#include "services/reward/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::reward {
namespace {
constexpr double kSame = 1e-6;  // Scores that differ by no more count as equal.
constexpr size_t kEndOfAnswer = std::numeric_limits<size_t>::max();

// What a rule gives to each place of the answer.
std::map<size_t, double> RewardsByPlace(const RuleScore& given) {
  if (given.credits.empty()) return {{kEndOfAnswer, given.score}};
  std::map<size_t, double> places;
  for (const Verdict::Credit& credit : given.credits) places[credit.end] += credit.value;
  return places;
}
}  // namespace

size_t ScoredAnswers::bytes() const {
  size_t bytes = row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
  for (const Answer& answer : answers) bytes += answer.text.size();
  return bytes;
}

void Comparison::Add(const ScoredAnswers& scored, const std::string& used, const Scorer& scorer,
                     const std::string& candidate) {
  const auto before = scored.scores.find(used);
  if (before == scored.scores.end()) return;
  const std::vector<std::optional<RuleScore>> after =
      scorer.RunRule(candidate, scored.answers, scored.row, scored.source);
  for (size_t i = 0; i < after.size() && i < before->second.size(); ++i) {
    if (!before->second[i]) continue;
    if (!after[i]) {
      ++unscorable;
      continue;
    }
    const double by = after[i]->score - before->second[i]->score;
    AddSteps(*before->second[i], *after[i]);
    ++(std::abs(by) <= kSame ? equal : by > 0 ? higher : lower);
    difference += by;
    distance += std::abs(by);
  }
}

void Comparison::AddSteps(const RuleScore& used, const RuleScore& candidate) {
  if (used.credits.empty() && candidate.credits.empty()) return;
  const std::map<size_t, double> before = RewardsByPlace(used), after = RewardsByPlace(candidate);
  const bool same_places =
      before.size() == after.size() &&
      std::equal(before.begin(), before.end(), after.begin(),
                 [](const auto& a, const auto& b) { return a.first == b.first; });

  std::map<size_t, double> moved = after;
  for (const auto& [place, value] : before) moved[place] -= value;
  double apart = 0, most = 0;
  for (const auto& [place, by] : moved) {
    apart += std::abs(by);
    most = std::max(most, std::abs(by));
  }
  step_distance += apart;
  ++(!same_places ? other_places : most <= kSame ? same_steps : other_values);
}

Comparison& Comparison::operator+=(const Comparison& other) {
  equal += other.equal;
  higher += other.higher;
  lower += other.lower;
  unscorable += other.unscorable;
  difference += other.difference;
  distance += other.distance;
  same_steps += other.same_steps;
  other_values += other.other_values;
  other_places += other.other_places;
  step_distance += other.step_distance;
  return *this;
}

std::string Comparison::Describe() const {
  if (both() == 0 && unscorable == 0) return "no answer was scored yet to compare with";
  std::string text =
      absl::StrFormat("of %d answers %d have the same score, %d a higher and %d a lower one",
                      both(), equal, higher, lower);
  if (both() > 0)
    absl::StrAppendFormat(&text, ", mean difference %+.4f",
                          difference / static_cast<double>(both()));
  if (stepped() > 0)
    absl::StrAppendFormat(&text,
                          "; of %d answers with rewards of steps %d have the same ones, %d others "
                          "at the same places and %d at other places, mean distance %.4f",
                          stepped(), same_steps, other_values, other_places,
                          step_distance / static_cast<double>(stepped()));
  if (unscorable > 0) absl::StrAppend(&text, "; ", unscorable, " more got none");
  return text;
}

}  // namespace sluice::reward
