#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// The general categories that split patterns distinguish. kSpace is White_Space: category Z,
// U+0009-000D and U+0085.
enum class CharClass : uint8_t { kOther, kLu, kLl, kLt, kLm, kLo, kM, kN, kP, kS, kSpace };

// A set of classes.
using CharMask = uint32_t;
constexpr CharMask MaskOf(CharClass c) { return 1u << static_cast<int>(c); }
constexpr CharMask kUpperMask = MaskOf(CharClass::kLu) | MaskOf(CharClass::kLt),
                   kLowerMask = MaskOf(CharClass::kLl);
constexpr CharMask kCaselessMask = MaskOf(CharClass::kLm) | MaskOf(CharClass::kLo);
constexpr CharMask kLetterMask = kUpperMask | kLowerMask | kCaselessMask;
constexpr CharMask kMarkMask = MaskOf(CharClass::kM), kNumberMask = MaskOf(CharClass::kN),
                   kSpaceMask = MaskOf(CharClass::kSpace);
constexpr CharMask kPunctuationMask = MaskOf(CharClass::kP), kSymbolMask = MaskOf(CharClass::kS);

// The class of every code point in the Unicode version of the reference library (16), independent
// of the versions of ICU and PCRE2.
class CharTable {
 public:
  static const CharTable& Get() {
    static const CharTable* const table = new CharTable;
    return *table;
  }
  CharMask Mask(uint32_t code_point) const {
    return 1u << blocks_[index_[code_point >> kBits] << kBits | (code_point & kLow)];
  }

  // Returns the ranges of `mask` in the form of a regular expression's class, such as
  // \x{10D50}-\x{10D65}. Without `all`, only those that Unicode 14 had not assigned.
  std::string Ranges(CharMask mask, bool all = false) const;

 private:
  CharTable();
  static constexpr int kBits = 7;
  static constexpr uint32_t kLow = (1 << kBits) - 1;
  std::vector<uint16_t> index_;  // Number of the block, by code point >> kBits.
  std::vector<uint8_t> blocks_;  // The classes of each block.
};

}  // namespace sluice
