#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// A call of a tool, as a model wrote it.
struct ToolCall {
  std::string name;
  std::string arguments;  // A JSON object, as the model wrote it.
};

// Takes calls out of the text of one answer, as it comes. What is no call by the rules of the
// parser stays text, in its place.
class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;

  // Gives on what is certain: text to `text`, whole calls to `calls`. The rest waits for what comes
  // next.
  virtual void Push(absl::string_view piece, std::string* text, std::vector<ToolCall>* calls) = 0;
  // The answer has ended: what waits is text.
  virtual void Finish(std::string* text) = 0;
};

// The parser of models whose chat template writes calls as it reads them; "" if there is none:
//   hermes   <tool_call>{"name": .., "arguments": {..}}</tool_call>, as Hermes and Qwen write it;
//            white space around calls belongs to them.
//            What lacks one of the two, or has them of other types, is text.
absl::string_view ToolCallParserOf(absl::string_view chat_template);
// Null: no such parser.
std::unique_ptr<ToolCallParser> MakeToolCallParser(absl::string_view name);

}  // namespace sluice::rollout::http
