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
  std::map<std::string, std::vector<std::optional<double>>> scores;

  // About how many bytes they take in memory.
  size_t bytes() const;
};

// How the scores of a candidate compare with those that were used.
struct Comparison {
  uint64_t equal = 0, higher = 0, lower = 0;  // Answers that both scored, by the candidate's score.
  uint64_t unscorable = 0;                    // Answers that the candidate could not score.
  double difference = 0, distance = 0;  // Sums of candidate - used, and of its absolute value.

  uint64_t both() const { return equal + higher + lower; }
  // Adds an answer whose score by the rule `used` is there already. The candidate is the rule
  // `candidate` of `scorer`. Answers that the rule in use gave no number are left out.
  void Add(const ScoredAnswers& scored, const std::string& used, const Scorer& scorer,
           const std::string& candidate);
  Comparison& operator+=(const Comparison& other);
  // For example "of 32 answers 30 have the same score, 1 a higher and 1 a lower one, mean
  // difference +0.0312".
  std::string Describe() const;
};

}  // namespace sluice::reward
