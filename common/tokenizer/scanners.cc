#include "common/tokenizer/scanners.h"

#include <array>
#include <cstdint>

#include "common/base/utf8.h"
#include "common/tokenizer/char_class.h"

namespace sluice {
namespace {

constexpr CharMask kWordMask = kLetterMask | kNumberMask;
// The characters that [^\s\p{L}\p{N}] excludes.
constexpr CharMask kNoPunctuation = kWordMask | kSpaceMask;
constexpr CharMask kUpperPart = kUpperMask | kCaselessMask | kMarkMask,
                   kLowerPart = kLowerMask | kCaselessMask | kMarkMask;

// ASCII characters skip the two-level lookup of the table.
std::array<CharMask, 128> AsciiMasks() {
  std::array<CharMask, 128> masks;
  for (uint32_t c = 0; c < 128; ++c) masks[c] = CharTable::Get().Mask(c);
  return masks;
}
const std::array<CharMask, 128> kAscii = AsciiMasks();
const CharTable& kTable = CharTable::Get();

// A place in the text, which moves by whole characters.
class Cursor {
 public:
  Cursor(absl::string_view text, size_t at)
      : begin_(text.data()), p_(begin_ + at), end_(begin_ + text.size()) {}

  bool done() const { return p_ == end_; }
  char byte() const { return *p_; }  // Not valid if done().
  size_t at() const { return p_ - begin_; }
  bool operator==(const Cursor& o) const { return p_ == o.p_; }
  bool IsByte(char c) const { return p_ != end_ && *p_ == c; }
  bool IsNewline() const { return p_ != end_ && (*p_ == '\n' || *p_ == '\r'); }

  bool Is(CharMask mask) const { return p_ != end_ && (Here() & mask) != 0; }
  bool IsNot(CharMask mask) const { return p_ != end_ && (Here() & mask) == 0; }
  void Next() { p_ += Utf8SequenceLength(*p_); }
  void Back() {
    do --p_;
    while ((static_cast<uint8_t>(*p_) & 0xC0) == 0x80);
  }
  void NextByte() { ++p_; }
  uint32_t CodePoint() const { return DecodeUtf8(p_); }

  Cursor Skip(CharMask mask) const {  // The place after the run of characters in `mask`.
    Cursor c = *this;
    while (c.Is(mask)) c.Next();
    return c;
  }
  Cursor SkipNot(CharMask mask) const {
    Cursor c = *this;
    while (c.IsNot(mask)) c.Next();
    return c;
  }
  Cursor SkipNewlines(bool and_slashes = false) const {
    Cursor c = *this;
    while (c.IsNewline() || (and_slashes && c.IsByte('/'))) c.NextByte();
    return c;
  }
  Cursor After() const {  // The place one character later.
    Cursor c = *this;
    c.Next();
    return c;
  }

