#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::rollout::http {

// Reads the messages of a chat request into the form that templates expect: `content` is a text
// (parts of type text are joined, in order) or null, and `arguments` of a tool call is an object.
// INVALID_ARGUMENT, made by Refuse(), names the message and the field.
absl::StatusOr<nlohmann::ordered_json> ReadMessages(const nlohmann::ordered_json& messages);

// Checks the tools and returns them unchanged. INVALID_ARGUMENT: they are not a list of {"type":
// "function", "function": {"name": ..}}, or have more than kMaxTools bytes.
absl::StatusOr<nlohmann::ordered_json> ReadTools(const nlohmann::ordered_json& tools);

}  // namespace sluice::rollout::http
