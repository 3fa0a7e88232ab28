#include "services/rollout/core/eval/local_scorer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace sluice {

absl::StatusOr<EvalVerdict> VerdictOf(const Score& score) {
  if (score.status == "ok") return EvalVerdict{.score = score.task_reward, .passes = score.passes};
  if (!score.fault.ok()) return score.fault;
  return absl::InvalidArgumentError(absl::StrCat(score.status, ": ", score.info));
}

EvalScorer MakeLocalScorer(const Scorer* scorer, std::string source) {
  return [scorer, source = std::move(source)](absl::Span<const EvalText> texts,
                                              const std::string& row_json) {
    const nlohmann::json row = nlohmann::json::parse(row_json, nullptr, /*allow_exceptions=*/false);
    std::vector<Answer> answers;
    for (const EvalText& text : texts) {
      answers.push_back({.text = text.text, .truncated = text.truncated, .data_source = source});
    }

    RowScores scores{.generation = scorer->generation(), .verdicts = {}};
    for (const Score& score : scorer->RunGroup(answers, row, source))
      scores.verdicts.push_back(VerdictOf(score));
    return scores;
  };
}

}  // namespace sluice
