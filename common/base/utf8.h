#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Length of the well-formed UTF-8 sequence at the start of `bytes`, 1 to 4; 0 if there is none.
size_t Utf8Length(absl::string_view bytes);
bool IsUtf8(absl::string_view bytes);

// Of text known to be UTF-8: the length of the sequence that `lead` begins, and the character at
// `p`.
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

// Bytes at the end of `bytes` that begin a well-formed sequence and do not complete it, 0 to 3.
size_t Utf8IncompleteTail(absl::string_view bytes);
void AppendUtf8(uint32_t code_point, std::string* out);

// `bytes` with each maximal ill-formed part replaced by one U+FFFD (Unicode 3.9, "substitution of
// maximal subparts").
std::string Utf8Lossy(absl::string_view bytes);

// The start of `bytes`, at most `limit` bytes of it, that does not end inside of a character; the
// rest of it is as it was.
absl::string_view Utf8Prefix(absl::string_view bytes, size_t limit);

}  // namespace sluice
