#include "services/rollout/http/messages.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "services/rollout/http/error.h"
#include "services/rollout/http/fields.h"
#include "services/rollout/http/request.h"

namespace sluice::rollout::http {
namespace {

constexpr std::array<const char*, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};

absl::StatusOr<Json> ReadContent(const Json& content, const std::string& path) {
  if (content.is_null() || content.is_string()) return content;
  if (!content.is_array()) {
    return Refuse(400, "invalid_value", path,
                  absl::StrCat(path, " is ", JsonExcerpt(content),
                               "; wanted: a text, a list of text parts, or null"));
  }
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    const Json& part = content[i];
    if (!part.is_object())
      return Refuse(400, "invalid_value", at,
                    absl::StrCat(at, " is ", JsonExcerpt(part), "; wanted: an object"));
    Fields fields(part, at + ".");
    std::string type, text;
    fields.Text("type", &type);
    if (!type.empty() && type != "text")
      fields.FailUnsupported("type", type, "reads parts of type text only");
    if (fields.Find("text") == nullptr) fields.Fail("text", " is missing");
    fields.Text("text", &text);
    SLUICE_RETURN_IF_ERROR(fields.Finish());
    joined += text;
  }
  return Json(std::move(joined));
}

// Reads tool calls. Clients send `arguments` as a text with JSON in it; templates need the object.
absl::StatusOr<Json> ReadToolCalls(const Json& calls, const std::string& path) {
  if (!calls.is_array())
    return Refuse(400, "invalid_value", path,
                  absl::StrCat(path, " is ", JsonExcerpt(calls), "; wanted: a list"));
  Json read = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    const Json* const function =
        calls[i].is_object() && calls[i].contains("function") ? &calls[i]["function"] : nullptr;
    if (function == nullptr || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string()) {
      return Refuse(400, "invalid_value", at,
                    absl::StrCat(at, " is ", JsonExcerpt(calls[i]),
                                 "; wanted: {\"id\", \"type\": \"function\", \"function\": "
                                 "{\"name\", \"arguments\"}}"));
    }
    Json call = calls[i];
    if (Json& arguments = call["function"]["arguments"]; arguments.is_string()) {
      const std::string text = arguments.get<std::string>();
      absl::StatusOr<Json> parsed =
          text.empty()
              ? Json::object()
              : ParseJson(text, at + ".function.arguments", kMaxDepth,
                          {.values = kMaxValues, .members = kMaxMembers, .exact_integers = true});
      if (!parsed.ok())
        return Refuse(400, "invalid_value", at + ".function.arguments", parsed.status().message());
      arguments = *std::move(parsed);
    }
    read.push_back(std::move(call));
  }
  return read;
}

absl::StatusOr<Json> ReadMessage(const Json& message, const std::string& at) {
  if (!message.is_object())
    return Refuse(400, "invalid_value", at,
                  absl::StrCat(at, " is ", JsonExcerpt(message),
                               "; wanted: an object with role and content"));
  Fields fields(message, at + ".");
  std::string role;
  fields.Text("role", &role);
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    fields.Fail("role", absl::StrCat(" is \"", Printable(role), "\"; wanted: one of ",
                                     absl::StrJoin(kRoles, ", ")));
  }
  Json read = {{"role", role}};
  const Json* const content = fields.Find("content");
  const Json* const calls = fields.Find("tool_calls");
  if (content == nullptr && calls == nullptr && role != "assistant")
    fields.Fail("content", " is missing; wanted: a text, or a list of text parts");
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    std::string text;
    fields.Text(name, &text);
    if (!text.empty()) read[name] = text;
  }

  // A client that sends an earlier answer back sends these fields too, but empty.
  for (const char* name : {"refusal", "audio", "function_call", "annotations"}) {
    const Json* const value = fields.Find(name);
    if (value != nullptr && !value->empty())
      fields.FailUnsupported(name, *value, "does not have it");
  }
  SLUICE_RETURN_IF_ERROR(fields.Finish());
  SLUICE_ASSIGN_OR_RETURN(
      read["content"], ReadContent(content == nullptr ? Json(nullptr) : *content, at + ".content"));
  if (calls != nullptr && !calls->empty()) {
    SLUICE_ASSIGN_OR_RETURN(read["tool_calls"], ReadToolCalls(*calls, at + ".tool_calls"));
  }
  return read;
}

}  // namespace

absl::StatusOr<Json> ReadMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return Refuse(400, "invalid_value", "messages",
                  absl::StrCat("messages is ", JsonExcerpt(messages),
                               "; wanted: a list of at least one message"));
  }
  if (messages.size() > kMaxMessages) {
    return Refuse(400, "too_many_messages", "messages",
                  absl::StrCat("messages has ", messages.size(), " messages; at most ",
                               kMaxMessages, " are taken"));
  }
  Json read = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(Json message,
                            ReadMessage(messages[i], absl::StrCat("messages[", i, "]")));
    read.push_back(std::move(message));
  }
  return read;
}

absl::StatusOr<Json> ReadTools(const Json& tools) {
  if (!tools.is_array())
    return Refuse(400, "invalid_value", "tools",
                  absl::StrCat("tools is ", JsonExcerpt(tools), "; wanted: a list"));
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const bool fits = tool.is_object() && tool.contains("type") && tool["type"] == "function" &&
                      tool.contains("function") && tool["function"].is_object() &&
                      tool["function"].contains("name") && tool["function"]["name"].is_string();
    const std::string at = absl::StrCat("tools[", i, "]");
    if (!fits)
      return Refuse(
          400, "invalid_value", at,
          absl::StrCat(at, " is ", JsonExcerpt(tool),
                       "; wanted: {\"type\": \"function\", \"function\": {\"name\": ..}}"));
  }
  if (const size_t bytes = tools.dump(-1, ' ', false, Json::error_handler_t::replace).size();
      bytes > kMaxTools) {
    return Refuse(
        400, "tools_too_large", "tools",
        absl::StrCat("tools has ", bytes, " bytes as JSON; at most ", kMaxTools, " are taken"));
  }
  return tools;
}

}  // namespace sluice::rollout::http
