// Compares the hand-written scanners with PCRE2 on the same patterns.
#include "common/tokenizer/scanners.h"

#include <gtest/gtest.h>

#include "common/base/splitmix.h"
#include "common/base/utf8.h"
#include "common/tokenizer/char_class.h"
#include "common/tokenizer/regex.h"

namespace sluice {
namespace {

constexpr char kLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)"
    R"(|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t)"
    R"(|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kDeepSeekWords =
    std::string(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)") + "\r\n" +
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)" + "\r\n" + R"(]*|\s*[)" + "\r\n" +
    R"(]+|\s+(?!\S)|\s+)";

// Texts that reach every branch of the patterns: contractions, spaces of all kinds, case, marks,
// digits beyond ASCII, letters newer than PCRE2's tables, noncharacters.
constexpr const char* kParts[] = {
    "'",          "s",          "S",         "\u017F", "t",          "RE",         "re",
    "vE",         "m",          "LL",        "l",      "d",          "D",          " ",
    "  ",         "\n",         "\r",        "\t",     "\u0085",     "\u00A0",     "\u180E",
    "\u2028",     "\u3000",     "\x1C",      "a",      "Z",          "ǅ",          "ʰ",
    "中",         "ぁ",         "ア",        "龥",     "龦",         "\u0301",     "\u0903",
    "1",          "22",         "٣",         "Ⅷ",      "½",          "!",          "/",
    "//",         "-",          "_",         "$",      "+",          "«",          "€",
    "😀",         "\u200D",     "\u0000",    "\uE000", "\U00010D50", "\U00010D70", "\U000105C0",
    "\U00016D40", "\U00010D40", "\U0010FFFF"};

std::string RandomText(SplitMix64& random) {
  std::string text;
  for (uint64_t n = random.Below(12) + 1; n > 0; --n) {
    if (random.Below(8) == 0) {
      uint32_t c = static_cast<uint32_t>(random.Below(random.Below(2) == 0 ? 0x3000 : 0x110000));
      AppendUtf8(c >= 0xD800 && c < 0xE000 ? 'x' : c, &text);
    } else {
      const char* const part = kParts[random.Below(std::size(kParts))];
      text += *part == '\0' ? std::string(1, '\0') : std::string(part);
    }
  }

  return text;
}

TEST(ScannersTest, EveryScannerFindsWhatPcre2FindsOnRandomText) {
  for (const std::string& pattern :
       {std::string(kGpt2Pattern), std::string(kLlama3), std::string(kQwen2), std::string(kTekken),
        std::string(kO200k), std::string(R"(\p{N}{1,3})"), std::string("[一-龥\u3040-ゟ゠-ヿ]+"),
        kDeepSeekWords}) {
    const Scanner scanner = ScannerFor(pattern);
    ASSERT_NE(scanner, nullptr) << pattern;
    const auto by_hand = *Pattern::Regex(pattern);
    const auto by_engine = RegexPattern::Compile(pattern);
    ASSERT_TRUE(by_engine.ok()) << by_engine.status();

    SplitMix64 random(11);
    for (int round = 0; round < 4000; ++round) {
      const std::string text = RandomText(random);
      std::vector<Span> want, got;
      ASSERT_TRUE((*by_engine)->Find(text, &want).ok());
      ASSERT_TRUE(by_hand->Find(text, &got).ok());

      ASSERT_EQ(got.size(), want.size()) << pattern << "\non: " << text;
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(got[i] == want[i]) << pattern << "\non: " << text << "\nat match " << i;

      // The pieces must cover the text. A piece that is no match ends where a match begins.
      for (size_t at = 0; at < text.size();) {
        const Scanned piece = scanner(text, at);
        ASSERT_GT(piece.end, at);
        ASSERT_LE(piece.end, text.size());
        at = piece.end;
      }
    }
  }
}

// A scanner that takes quadratic time would run into the time limit of the test.
TEST(ScannersTest, LongRunsTakeTimeInProportion) {
  for (const char* const pattern :
       {kGpt2Pattern, kLlama3, kTekken, kO200k, kDeepSeekWords.c_str()}) {
    const Scanner scanner = ScannerFor(pattern);
    for (const std::string& unit :
         {std::string("a"), std::string("A"), std::string(" "), std::string("\n"),
          std::string("\u0301"), std::string("\x01"), std::string("A\u0301"), std::string("! ")}) {
      std::string text;
      while (text.size() < (1 << 20)) text += unit;

      size_t pieces = 0;
      for (size_t at = 0; at < text.size(); ++pieces) at = scanner(text, at).end;
      EXPECT_LE(pieces, text.size());
    }
  }
}

TEST(ScannersTest, OtherPatternsHaveNoScanner) {
  EXPECT_EQ(ScannerFor(R"(\w+)"), nullptr);
  EXPECT_EQ(ScannerFor(std::string(kGpt2Pattern) + " "), nullptr);
}

TEST(CharTableTest, KnowsTheClassesAndLettersOfUnicode16) {
  const CharTable& table = CharTable::Get();
  EXPECT_EQ(table.Mask('A'), MaskOf(CharClass::kLu));
  EXPECT_EQ(table.Mask(0x85), kSpaceMask);
  EXPECT_NE(table.Mask(0x180E), kSpaceMask);
  EXPECT_NE(table.Mask(0x1C), kSpaceMask);
  EXPECT_EQ(table.Mask(0x10D50), MaskOf(CharClass::kLu));  // The Garay script is new in Unicode 16.
  EXPECT_EQ(table.Mask(0x10FFFF), MaskOf(CharClass::kOther));
}

}  // namespace
}  // namespace sluice
