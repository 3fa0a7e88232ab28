#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// What a plug-in says about one answer. Neither a score nor an error: its reward does not apply.
struct PluginResult {
  std::optional<double> score;
  std::map<std::string, double> parts;
  std::string info;   // JSON; empty if there is none.
  std::string error;  // Why there is no score. Empty if nothing failed.
  // With an error: another try may succeed. Else `reason` is the status of the score.
  bool retryable = false;
  std::string reason = "plugin_error";
};

// Lets the plug-in with these args, as the text of their JSON, score answers, each an item as
// plugin/v1/plugin.proto describes it. Returns as many results. Blocks at most twice `timeout`: as
// long for its turn as for the call itself. Errors as PluginHost::Score() (common/plugins).
using RunPlugin = std::function<absl::StatusOr<std::vector<PluginResult>>(
    const std::string& args, const std::vector<nlohmann::json>& items, absl::Duration timeout)>;

}  // namespace sluice
