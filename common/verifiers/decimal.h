#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// A rational number in lowest terms, held exactly. |numerator| and denominator are below 2^96.
struct Rational {
  __int128 numerator = 0;
  __int128 denominator = 1;

  bool operator==(const Rational&) const = default;
};

// Parses a number such as "18", "+18", "-3.50", ".5", "18.", "1,234", "-$18" or "7/2"; white space
// at both ends is ignored. Thousands commas must separate groups of three digits. Returns nullopt
// for any other text, and for numbers that are too large.
std::optional<Rational> ParseRational(absl::string_view text);

}  // namespace sluice
