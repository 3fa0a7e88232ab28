#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::config {

// Conversion of single values to text and back. Errors say what is expected.
// INVALID_ARGUMENT (UNIT): the unit is missing or unknown.
// INVALID_ARGUMENT without reason: any other mistake.

// Parses "30s", "1h30m", "1.5m". Units: ms, s, m, h, and d, which stands alone ("1.5d", but not
// "1d12h"); also ns and us, which errors do not name because no key needs them.
absl::StatusOr<absl::Duration> ParseDurationText(absl::string_view text);
// Parses "8GiB", "512B". Units: B, KiB, MiB, GiB, TiB.
absl::StatusOr<uint64_t> ParseSizeText(absl::string_view text);

// These return a short text that reads back as the same value.
std::string DurationText(absl::Duration value);
std::string SizeText(uint64_t bytes);
std::string NumberText(double value);  // For example 1e-6, 0.28; 64.0 becomes 64.
// Without quotes if YAML reads the text back as itself, else in double quotes.
std::string StringText(absl::string_view value);

}  // namespace sluice::config
