#include "common/verifiers/answer_part.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sluice {

std::optional<absl::string_view> LastTag(absl::string_view text, absl::string_view name) {
  const std::string open = absl::StrCat("<", name, ">"), close = absl::StrCat("</", name, ">");
  const size_t end = text.rfind(close);
  if (end == absl::string_view::npos) return std::nullopt;
  const size_t begin = text.substr(0, end).rfind(open);
  if (begin == absl::string_view::npos) return std::nullopt;
  const size_t first = begin + open.size();
  return absl::StripAsciiWhitespace(text.substr(first, end - first));
}

std::optional<absl::string_view> LastBox(absl::string_view text) {
  constexpr absl::string_view kBox = "\\boxed{";
  const size_t at = text.rfind(kBox);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = text.substr(at + kBox.size());
  int depth = 1;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == '\\') ++i;  // A brace behind a backslash is a character of the text.
    else if (rest[i] == '{') ++depth;
    else if (rest[i] == '}' && --depth == 0) return rest.substr(0, i);
  }
  return std::nullopt;
}

absl::string_view LastLine(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t line = text.rfind('\n');
  return line == absl::string_view::npos ? text : absl::StripAsciiWhitespace(text.substr(line + 1));
}

}  // namespace sluice
