#include "services/reward/comparison.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::reward {
namespace {
constexpr double kSame = 1e-6;  // Scores that differ by no more count as equal.
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
  const std::vector<std::optional<double>> after =
      scorer.RunRule(candidate, scored.answers, scored.row, scored.source);
  for (size_t i = 0; i < after.size() && i < before->second.size(); ++i) {
    if (!before->second[i]) continue;
    if (!after[i]) {
      ++unscorable;
      continue;
    }
    const double by = *after[i] - *before->second[i];
    ++(std::abs(by) <= kSame ? equal : by > 0 ? higher : lower);
    difference += by;
    distance += std::abs(by);
  }
}

Comparison& Comparison::operator+=(const Comparison& other) {
  equal += other.equal;
  higher += other.higher;
  lower += other.lower;
  unscorable += other.unscorable;
  difference += other.difference;
  distance += other.distance;
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
  if (unscorable > 0) absl::StrAppend(&text, "; ", unscorable, " more got none");
  return text;
}

}  // namespace sluice::reward
