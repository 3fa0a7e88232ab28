#include "common/verifiers/ifeval/split.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/utf8.h"

namespace sluice::ifeval {
namespace {

// Abbreviations behind whose full stop a sentence mostly goes on, in lower case.
constexpr absl::string_view kAbbreviations[] = {
    "al",   "approx", "cf",  "co",  "corp", "dept", "dr", "e.g", "eq",  "etc", "gen", "gov",
    "hon",  "i.e",    "inc", "jr",  "lt",   "ltd",  "mr", "mrs", "ms",  "mt",  "p.m", "a.m",
    "prof", "rep",    "rev", "sen", "sgt",  "sr",   "st", "u.k", "u.s", "vol", "vs"};
// The same, if a number comes next.
constexpr absl::string_view kBeforeNumbers[] = {"fig", "no", "nos", "pp"};
// Words that mostly begin a sentence if they have a capital.
constexpr absl::string_view kStarters[] = {
    "A",     "After", "Also", "An",      "And", "As",   "At",   "But",   "For",  "He",
    "Her",   "His",   "How",  "However", "I",   "If",   "In",   "It",    "Its",  "My",
    "Of",    "On",    "Our",  "She",     "So",  "That", "The",  "Their", "Then", "There",
    "These", "They",  "This", "To",      "We",  "What", "When", "Who",   "Why",  "You"};

// A character of a text, and where it lies.
struct Character {
  uint32_t code_point = 0;
  size_t begin = 0, end = 0;
};

Character CharacterAt(absl::string_view text, size_t at) {
  const size_t length =
      std::min<size_t>(static_cast<size_t>(Utf8SequenceLength(text[at])), text.size() - at);
  return {.code_point = DecodeUtf8(text.data() + at), .begin = at, .end = at + length};
}

// The character that ends at `end`, which is above 0.
Character CharacterBefore(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return CharacterAt(text, begin);
}

bool IsSpace(uint32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; }
bool IsClosing(uint32_t c) {
  const auto category = U_GET_GC_MASK(static_cast<UChar32>(c));
  return c == '"' || c == '\'' || c == '*' || c == '_' ||
         (category & (U_GC_PE_MASK | U_GC_PF_MASK));
}
bool IsWideEnd(uint32_t c) { return c == 0x3002 || c == 0xFF01 || c == 0xFF1F || c == 0xFF0E; }
bool IsStop(uint32_t c) { return c == '.' || c == 0x2026; }
bool IsEnd(uint32_t c) { return IsStop(c) || c == '!' || c == '?' || IsWideEnd(c); }

// Whether the full stop at `dot` is that of an abbreviation, an initial or the number of a line,
// whose text begins at `line`.
bool IsInnerStop(absl::string_view text, size_t dot, size_t line) {
  // The word before it, with the stops inside ("e.g"). Longer ones are no abbreviation.
  size_t begin = dot;
  while (
      begin > 0 && dot - begin < 12 &&
      (absl::ascii_isalnum(static_cast<unsigned char>(text[begin - 1])) || text[begin - 1] == '.'))
    --begin;
  const absl::string_view word = text.substr(begin, dot - begin);
  if (word.empty()) return false;
  if (word.size() == 1 && absl::ascii_isupper(static_cast<unsigned char>(word[0])))
    return word != "I";  // "So am I." ends a sentence.
  if (absl::c_all_of(word, [](unsigned char c) { return absl::ascii_isdigit(c); }))
    return begin == line;
  size_t next = dot + 1;
  while (next < text.size() && absl::ascii_isspace(static_cast<unsigned char>(text[next]))) ++next;
  size_t end = next;
  while (end < text.size() && absl::ascii_isalnum(static_cast<unsigned char>(text[end]))) ++end;
  const absl::string_view follower = text.substr(next, end - next);
  const std::string lower = absl::AsciiStrToLower(word);
  if (absl::c_linear_search(kBeforeNumbers, lower))
    return !follower.empty() && absl::ascii_isdigit(static_cast<unsigned char>(follower[0]));
  return absl::c_linear_search(kAbbreviations, lower) &&
         !absl::c_linear_search(kStarters, follower);
}

}  // namespace

bool IsWordCharacter(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return c == '_' || u_isalnum(c) || (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_N_MASK)) != 0;
}

uint64_t CountWords(absl::string_view text) {
  uint64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    const bool part = IsWordCharacter(c.code_point);
    if (part && !inside) ++words;
    inside = part;
    at = c.end;
  }
  return words;
}

