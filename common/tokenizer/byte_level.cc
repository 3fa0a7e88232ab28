#include "common/tokenizer/byte_level.h"

#include "common/base/utf8.h"

namespace sluice {

const ByteLevelAlphabet& ByteLevelAlphabet::Get() {
  static const ByteLevelAlphabet* const alphabet = new ByteLevelAlphabet;
  return *alphabet;
}

ByteLevelAlphabet::ByteLevelAlphabet() {
  byte_of_.fill(-1);
  uint32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const uint32_t code_point = printable ? b : next++;
    AppendUtf8(code_point, &spelling_[b]);
    byte_of_[code_point] = b;
  }
}

std::string ByteLevelAlphabet::Spell(absl::string_view bytes) const {
  std::string out;
  for (const char c : bytes) out += spelling_[static_cast<uint8_t>(c)];
  return out;
}

bool ByteLevelAlphabet::Unspell(absl::string_view spelling, std::string* bytes) const {
  for (size_t i = 0; i < spelling.size();) {
    const uint8_t lead = static_cast<uint8_t>(spelling[i]);
    uint32_t code_point = lead;
    size_t length = 1;
    if (lead >= 0x80) {
      // All spellings are below U+0200.
      if (lead < 0xC2 || lead > 0xC7 || i + 1 >= spelling.size()) return false;
      code_point = (lead & 0x1F) << 6 | (static_cast<uint8_t>(spelling[i + 1]) & 0x3F);
      length = 2;
    }
    if (byte_of_[code_point] < 0) return false;
    bytes->push_back(static_cast<char>(byte_of_[code_point]));
    i += length;
  }
  return true;
}

std::string ByteLevelAlphabet::Bytes(absl::string_view token) const {
  std::string bytes;
  return Unspell(token, &bytes) ? bytes : std::string(token);
}

}  // namespace sluice
