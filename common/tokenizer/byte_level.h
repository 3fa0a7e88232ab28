#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// GPT-2's spelling of bytes as printable characters. A byte that is a printable Latin-1 character
// stands for itself; the others are mapped to U+0100 and up, in order.
class ByteLevelAlphabet {
 public:
  static const ByteLevelAlphabet& Get();

  std::string Spell(absl::string_view bytes) const;
  // Returns false if `spelling` contains a character that stands for no byte.
  bool Unspell(absl::string_view spelling, std::string* bytes) const;
  // Returns the bytes that a token spells. If it contains a character that stands for no byte,
  // returns its own UTF-8 bytes.
  std::string Bytes(absl::string_view token) const;

 private:
  ByteLevelAlphabet();
  std::array<std::string, 256> spelling_;
  std::array<int, 512> byte_of_;  // By code point; -1: no byte.
};

}  // namespace sluice
