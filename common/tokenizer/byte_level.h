#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// GPT-2's spelling of bytes as printable characters: a byte that is a printable Latin-1 character
// stands for itself, the others take U+0100 and up, in order.
class ByteLevelAlphabet {
 public:
  static const ByteLevelAlphabet& Get();

  std::string Spell(absl::string_view bytes) const;
  // False: `spelling` holds a character that stands for no byte.
  bool Unspell(absl::string_view spelling, std::string* bytes) const;
  // The bytes of a token; those of its own UTF-8 where it holds a character that stands for no
  // byte.
  std::string Bytes(absl::string_view token) const;

 private:
  ByteLevelAlphabet();
  std::array<std::string, 256> spelling_;
  std::array<int, 512> byte_of_;  // By code point; -1: none.
};

}  // namespace sluice
