#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/verifiers/plugin_result.h"
#include "nlohmann/json.hpp"

// The lines that sluice-reward and a plug-in process exchange: one JSON object each, on the stdin
// and stdout of the process. The fields are those of plugin/v1/plugin.proto, which servers speak.
//
//   -> {"sluice": 1, "job": "digits", "config": {}}
//   <- {"name": "r", "version": "1", "granularity": "trajectory", "max_in_flight": 1,
//       "self_test": [{"item": {..}, "score": 1}]}
//   -> {"id": 1, "deadline_ms": 10000, "items": [{"prompt": .., "completion": ..}]}
//   <- {"id": 1, "results": [{"score": 1}]}
//
// A result is {"score"}, with {"parts", "info"} if it likes; {"error", "retryable"}; or {}, if the
// reward does not apply to the answer. A plug-in is user code: nothing that it writes is trusted.
namespace sluice {

inline constexpr size_t kMaxPluginLine = 16 << 20;  // Also of a message to or from a server.
inline constexpr size_t kMaxPluginDepth = 64;       // How deep JSON of a plug-in may nest.
inline constexpr size_t kMaxPluginInfo = 4096;      // Bytes of the info of one result.

struct PluginDescription {
  std::string name;
  std::string version;  // Empty if it names none. Only of servers it means something.
  bool scores_groups = false;
  uint32_t max_in_flight = 1;
  struct Test {
    std::vector<nlohmann::json> items;  // Several only if it scores groups.
    std::vector<double> scores;
  };
  std::vector<Test> self_test;
};

struct PluginAnswer {
  uint64_t id = 0;
  std::vector<PluginResult> results;
};

std::string PluginHello(const std::string& job, const nlohmann::json& config);
std::string PluginRequest(uint64_t id, absl::Duration deadline,
                          const std::vector<nlohmann::json>& items);

// INVALID_ARGUMENT TOO_LARGE: as PluginInstance::Call() says it.
absl::Status TooLargeForPlugin(size_t bytes);

// INVALID_ARGUMENT: the line is no description; the message says what it is.
absl::StatusOr<PluginDescription> ParsePluginDescription(absl::string_view line);
absl::StatusOr<PluginDescription> PluginDescriptionOf(const nlohmann::json& object);

// INVALID_ARGUMENT: the line is no answer, so nobody knows which call it answers. A result that is
// wrong becomes an error of that result alone.
absl::StatusOr<PluginAnswer> ParsePluginAnswer(absl::string_view line);
PluginResult PluginResultOf(const nlohmann::json& result);

}  // namespace sluice
