#include "common/plugins/plugin_messages.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kMaxVersion = 200;

std::string DumpJson(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

// The value of the item's field: a text as it is, others as JSON; empty if there is none.
std::string TextOf(const json& item, const char* field) {
  const auto value = item.find(field);
  if (value == item.end() || value->is_null()) return "";
  return value->is_string() ? Utf8Lossy(value->get_ref<const std::string&>()) : DumpJson(*value);
}

// As TextOf(), but a text is JSON too, so that 7 and "7" differ.
std::string JsonOf(const json& item, const char* field) {
  const auto value = item.find(field);
  return value == item.end() || value->is_null() ? "" : DumpJson(*value);
}

// What the plug-in's text is as JSON; discarded if it is none, or nests too deep.
json ParsePluginJson(const std::string& text) {
  if (JsonDepth(text) > kMaxPluginDepth) return json(json::value_t::discarded);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

const char* GranularityName(common::v1::Granularity granularity) {
  switch (granularity) {
    case common::v1::GRANULARITY_TRAJECTORY: return "trajectory";
    case common::v1::GRANULARITY_GROUP: return "group";
    default: return "unspecified";
  }
}

}  // namespace

plugin::v1::ScoreItem PluginItemToProto(const json& item) {
  plugin::v1::ScoreItem message;
  message.set_prompt(TextOf(item, "prompt"));
  message.set_messages(JsonOf(item, "messages"));
  message.set_completion(TextOf(item, "completion"));
  if (const auto ids = item.find("completion_ids"); ids != item.end() && ids->is_array()) {
    for (const json& id : *ids) {
      if (id.is_number_unsigned()) message.add_completion_ids(id.get<uint32_t>());
    }
  }
  message.set_ground_truth(JsonOf(item, "ground_truth"));
  message.set_data_source(TextOf(item, "data_source"));
  message.set_extra_info(JsonOf(item, "extra_info"));
  const auto truncated = item.find("truncated");
  message.set_truncated(truncated != item.end() && *truncated == true);
  return message;
}

absl::StatusOr<PluginDescription> PluginDescriptionFromProto(
    const plugin::v1::DescribeResponse& message) {
  if (message.version().empty() || message.version().size() > kMaxVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its description has a version of ", message.version().size(), " bytes; wanted: 1 to ",
        kMaxVersion, ", a text that changes whenever its scores may"));
  }
  json object = {{"name", message.name()},
                 {"version", message.version()},
                 {"granularity", GranularityName(message.granularity())},
                 {"max_in_flight", message.max_in_flight()},
                 {"self_test", json::array()}};
  for (const std::string& test : message.self_test()) {
    json parsed = ParsePluginJson(test);
    object["self_test"].push_back(parsed.is_discarded() ? json(test.substr(0, 200))
                                                        : std::move(parsed));
  }
  return PluginDescriptionOf(object);
}

PluginAnswer PluginAnswerFromProto(const plugin::v1::ScoreResponse& message) {
  PluginAnswer answer{.id = message.id(), .results = {}};
  for (const plugin::v1::ScoreResult& result : message.results()) {
    json object = json::object();
    if (!result.error().empty()) {
      object = {{"error", result.error()}, {"retryable", result.retryable()}};
    } else if (result.has_score()) {
      object = {{"score", result.score()}, {"parts", json::object()}};
      for (const auto& [name, part] : result.parts()) object["parts"][name] = part;
      if (result.info().size() <= kMaxPluginInfo) object["info"] = ParsePluginJson(result.info());
    }
    answer.results.push_back(PluginResultOf(object));
  }
  return answer;
}

}  // namespace sluice
