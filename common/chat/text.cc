#include "common/chat/text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "common/base/utf8.h"

namespace sluice::chat {
namespace {

using icu::UnicodeString;

UnicodeString ToUtf16(absl::string_view text) {
  return UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::string ToUtf8(const UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

// Returns the byte where the last code point of a text begins.
size_t LastCodePoint(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return at;
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

template <typename Drop>
absl::string_view Strip(absl::string_view text, Side side, Drop drop) {
  while ((side & kLeft) && !text.empty()) {
    size_t at = 0;
    if (!drop(text, 0, NextCodePoint(text, &at))) break;
    text.remove_prefix(at);
  }
  while ((side & kRight) && !text.empty()) {
    size_t at = LastCodePoint(text);
    const size_t begin = at;
    if (!drop(text, begin, NextCodePoint(text, &at))) break;
    text = text.substr(0, begin);
  }
  return text;
}

bool HasOnlyCase(absl::string_view text, bool upper) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(NextCodePoint(text, &at));
    if (u_hasBinaryProperty(c, upper ? UCHAR_LOWERCASE : UCHAR_UPPERCASE) ||
        u_charType(c) == U_TITLECASE_LETTER)
      return false;
    any |= u_hasBinaryProperty(c, upper ? UCHAR_UPPERCASE : UCHAR_LOWERCASE) != 0;
  }
  return any;
}

// Converts one code point to title case; digraphs have a title case of their own.
std::string TitleCase(absl::string_view code_point) {
  UnicodeString text = ToUtf16(code_point);
  return ToUtf8(text.toTitle(nullptr, icu::Locale::getRoot()));
}

}  // namespace

bool IsAscii(absl::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) return false;
  }
  for (; at < text.size(); ++at) {
    if (text[at] & 0x80) return false;
  }
  return true;
}

size_t CountCodePoints(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (c & 0xc0) != 0x80;
  return count;
}

size_t ByteOf(absl::string_view text, size_t n) {
  size_t at = 0;
  for (; n > 0 && at < text.size(); --n) NextCodePoint(text, &at);
  return at;
}

char32_t NextCodePoint(absl::string_view text, size_t* at) {
  const auto byte = [&](size_t i) -> char32_t {
    return *at + i < text.size() ? static_cast<uint8_t>(text[*at + i]) : 0x80;
  };
  const char32_t lead = byte(0);
  const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  char32_t c = lead & (size == 1 ? 0x7f : 0x7f >> size);
  for (size_t i = 1; i < size; ++i) c = c << 6 | (byte(i) & 0x3f);
  *at = std::min(*at + size, text.size());
  return c;
}

std::vector<absl::string_view> SplitCodePoints(absl::string_view text) {
  std::vector<absl::string_view> points;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    NextCodePoint(text, &at);
    points.push_back(text.substr(begin, at - begin));
  }
  return points;
}

int DecimalValue(char32_t c) { return u_charDigitValue(static_cast<UChar32>(c)); }

bool IsDigit(char32_t c) {
  if (c < 0x80) return absl::ascii_isdigit(static_cast<unsigned char>(c));
  const int32_t type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool IsSpace(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_UNASSIGNED:
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_PRIVATE_USE_CHAR:
    case U_SURROGATE:
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR: return false;
    default: return true;
  }
}

bool IsUpper(absl::string_view text) { return HasOnlyCase(text, true); }
bool IsLower(absl::string_view text) { return HasOnlyCase(text, false); }

std::string Upper(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToUpper(text);
  return ToUtf8(ToUtf16(text).toUpper(icu::Locale::getRoot()));
}

std::string Lower(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  return ToUtf8(ToUtf16(text).toLower(icu::Locale::getRoot()));
}

std::string Capitalize(absl::string_view text) {
  const size_t first = ByteOf(text, 1);
  if (first == 0) return std::string();
  // Lower() must see the whole text: whether a sigma is final depends on the characters before it.
  const std::string lower = Lower(text);
  return TitleCase(text.substr(0, first)) + lower.substr(Lower(text.substr(0, first)).size());
}

std::string Title(absl::string_view text) {
  std::string out;
  // A word is a run of cased letters. It is lowered as a whole, because of a final sigma.
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    while (at < text.size()) {
      size_t next = at;
      if (!u_hasBinaryProperty(static_cast<UChar32>(NextCodePoint(text, &next)), UCHAR_CASED))
        break;
      at = next;
    }
    if (at > begin) out += Capitalize(text.substr(begin, at - begin));
    const size_t gap = at;
    if (at < text.size()) NextCodePoint(text, &at);
    out.append(text.data() + gap, at - gap);
  }
  return out;
}

absl::string_view StripSpace(absl::string_view text, Side side) {
  return Strip(text, side, [](absl::string_view, size_t, char32_t c) { return IsSpace(c); });
}

absl::string_view StripAnyOf(absl::string_view text, absl::string_view code_points, Side side) {
  if (IsAscii(code_points)) {
    return Strip(text, side, [&](absl::string_view, size_t, char32_t c) {
      return c < 0x80 && code_points.find(static_cast<char>(c)) != absl::string_view::npos;
    });
  }
  return Strip(text, side, [&](absl::string_view, size_t, char32_t c) {
    for (size_t at = 0; at < code_points.size();) {
      if (NextCodePoint(code_points, &at) == c) return true;
    }
    return false;
  });
}

std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<absl::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = NextCodePoint(text, &at);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool IsWord(char32_t c) { return c == '_' || u_isalnum(static_cast<UChar32>(c)); }

size_t FindText(absl::string_view text, absl::string_view wanted, size_t from) {
  if (from > text.size()) return absl::string_view::npos;
  if (wanted.empty()) return from;
  const void* const found =
      memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? absl::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace sluice::chat