 private:
  CharMask Here() const {
    const uint8_t lead = static_cast<uint8_t>(*p_);
    return lead < 0x80 ? kAscii[lead] : kTable.Mask(DecodeUtf8(p_));
  }
  const char* begin_;
  const char* p_;
  const char* end_;
};

// Returns the place after 's 't 'm 'd 're 've 'll at `c`, or c if there is none. With case folding
// there is one more character: U+017F counts as s.
template <bool kAnyCase>
Cursor Contraction(Cursor c) {
  if (!c.IsByte('\'')) return c;
  const auto lower = [](char b) {
    return kAnyCase && b >= 'A' && b <= 'Z' ? static_cast<char>(b | 0x20) : b;
  };
  Cursor one = c;
  one.NextByte();
  if (one.done()) return c;
  const char first = lower(one.byte());
  Cursor two = one;
  two.NextByte();
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return two;
    case 'r':
    case 'v':
    case 'l': {
      if (two.done() || lower(two.byte()) != (first == 'l' ? 'l' : 'e')) return c;
      two.NextByte();
      return two;
    }
    case '\xC5': {
      if (!kAnyCase || two.byte() != '\xBF') return c;
      two.NextByte();
      return two;
    }
    default: return c;
  }
}

// \s+(?!\S)|\s+ for the run of spaces [c, end): all of it at the end of the text or if it is one
// character, else all but its last character.
Cursor SpaceRun(Cursor c, Cursor end) {
  if (end.done() || c.After() == end) return end;
  end.Back();
  return end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+: up to the last newline of the run if there is one, else as SpaceRun().
Cursor SpacesOrLines(Cursor c) {
  const Cursor end = c.Skip(kSpaceMask);
  for (Cursor last = end; !(last == c);) {
    const Cursor after = last;
    last.Back();
    if (last.IsNewline()) return after;
  }
  return SpaceRun(c, end);
}

Cursor Digits(Cursor c, int most) {
  for (int n = 0; n < most && c.Is(kNumberMask); ++n) c.Next();
  return c;
}

Scanned Gpt2(absl::string_view text, size_t at) {
  const Cursor c(text, at);
  if (const Cursor end = Contraction<false>(c); !(end == c)) return {end.at(), true};
  Cursor word = c;
  if (word.IsByte(' ')) word.NextByte();
  if (word.Is(kLetterMask)) return {word.Skip(kLetterMask).at(), true};
  if (word.Is(kNumberMask)) return {word.Skip(kNumberMask).at(), true};
  if (word.IsNot(kSpaceMask)) return {word.SkipNot(kNoPunctuation).at(), true};
  return {SpaceRun(c, c.Skip(kSpaceMask)).at(), true};
}

// The pattern ` ?[^\s\p{L}\p{N}]+[\r\n]*`; with `slashes`, its end is `[\r\n/]*`. Returns c if it
// does not match.
Cursor Punctuation(Cursor c, bool slashes) {
  Cursor word = c;
  if (word.IsByte(' ')) word.NextByte();
  return word.IsNot(kNoPunctuation) ? word.SkipNot(kNoPunctuation).SkipNewlines(slashes) : c;
}

template <int kDigits>
Scanned Llama3(absl::string_view text, size_t at) {
  const Cursor c(text, at);
  if (const Cursor end = Contraction<true>(c); !(end == c)) return {end.at(), true};
  if (c.Is(kLetterMask)) return {c.Skip(kLetterMask).at(), true};
  if (c.Is(kNumberMask)) return {Digits(c, kDigits).at(), true};
  if (!c.IsNewline()) {
    const Cursor word = c.After();
    if (word.Is(kLetterMask)) return {word.Skip(kLetterMask).at(), true};
  }
  if (const Cursor end = Punctuation(c, false); !(end == c)) return {end.at(), true};
  return {SpacesOrLines(c).at(), true};
}

// [U]*[W]+, where U and W are the upper and lower classes, which share caseless letters and marks.
// Returns c if it does not match. If no W follows the run of U, the run gives back characters until
// its last one is in W.
Cursor UpperThenLower(Cursor c) {
  const Cursor upper = c.Skip(kUpperPart), lower = upper.Skip(kLowerPart);
  if (!(lower == upper)) return lower;
  for (Cursor last = upper; !(last == c);) {
    const Cursor after = last;
    last.Back();
    if (last.Is(kLowerPart)) return after;
  }
  return c;
}
// [U]+[W]*. Returns c if it does not match.
Cursor UpperMaybeLower(Cursor c) {
  const Cursor upper = c.Skip(kUpperPart);
  return upper == c ? c : upper.Skip(kLowerPart);
}

// The two alternatives for a word. Each is tried first with a prefix character [^\r\n\p{L}\p{N}],
// then without.
Cursor CasedWord(Cursor c) {
  const bool prefix = !c.IsNewline() && c.IsNot(kWordMask);
  for (Cursor (*const part)(Cursor) : {UpperThenLower, UpperMaybeLower}) {
    if (prefix) {
      const Cursor word = c.After();
      if (const Cursor end = part(word); !(end == word)) return end;
    }
    if (const Cursor end = part(c); !(end == c)) return end;
  }
  return c;
}

template <bool kContractions, int kDigits>
Scanned Cased(absl::string_view text, size_t at) {
  const Cursor c(text, at);
  if (const Cursor end = CasedWord(c); !(end == c))
    return {(kContractions ? Contraction<true>(end) : end).at(), true};
  if (c.Is(kNumberMask)) return {Digits(c, kDigits).at(), true};
  if (const Cursor end = Punctuation(c, true); !(end == c)) return {end.at(), true};
  return {SpacesOrLines(c).at(), true};
}

// The pattern \p{N}{1,3}.
Scanned ThreeDigits(absl::string_view text, size_t at) {
  const Cursor c(text, at);
  if (c.Is(kNumberMask)) return {Digits(c, 3).at(), true};
  return {c.SkipNot(kNumberMask).at(), false};
}

bool IsCjk(Cursor c) {
  if (c.done() || static_cast<uint8_t>(c.byte()) < 0xE3) return false;
  const uint32_t code_point = c.CodePoint();
  return (code_point >= 0x3040 && code_point <= 0x30FF) ||
         (code_point >= 0x4E00 && code_point <= 0x9FA5);
}
Scanned CjkRun(absl::string_view text, size_t at) {
  Cursor c(text, at);
  const bool match = IsCjk(c);
  while (!c.done() && IsCjk(c) == match) c.Next();
  return {c.at(), match};
}

bool IsAsciiLetter(Cursor c) {
  return !c.done() && (c.byte() | 0x20) >= 'a' && (c.byte() | 0x20) <= 'z';
}

// DeepSeek's third pattern at `c`. Returns c if it does not match.
Cursor DeepSeekWord(Cursor c) {
  constexpr CharMask kWord = kLetterMask | kMarkMask, kPunctuation = kPunctuationMask | kSymbolMask;
  const bool punctuation = c.Is(kPunctuation);
  const Cursor word = c.After();
  if (punctuation && static_cast<uint8_t>(c.byte()) < 0x80 && IsAsciiLetter(word)) {
    Cursor end = word;
    while (IsAsciiLetter(end)) end.NextByte();
    return end;
  }
  if (!punctuation && !c.IsNewline() && c.IsNot(kLetterMask) && word.Is(kWord))
    return word.Skip(kWord);
  if (c.Is(kWord)) return c.Skip(kWord);
  Cursor run = c;
  if (run.IsByte(' ')) run.NextByte();
  if (run.Is(kPunctuation)) return run.Skip(kPunctuation).SkipNewlines();
  return c.Is(kSpaceMask) ? SpacesOrLines(c) : c;
}
Scanned DeepSeek(absl::string_view text, size_t at) {
  Cursor c(text, at);
  if (const Cursor end = DeepSeekWord(c); !(end == c)) return {end.at(), true};
  do c.Next();
  while (!c.done() && DeepSeekWord(c) == c);
  return {c.at(), false};
}

struct Known {
  const char* pattern;
  Scanner scanner;
};
#define SLUICE_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SLUICE_LINES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define SLUICE_CASED(behind)                                                               \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" behind \
  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" behind
constexpr Known kKnown[] = {
    {kGpt2Pattern, Gpt2},
    {SLUICE_CONTRACTIONS
     R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" SLUICE_LINES,
     Llama3<3>},
    {SLUICE_CONTRACTIONS
     R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" SLUICE_LINES,
     Llama3<1>},
    {SLUICE_CASED("") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" SLUICE_LINES, Cased<false, 1>},
    {SLUICE_CASED(SLUICE_CONTRACTIONS "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" SLUICE_LINES,
     Cased<true, 3>},
    {R"(\p{N}{1,3})", ThreeDigits},
    {"[一-龥\u3040-ゟ゠-ヿ]+", CjkRun},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
     "\r\n"
     R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
     "\r\n"
     R"(]*|\s*[)"
     "\r\n"
     R"(]+|\s+(?!\S)|\s+)",
     DeepSeek},
};

}  // namespace

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Scanner ScannerFor(absl::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.scanner;
  }
  return nullptr;
}

bool MatchesEverywhere(Scanner scanner) {
  return scanner != ThreeDigits && scanner != CjkRun && scanner != DeepSeek;
}

}  // namespace sluice
