#pragma once

#include <gmpxx.h>

#include <array>
#include <optional>

#include "absl/strings/string_view.h"

namespace sluice::math {

// A unit as a product of powers of base units: length (m), mass (kg), time (s), angle (degree),
// amount of money, and so on. `factor` converts a number of this unit to the base units.
struct Unit {
  std::array<int, 6> powers{};
  mpq_class factor = 1;
};

// Whether the word is a unit, in the singular or plural, such as "cm", "weeks" or "dollars".
bool IsUnitWord(absl::string_view word);

// Reads the words behind a number, in lower case, such as "cm^2", "km/h" or "square feet". Returns
// nullopt if one of them is not a known unit, as in "red apples".
std::optional<Unit> ParseUnit(absl::string_view words);

}  // namespace sluice::math
