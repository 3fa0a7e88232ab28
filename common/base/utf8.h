#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// The length of the well-formed UTF-8 sequence at the start of `bytes`, 1 to 4, or 0 if there is
// none.
size_t Utf8Length(absl::string_view bytes);
bool IsUtf8(absl::string_view bytes);

// The length of the sequence that begins with `lead`, and the code point at `p`. Both functions
// require text that is known to be UTF-8.
inline int Utf8SequenceLength(char lead) {
  const uint8_t b = static_cast<uint8_t>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}
inline uint32_t DecodeUtf8(const char* p) {
  const auto b = [&](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  if (b(0) < 0x80) return b(0);
  if (b(0) < 0xE0) return (b(0) & 0x1F) << 6 | (b(1) & 0x3F);
  if (b(0) < 0xF0) return (b(0) & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
  return (b(0) & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
}

// The number of bytes (0 to 3) at the end of `bytes` that begin a well-formed sequence without
// completing it.
size_t Utf8IncompleteTail(absl::string_view bytes);
// `code_point` is at most 0x10FFFF and no surrogate; this is not checked.
void AppendUtf8(uint32_t code_point, std::string* out);

// A copy of `bytes` in which each maximal ill-formed part is replaced by one U+FFFD (Unicode 3.9,
// "substitution of maximal subparts").
std::string Utf8Lossy(absl::string_view bytes);

// The longest start of `bytes` of at most `limit` bytes that does not end in the middle of a
// character. Ill-formed bytes in it are left as they are.
absl::string_view Utf8Prefix(absl::string_view bytes, size_t limit);

// `text` for a message: if it is longer than `limit` bytes, its start followed by "..".
std::string Excerpt(absl::string_view text, size_t limit = 80);

}  // namespace sluice
