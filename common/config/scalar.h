#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::config {

// Text of single values. Errors say what is wanted; INVALID_ARGUMENT with reason UNIT where only
// the unit is missing or unknown.

// "30s", "1h30m", "1.5m": ns, us, ms, s, m, h, d.
absl::StatusOr<absl::Duration> ParseDurationText(absl::string_view text);
// "8GiB", "512B": B, KiB, MiB, GiB, TiB.
absl::StatusOr<uint64_t> ParseSizeText(absl::string_view text);

// The shortest text that reads back as the same value.
std::string DurationText(absl::Duration value);
std::string SizeText(uint64_t bytes);
std::string NumberText(double value);  // 1e-6, 0.28, 64.0 as 64.
// Plain where YAML reads it back as this text, else in double quotes.
std::string StringText(absl::string_view value);

}  // namespace sluice::config
