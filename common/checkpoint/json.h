#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice {

// What JSON may cost: a value takes up to 50 bytes more than its text, an object's members time in
// their number squared.
struct JsonLimits {
  size_t values = SIZE_MAX;
  size_t members = SIZE_MAX;  // Of one object.
  // Refuses an integer beyond 64 bits, which would be read as a float.
  bool exact_integers = false;
};

// Parses JSON from an untrusted source. INVALID_ARGUMENT: not JSON (with line and column), nested
// deeper than `max_depth`, over a limit, or an object with a key twice; the message starts with
// `source`. For .cc files only: the header is heavy.
absl::StatusOr<nlohmann::ordered_json> ParseJson(absl::string_view text, absl::string_view source,
                                                 int max_depth, const JsonLimits& limits = {});

// A token id or a list of them, each in [0, 2^31). INVALID_ARGUMENT otherwise, with the value.
absl::StatusOr<std::vector<int32_t>> TokenIds(const nlohmann::ordered_json& value);

// A value as text for a message, cut after 80 bytes.
std::string JsonExcerpt(const nlohmann::ordered_json& value);

// A name from an untrusted file as text for a message: escaped, cut after 80 bytes.
std::string Printable(absl::string_view text);

}  // namespace sluice
