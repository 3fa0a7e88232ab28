#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {

// One line of the job's `reward.rewards`.
struct RewardRule {
  std::string name;
  std::string verifier;
  double weight = 1;
  bool gate = false;  // Below 1: the whole reward is gate_fail.
  double gate_fail = 0;
  std::vector<std::string> data_sources;  // Where it applies; empty: everywhere.
  nlohmann::json args = nlohmann::json::object();
};

enum class Combine { kSum, kProduct, kMin };

// What a task comes to. Either a number about the policy, or, where the policy did not cause it, a
// reason and no number.
struct Score {
  std::string status = "ok";  // Else the reason it is unscorable: no_part, bad_row, bad_value.
  double task_reward = 0;
  std::vector<double> parts;  // By rule; NaN where the rule does not apply.
  // Each rule that applies and has a weight above 0 gave its full score, 1.
  bool passes = false;
  std::string info;  // JSON: why, by rule.
};

// Scores answers by a job's rules: R = sum (product, minimum) over the rules that apply of weight *
// score; a gate that fails decides alone. Pure.
//
// Immutable, so thread-safe.
class Scorer {
 public:
  // INVALID_ARGUMENT: no rules, a name twice, a weight that is not finite, an unknown verifier or
  // unfit args.
  static absl::StatusOr<Scorer> Make(std::vector<RewardRule> rules, Combine combine);

  // `row`: the mapped fields; `data_source`: the row's source.
  Score Run(const Answer& answer, const nlohmann::json& row, const std::string& data_source) const;

  // Whether answers to this row can be scored at all. INVALID_ARGUMENT: why Run() would call each
  // of them unscorable.
  absl::Status CheckRow(const nlohmann::json& row, const std::string& data_source) const;

  // Names what scored: the first four bytes of SHA-256 of build and rules. Equal rules give equal
  // generations.
  uint32_t generation() const { return generation_; }

 private:
  struct Part {
    RewardRule rule;
    std::shared_ptr<const Verifier> verifier;
  };
  Scorer(std::vector<Part> parts, Combine combine, uint32_t generation)
      : parts_(std::move(parts)), combine_(combine), generation_(generation) {}

  std::vector<Part> parts_;
  Combine combine_;
  uint32_t generation_;
};

// The text of the last assistant message of `messages` (a JSON list of {role, content}).
// INVALID_ARGUMENT: there is none.
absl::StatusOr<std::string> LastAnswer(absl::string_view messages);

}  // namespace sluice
