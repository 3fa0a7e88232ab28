#include "common/base/json_depth.h"

#include <algorithm>

namespace sluice {

size_t JsonDepth(absl::string_view json) {
  size_t depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];

    if (in_text) {
      if (c == '\\') ++i;  // An escaped character, which may be a quote, does not end the string.
      in_text = c != '"';
      continue;
    }

    if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace sluice
