#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice {

// Limits on the cost of parsing. A value takes up to 50 bytes of memory beyond its text, and the
// time for an object grows with the square of its number of members.
struct JsonLimits {
  size_t values = SIZE_MAX;
  size_t members = SIZE_MAX;  // In any one object.
  // Refuse an integer that does not fit in 64 bits; otherwise it would be read as a float.
  bool exact_integers = false;
};

// Parses JSON from an untrusted source.
// INVALID_ARGUMENT: the text is not JSON (the message gives line and column), is nested deeper than
// `max_depth`, exceeds a limit, or has a key twice in one object. The message starts with `source`.
// Include this header in .cc files only, because nlohmann/json is slow to compile.
absl::StatusOr<nlohmann::ordered_json> ParseJson(absl::string_view text, absl::string_view source,
                                                 int max_depth, const JsonLimits& limits = {});

// Returns the token ids in `value`, which is an id or a list of ids, each in [0, 2^31).
// INVALID_ARGUMENT otherwise; the message shows the value.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const nlohmann::ordered_json& value);

// Returns a name from an untrusted file as text for a message, escaped and cut after 80 bytes.
std::string Printable(absl::string_view text);

}  // namespace sluice
