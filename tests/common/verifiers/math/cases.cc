#include "tests/common/verifiers/math/cases.h"

#include <gtest/gtest.h>

namespace sluice::math {

Outcome JudgeCase(const std::string& gold, const std::string& response,
                  const JudgeOptions& options) {
  Budget budget;
  const Outcome outcome = Judge(response, gold, options, budget);
  // One more piece of work may have been asked for, which was then not done.
  EXPECT_TRUE(budget.spent() || budget.used() <= Budget::kSteps) << response.substr(0, 100);
  EXPECT_TRUE(!budget.spent() || outcome == Outcome::kTooComplex) << response.substr(0, 100);
  return outcome;
}

bool Equal(const std::string& gold, const std::string& response, const JudgeOptions& options) {
  return JudgeCase(gold, response, options) == Outcome::kRight;
}

std::string Extracted(const std::string& response, Extraction extraction) {
  Budget budget;
  return ExtractAnswer(response, extraction, budget).value_or("(none)");
}

}  // namespace sluice::math
