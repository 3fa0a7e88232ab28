#pragma once

#include <string>

#include "common/verifiers/math/equal.h"
#include "common/verifiers/math/extract.h"

namespace sluice::math {

struct JudgeOptions {
  Extraction extraction = Extraction::kAuto;
  bool final_form = false;       // A rational answer must be written out: 391 and not 17*23.
  bool require_reduced = false;  // Fractions must be in lowest terms.
  EqualOptions equal;
};

enum class Outcome {
  kRight,
  kWrong,
  kNoAnswer,    // No rule of the extraction finds one.
  kUnreadable,  // It is not mathematics, and not the gold's text.
  kTooComplex,  // The budget ended first.
  kNotFinal,    // Equal, but not in the form that is asked for.
};

// The word of a verdict: right, wrong, no_answer, unreadable, too_complex or not_final.
const char* ReasonOf(Outcome outcome);

// Compares the answer in a response with the answer in a gold.
Outcome Judge(absl::string_view response, absl::string_view gold, const JudgeOptions& options,
              Budget& budget);

// Compares the answer in a response, found by rules 2 to 6, with a number: both must be rational,
// and their units are ignored.
Outcome JudgeNumber(absl::string_view response, const mpq_class& gold, Budget& budget);

// Whether a gold can be compared with: "" if so, else what is wrong with it. A gold that is no
// mathematics is compared as text.
std::string CheckGold(absl::string_view gold);

}  // namespace sluice::math
