#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/chat/value.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::chat {

// Converts a variable to a value of the template's language. Texts are not copied, so `json` must
// outlive the value, and so must `arena`, which holds its lists and dicts (NewIn in value.h). Fails
// for integers beyond 64 bits, texts that are not UTF-8, and nesting deeper than kMaxDepth.
Value FromJson(Meter& meter, const nlohmann::ordered_json& json, Memory* arena);

struct JsonStyle {
  bool indented = false;
  std::string indent;  // Indentation per level.
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false;  // Write other characters as \uXXXX.
  bool sort_keys = false;
};

// Python's json.dumps. Fails for values that it cannot write (an undefined value, a range, ..) and
// for a text longer than kMaxTextBytes.
std::string ToJson(Meter& meter, const Value& value, const JsonStyle& style);

}  // namespace sluice::chat