uint64_t CountSentences(absl::string_view text) {
  uint64_t sentences = 0;
  bool content = false;  // The current sentence has a letter or digit.
  constexpr size_t kNone = absl::string_view::npos;
  size_t line = kNone;  // Where the text of the current line begins, behind white space.
  const auto end_sentence = [&] {
    if (content) ++sentences;
    content = false;
  };
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    at = c.end;
    if (u_isalnum(static_cast<UChar32>(c.code_point))) content = true;
    if (c.code_point == '\n') {
      size_t next = at;
      while (next < text.size() && (text[next] == ' ' || text[next] == '\t' || text[next] == '\r'))
        ++next;
      if (next < text.size() && text[next] == '\n') end_sentence();
      at = next;
      line = kNone;
      continue;
    }
    if (line == kNone && !IsSpace(c.code_point)) line = c.begin;
    if (!IsEnd(c.code_point)) continue;

    // Take all ends and closing marks: "Really?!"
    bool single = c.code_point == '.', stops = IsStop(c.code_point);
    bool wide = IsWideEnd(c.code_point);
    while (at < text.size()) {
      const Character next = CharacterAt(text, at);
      if (!IsEnd(next.code_point) && !IsClosing(next.code_point)) break;
      if (IsEnd(next.code_point)) {
        single = false;
        stops = stops && IsStop(next.code_point);
      }
      wide = wide || IsWideEnd(next.code_point);
      at = next.end;
    }
    if (at < text.size() && !wide && !IsSpace(CharacterAt(text, at).code_point)) continue;
    if (single && IsInnerStop(text, c.begin, line) && at < text.size()) continue;

    size_t next = at;
    while (next < text.size() && IsSpace(CharacterAt(text, next).code_point))
      next = CharacterAt(text, next).end;
    const bool goes_on = stops && next < text.size() &&
                         u_islower(static_cast<UChar32>(CharacterAt(text, next).code_point)) != 0;
    if (!goes_on) end_sentence();
  }
  end_sentence();
  return sentences;
}

std::string Lower(absl::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    AppendUtf8(static_cast<uint32_t>(u_tolower(static_cast<UChar32>(c.code_point))), &lower);
    at = c.end;
  }
  return lower;
}

namespace {

// Whether there is a letter of the one kind, and none of the other.
bool HasOnly(absl::string_view text, bool upper) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    const auto code_point = static_cast<UChar32>(c.code_point);
    if (upper ? u_islower(code_point) : u_isupper(code_point)) return false;
    found = found || (upper ? u_isupper(code_point) : u_islower(code_point));
    at = c.end;
  }
  return found;
}

}  // namespace

bool IsUpper(absl::string_view text) { return HasOnly(text, /*upper=*/true); }
bool IsLower(absl::string_view text) { return HasOnly(text, /*upper=*/false); }

uint64_t CountCapitalWords(absl::string_view text) {
  uint64_t words = 0;
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (end > begin && IsUpper(text.substr(begin, end - begin))) ++words;
  };
  for (size_t at = 0; at < text.size();) {
    const Character c = CharacterAt(text, at);
    const bool apostrophe = c.code_point == '\'' || c.code_point == 0x2019;
    // What follows an apostrophe is a word too, with it: "I'm" is "I" and "'m", "DON'T" is two.
    const bool inner = c.code_point == '-' || c.code_point == '.';
    if (apostrophe) {
      end_word(at);
      begin = at;
    } else if (!inner && !IsWordCharacter(c.code_point)) {
      end_word(at);
      begin = c.end;
    }
    at = c.end;
  }
  end_word(text.size());
  return words;
}

std::vector<size_t> FindAll(absl::string_view text, absl::string_view part, bool whole_words) {
  // Knuth, Morris and Pratt: borders[i] is the length of the longest border of part[0, i].
  std::vector<size_t> borders(part.size(), 0);
  for (size_t i = 1, length = 0; i < part.size(); ++i) {
    while (length > 0 && part[i] != part[length]) length = borders[length - 1];
    if (part[i] == part[length]) ++length;
    borders[i] = length;
  }

  std::vector<size_t> found;
  for (size_t i = 0, length = 0; i < text.size(); ++i) {
    while (length > 0 && text[i] != part[length]) length = borders[length - 1];
    if (text[i] == part[length]) ++length;
    if (length < part.size()) continue;

    const size_t begin = i + 1 - part.size(), end = i + 1;
    const bool touched =
        whole_words && ((begin > 0 && IsWordCharacter(CharacterBefore(text, begin).code_point)) ||
                        (end < text.size() && IsWordCharacter(CharacterAt(text, end).code_point)));
    if (touched) {
      length = borders[length - 1];
    } else {
      found.push_back(begin);
      length = 0;
    }
  }
  return found;
}

std::vector<absl::string_view> SplitBy(absl::string_view text, absl::string_view separator) {
  std::vector<absl::string_view> pieces;
  size_t begin = 0;
  for (const size_t at : FindAll(text, separator)) {
    pieces.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

}  // namespace sluice::ifeval
