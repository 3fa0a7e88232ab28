#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/chat/value.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::chat {

// A variable as the template sees it. Texts are not copied: `json` outlives the value. So does
// `arena`, which holds its lists and dicts (value.h, NewIn).
// Fails on integers beyond 64 bits, texts that are no UTF-8, and nesting beyond kMaxDepth.
Value FromJson(Meter& meter, const nlohmann::ordered_json& json, Memory* arena);

struct JsonStyle {
  bool indented = false;
  std::string indent;  // Of one level.
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false;  // \uXXXX for everything else.
  bool sort_keys = false;
};

// Python's json.dumps. Fails on what it cannot write (an undefined value, a range, ..) and on a
// text longer than allowed.
std::string ToJson(Meter& meter, const Value& value, const JsonStyle& style);

}  // namespace sluice::chat
