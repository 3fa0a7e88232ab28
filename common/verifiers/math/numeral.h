#pragma once

#include <optional>

#include "common/verifiers/math/lexer.h"

namespace sluice::math {

// How commas are read at one place of a text.
struct NumeralStyle {
  Comma comma = Comma::kThousands;
  bool only_comma = false;  // The text has a single comma, which may then be a decimal comma.
};

// Reads the number that starts at `at`, and moves `at` behind it: 12, .5, 1,234.5, 1{,}234, 1 000,
// 1000,99, 1.5e-3, 0.1\overline{6}. Returns nullopt for more digits than the budget allows.
std::optional<Token> ReadNumeral(absl::string_view text, const NumeralStyle& style, size_t& at,
                                 Budget& budget);

}  // namespace sluice::math
