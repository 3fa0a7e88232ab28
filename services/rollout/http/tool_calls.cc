#include "services/rollout/http/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/checkpoint/json.h"
#include "services/rollout/http/request.h"

namespace sluice::rollout::http {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxCall = 1 << 20;  // Bytes; a longer call is text.

// Returns the text of the value of the n-th member (from 0) of `object`, which must be valid JSON.
absl::string_view MemberText(absl::string_view object, size_t n) {
  size_t begin = 0, at = 0;
  bool quoted = false;
  for (int depth = 0; at < object.size(); ++at) {
    const char c = object[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
      continue;
    }
    quoted = c == '"';
    const bool ends = depth == 1 && (c == ',' || c == '}');
    if (ends && n == 0) break;
    if (ends) --n;
    if (c == ':' && depth == 1) begin = at + 1;
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
  }
  return absl::StripAsciiWhitespace(object.substr(begin, at - begin));
}

// Reads a call. Its arguments stay as the model wrote them, because parsing and formatting could
// change a number.
std::optional<ToolCall> ReadCall(absl::string_view text) {
  const absl::StatusOr<Json> json =
      ParseJson(text, "a call", kMaxDepth, {.values = kMaxValues, .members = kMaxMembers});
  if (!json.ok() || !json->is_object()) return std::nullopt;
  const auto name = json->find("name"), arguments = json->find("arguments");
  if (name == json->end() || !name->is_string() || arguments == json->end() ||
      !arguments->is_object())
    return std::nullopt;
  return ToolCall{.name = name->get<std::string>(),
                  .arguments = std::string(MemberText(
                      text, static_cast<size_t>(std::distance(json->begin(), arguments))))};
}

// Returns the length of the longest end of `text` that is a beginning of `tag`.
size_t PartialTag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

class Hermes final : public ToolCallParser {
 public:
  void Push(absl::string_view piece, std::string* text, std::vector<ToolCall>* calls) override {
    held_.append(piece.data(), piece.size());
    while (inside_ ? TakeCall(text, calls) : TakeText(text)) {
    }
  }

  void Finish(std::string* text) override {
    if (!inside_ && called_ && held_.find_first_not_of(kSpace) == std::string::npos)
      return held_.clear();
    text->append(held_);
    held_.clear();
  }

 private:
  // Moves text up to the next call to `text`. White space before that waits, because it may belong
  // to the call. Returns true if a call begins.
  bool TakeText(std::string* text) {
    const size_t open = held_.find(kOpen);
    size_t end = open != std::string::npos ? open : held_.size() - PartialTag(held_, kOpen);
    while (end > 0 && kSpace.find(held_[end - 1]) != std::string_view::npos) --end;
    text->append(held_, 0, end);
    held_.erase(0, end);
    if (open == std::string::npos) return false;
    inside_ = true;
    scanned_ = 0;
    return true;
  }

  // Takes a call that is complete; held_ begins with the white space before it. Returns true if
  // text follows.
  bool TakeCall(std::string* text, std::vector<ToolCall>* calls) {
    const size_t begin = held_.find(kOpen) + kOpen.size();
    const size_t close = held_.find(kClose, std::max(begin, scanned_));
    scanned_ = held_.size() - std::min(held_.size(), kClose.size() - 1);
    if (close == std::string::npos && held_.size() - begin <= kMaxCall) return false;

    const size_t end = close == std::string::npos ? held_.size() : close + kClose.size();
    std::optional<ToolCall> call;
    if (close != std::string::npos)
      call = ReadCall(
          absl::StripAsciiWhitespace(absl::string_view(held_).substr(begin, close - begin)));
    if (call) {
      calls->push_back(*std::move(call));
      called_ = true;
    } else {
      text->append(held_, 0, end);
    }
    held_.erase(0, end);
    inside_ = false;
    return true;
  }

  std::string held_;                      // Text that may be a part of a call.
  bool inside_ = false, called_ = false;  // Inside a call; a call was found.
  size_t scanned_ = 0;  // Leading bytes of held_ in which no end of the call begins.
};

}  // namespace

absl::string_view ToolCallParserOf(absl::string_view chat_template) {
  return absl::StrContains(chat_template, "<tool_call>") ? "hermes" : "";
}

std::unique_ptr<ToolCallParser> MakeToolCallParser(absl::string_view name) {
  return name == "hermes" ? std::make_unique<Hermes>() : nullptr;
}

}  // namespace sluice::rollout::http
