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

// Parses "18", "-3.50", "1,234", "$18", "7/2", "18.", with white space at both ends. Thousands
// commas must separate groups of three digits. Returns nullopt for any other text, and for numbers
// that are too large.
std::optional<Rational> ParseRational(absl::string_view text);

}  // namespace sluice
