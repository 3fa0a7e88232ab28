#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// A rational number in lowest terms, held exactly: |numerator|, denominator < 2^96.
struct Rational {
  __int128 numerator = 0;
  __int128 denominator = 1;

  bool operator==(const Rational&) const = default;
};

// Reads "18", "-3.50", "1,234", "$18", "7/2", "18." with blanks around; thousands commas must stand
// in threes. Nothing: it is no such number, or too large to hold.
std::optional<Rational> ParseRational(absl::string_view text);

}  // namespace sluice
