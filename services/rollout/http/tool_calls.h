#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// A tool call that a model wrote.
struct ToolCall {
  std::string name;
  std::string arguments;  // A JSON object, as the model wrote it.
};

// Takes tool calls out of the text of one answer, as the text comes. Text that is not a call by the
// rules of the parser stays text, in its place.
class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;

  // Takes the next piece of text. Appends to `text` and `calls` what is certain; the rest waits for
  // the next piece.
  virtual void Push(absl::string_view piece, std::string* text, std::vector<ToolCall>* calls) = 0;
  // The answer has ended: appends to `text` what still waits.
  virtual void Finish(std::string* text) = 0;
};

// Returns the name of the parser for models with this chat template; "" if there is none. A
// template writes calls in the form in which its model writes them:
//   hermes   <tool_call>{"name": .., "arguments": {..}}</tool_call>, as Hermes and Qwen write it.
//            White space around calls is dropped. A call that lacks name or arguments, or has
//            them of other types, is text.
absl::string_view ToolCallParserOf(absl::string_view chat_template);
// Makes the parser of this name. Null if there is none.
std::unique_ptr<ToolCallParser> MakeToolCallParser(absl::string_view name);

}  // namespace sluice::rollout::http
