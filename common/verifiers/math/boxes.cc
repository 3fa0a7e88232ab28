#include "common/verifiers/math/boxes.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace sluice::math {
namespace {

constexpr size_t kMaxJoined = 64;
constexpr size_t kMaxGap = 300;  // Bytes between two boxes that belong together.
constexpr size_t kMaxWords = 4;

// Finds the closed boxes among the last ones, in the order of the text.
std::vector<Box> FindClosedBoxes(absl::string_view text) {
  struct Brace {
    size_t at;
    size_t command;  // Of a box, or npos.
  };
  std::vector<Brace> open;
  std::vector<Box> boxes;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      const absl::string_view rest = text.substr(i);
      const size_t name = absl::StartsWith(rest, "\\boxed")  ? 6
                          : absl::StartsWith(rest, "\\fbox") ? 5
                                                             : 0;
      size_t brace = i + name;
      while (brace < text.size() && text[brace] == ' ') ++brace;
      if (name > 0 && brace < text.size() && text[brace] == '{') {
        open.push_back({brace, i});
        i = brace;
      } else {
        ++i;  // \{ and \} are no braces.
      }
    } else if (c == '{') {
      open.push_back({i, absl::string_view::npos});
    } else if (c == '}' && !open.empty()) {
      if (open.back().command != absl::string_view::npos)
        boxes.push_back({open.back().command, open.back().at + 1, i});
      open.pop_back();
    }
    // A text of braces alone must not take more memory than it has bytes.
    if (open.size() > 4096) open.erase(open.begin(), open.begin() + 2048);
    if (boxes.size() > 2 * kMaxJoined) boxes.erase(boxes.begin(), boxes.begin() + kMaxJoined);
  }
  // An outer box counts, not the ones inside it.
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return a.begin < b.begin; });
  std::vector<Box> outer;
  for (const Box& box : boxes) {
    if (outer.empty() || box.begin >= outer.back().end) outer.push_back(box);
  }
  return outer;
}

bool IsBareWord(absl::string_view inside) {
  return inside.size() > 1 && std::all_of(inside.begin(), inside.end(), [](char c) {
           return absl::ascii_isalpha(c) || c == ' ';
         });
}

// Whether the text between two boxes leaves them one answer.
bool Joins(absl::string_view gap) {
  if (gap.size() > kMaxGap) return false;
  size_t words = 0;
  for (size_t i = 0; i < gap.size();) {
    const char c = gap[i];
    if (c == '\\') {
      ++i;
      while (i < gap.size() && absl::ascii_isalpha(gap[i])) ++i;
      continue;
    }
    const bool stop = (c == '.' || c == '!' || c == '?') &&
                      (i + 1 == gap.size() || absl::ascii_isspace(gap[i + 1]));
    if (stop || absl::StartsWith(gap.substr(i), "\n\n")) return false;
    if (!absl::ascii_isalpha(c)) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < gap.size() && absl::ascii_isalpha(gap[i])) ++i;
    const std::string word = absl::AsciiStrToLower(gap.substr(begin, i - begin));
    if (word == "final" || word == "finally" || word == "actually" || word == "wait" ||
        word == "not" || word == "no" || word == "correction")
      return false;
    if (++words > kMaxWords) return false;
  }
  return true;
}

}  // namespace

std::vector<Box> FindBoxes(absl::string_view text, Budget& budget) {
  // One pass over the text, of a few nanoseconds a byte.
  if (text.find("box") == absl::string_view::npos ||
      !budget.Spend(static_cast<int64_t>(text.size()) / 8))
    return {};
  std::vector<Box> boxes = FindClosedBoxes(text);
  if (boxes.empty()) return {};
  const auto inside = [&](const Box& box) { return text.substr(box.begin, box.end - box.begin); };
  size_t first = boxes.size() - 1;
  while (
      first > 0 && boxes.size() - first < kMaxJoined && !IsBareWord(inside(boxes[first])) &&
      !IsBareWord(inside(boxes[first - 1])) &&
      Joins(text.substr(boxes[first - 1].end + 1, boxes[first].command - boxes[first - 1].end - 1)))
    --first;
  boxes.erase(boxes.begin(), boxes.begin() + static_cast<std::ptrdiff_t>(first));
  return boxes;
}

}  // namespace sluice::math
