#include "common/verifiers/code/fence.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::code {
namespace {

bool Names(absl::string_view word, CodeTask::Language language) {
  static constexpr absl::string_view kPython[] = {"python", "py", "python3"};
  static constexpr absl::string_view kCpp[] = {"cpp", "c++", "cc", "cxx"};
  return language == CodeTask::Language::kPython ? absl::c_linear_search(kPython, word)
                                                 : absl::c_linear_search(kCpp, word);
}

// The characters of a fence at the start of a line, or nothing.
absl::string_view FenceOf(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::StartsWith(line, "```") && !absl::StartsWith(line, "~~~")) return "";
  size_t length = line.find_first_not_of(line[0]);
  if (length == absl::string_view::npos) length = line.size();
  return line.substr(0, length);
}

}  // namespace

std::optional<std::string> LastBlock(absl::string_view text, CodeTask::Language language) {
  std::optional<std::string> named, unnamed;
  bool any_named = false;
  absl::string_view fence;  // Of the open block; empty: none is open.
  std::string word, block;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view marks = FenceOf(line);
    const absl::string_view after =
        absl::StripAsciiWhitespace(absl::StripLeadingAsciiWhitespace(line).substr(marks.size()));
    if (fence.empty()) {
      // A fence of backticks has none behind it: ```x``` is code in a line.
      if (marks.empty() || absl::StrContains(after, '`')) continue;
      fence = marks;
      word = absl::AsciiStrToLower(after.substr(0, after.find_first_of(" \t{,")));
      block.clear();
    } else if (!marks.empty() && marks[0] == fence[0] && marks.size() >= fence.size() &&
               after.empty()) {
      any_named = any_named || !word.empty();
      if (Names(word, language)) named = block;
      if (word.empty()) unnamed = block;
      fence = "";
    } else {
      absl::StrAppend(&block, line, "\n");
    }
  }
  return any_named ? named : unnamed;
}

}  // namespace sluice::code
