// Fuzzes what a plug-in writes, which is user code.
//
// Input: a line, as a description and as an answer to a call.
//
// Promises: nothing crashes; a line is refused with INVALID_ARGUMENT and a text of bounded length,
// or what was read keeps the limits: each score is finite, a result is a score, an error with a
// text or neither, and a test of the description has a score for each of its items.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/plugins/plugin_messages.h"
#include "common/plugins/protocol.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

constexpr size_t kMostText = 4096;

void CheckRefusal(const absl::Status& status) {
  SLUICE_CHECK_MSG(absl::IsInvalidArgument(status), status.ToString());
  SLUICE_CHECK(!status.message().empty() && status.message().size() < kMostText);
  SLUICE_CHECK(IsUtf8(status.message()));
}

void CheckResult(const PluginResult& result) {
  SLUICE_CHECK(!(result.score.has_value() && !result.error.empty()));
  SLUICE_CHECK(!result.score.has_value() || std::isfinite(*result.score));
  SLUICE_CHECK(result.error.size() < kMostText && IsUtf8(result.error));
  SLUICE_CHECK(!result.retryable || !result.error.empty());
  SLUICE_CHECK(result.info.size() <= kMaxPluginInfo && IsUtf8(result.info));
  for (const auto& [name, value] : result.parts) SLUICE_CHECK(std::isfinite(value));
}

}  // namespace

void Run(absl::string_view input) {
  if (const auto description = ParsePluginDescription(input); !description.ok()) {
    CheckRefusal(description.status());
  } else {
    SLUICE_CHECK(description->max_in_flight >= 1);
    for (const PluginDescription::Test& test : description->self_test) {
      SLUICE_CHECK(!test.items.empty() && test.items.size() == test.scores.size());
      for (const double score : test.scores) SLUICE_CHECK(std::isfinite(score));
      // It is sent to the plug-in, a program or a server.
      SLUICE_CHECK(!PluginRequest(1, absl::Seconds(1), test.items).empty());
      for (const nlohmann::json& item : test.items)
        SLUICE_CHECK(PluginItemToProto(item).IsInitialized());
    }
  }

  if (const auto answer = ParsePluginAnswer(input); !answer.ok()) {
    CheckRefusal(answer.status());
  } else {
    for (const PluginResult& result : answer->results) CheckResult(result);
  }
}

std::vector<std::string> Seeds() {
  return {
      R"({"name":"r","version":"1","granularity":"trajectory","max_in_flight":4,)"
      R"("self_test":[{"item":{"prompt":"2+2","completion":"4"},"score":1}]})",
      R"({"name":"g","granularity":"group","self_test":[{"item":[{},{}],"score":[0.5,-1]}]})",
      R"({"name":"t","self_test":[{"item":{"truncated":null,"completion":7},"score":1}]})",
      R"({"name":"t","self_test":[{"item":"2+2","score":1}]})",
      R"({"id":1,"results":[{"score":1,"parts":{"format":0.2},"info":{"why":"right"}}]})",
      R"({"id":18446744073709551615,"results":[{"error":"busy","retryable":true},{}]})",
      R"({"id":2,"results":[{"score":NaN},{"score":1e999},{"score":"1"},{"score":null},7]})",
      "{\"id\":3,\"results\":[{\"error\":\"\xff\xfe\",\"info\":{\"a\":[[[[]]]]}}]}",
      std::string(200, '['),
  };
}

}  // namespace sluice::fuzz
