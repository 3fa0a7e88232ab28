#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::rollout::http {

// The messages of a chat request as templates expect them: `content` is a text (parts of type text
// are joined, in order) or null, `arguments` of a tool call is an object. INVALID_ARGUMENT as
// Refuse() makes it: the message and field at fault.
absl::StatusOr<nlohmann::ordered_json> ReadMessages(const nlohmann::ordered_json& messages);

// The tools, as they came. INVALID_ARGUMENT: no list of {"type": "function", "function": {"name":
// ..}}, or above kMaxTools.
absl::StatusOr<nlohmann::ordered_json> ReadTools(const nlohmann::ordered_json& tools);

}  // namespace sluice::rollout::http
