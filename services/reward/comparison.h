#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/scoring/scorer.h"
#include "nlohmann/json.hpp"

namespace sluice::reward {

// Answers to one row that were scored together: one, or those of a group.
struct ScoredAnswers {
  std::vector<Answer> answers;
  nlohmann::json row;
  std::string source;
  // By the name of each rule the score of each answer, without its weight; none where it gave no
  // number.
  std::map<std::string, std::vector<std::optional<RuleScore>>> scores;

  // About how many bytes they take in memory.
  size_t bytes() const;
};

// How the scores of a candidate compare with those that were used.
struct Comparison {
  uint64_t equal = 0, higher = 0, lower = 0;  // Answers that both scored, by the candidate's score.
  uint64_t unscorable = 0;                    // Answers that the candidate could not score.
  double difference = 0, distance = 0;  // Sums of candidate - used, and of its absolute value.
  // Answers that both scored and to whose steps at least one of them gave rewards (credits): those
  // whose steps got the same, those whose same steps got others, and those whose steps end at other
  // places. A rule without credits rewards an answer at its end alone.
  uint64_t same_steps = 0, other_values = 0, other_places = 0;
  // Sum over these answers of how much reward lies at other places: the distance of what both give
  // to each place, added up over all places.
  double step_distance = 0;

  uint64_t both() const { return equal + higher + lower; }
  uint64_t stepped() const { return same_steps + other_values + other_places; }
  // Adds an answer whose score by the rule `used` is there already. The candidate is the rule
  // `candidate` of `scorer`. Answers that the rule in use gave no number are left out.
  void Add(const ScoredAnswers& scored, const std::string& used, const Scorer& scorer,
           const std::string& candidate);
  Comparison& operator+=(const Comparison& other);
  // For example "of 32 answers 30 have the same score, 1 a higher and 1 a lower one, mean
  // difference +0.0312; of 12 answers with rewards of steps 9 have the same ones, 1 others at the
  // same places and 2 at other places, mean distance 0.2500".
  std::string Describe() const;

 private:
  void AddSteps(const RuleScore& used, const RuleScore& candidate);
};

}  // namespace sluice::reward
