#pragma once

#include <string>

#include "common/verifiers/math/judge.h"

namespace sluice::math {

// What the verifier says about a response, with no arguments or with `options`. The work must stay
// within the budget, which the functions check.
Outcome JudgeCase(const std::string& gold, const std::string& response,
                  const JudgeOptions& options = {});
bool Equal(const std::string& gold, const std::string& response, const JudgeOptions& options = {});

// What is extracted from a response, or "(none)".
std::string Extracted(const std::string& response, Extraction extraction = Extraction::kAuto);

}  // namespace sluice::math
