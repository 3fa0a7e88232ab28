#include "common/verifiers/math/plain.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sluice::math {
namespace {

struct Replacement {
  uint32_t code;
  const char* text;
};

// Sorted by code point.
constexpr Replacement kReplacements[] = {
    {0x00A0, " "},
    {0x00A3, "\\$"},
    {0x00A5, "\\$"},
    {0x00AD, ""},
    {0x00B0, "^\\circ "},
    {0x00B1, "\\pm "},
    {0x00B7, "\\cdot "},
    {0x00BC, "\\frac{1}{4}"},
    {0x00BD, "\\frac{1}{2}"},
    {0x00BE, "\\frac{3}{4}"},
    {0x00D7, "\\times "},
    {0x00F7, "\\div "},
    {0x0391, "A"},
    {0x0393, "\\Gamma "},
    {0x0394, "\\Delta "},
    {0x03A3, "\\Sigma "},
    {0x03A6, "\\Phi "},
    {0x03A9, "\\Omega "},
    {0x03B1, "\\alpha "},
    {0x03B2, "\\beta "},
    {0x03B3, "\\gamma "},
    {0x03B4, "\\delta "},
    {0x03B5, "\\epsilon "},
    {0x03B8, "\\theta "},
    {0x03BB, "\\lambda "},
    {0x03BC, "\\mu "},
    {0x03C0, "\\pi "},
    {0x03C1, "\\rho "},
    {0x03C3, "\\sigma "},
    {0x03C4, "\\tau "},
    {0x03C6, "\\phi "},
    {0x03C9, "\\omega "},
    {0x066A, "%"},
    {0x066B, "."},
    {0x066C, ","},
    {0x200B, ""},
    {0x200C, ""},
    {0x200D, ""},
    {0x200E, ""},
    {0x200F, ""},
    {0x2010, "-"},
    {0x2011, "-"},
    {0x2012, "-"},
    {0x2013, "-"},
    {0x2014, "-"},
    {0x2018, "'"},
    {0x2019, "'"},
    {0x2026, "\\ldots "},
    {0x202F, " "},
    {0x2032, "'"},
    {0x205F, " "},
    {0x2060, ""},
    {0x20AC, "\\$"},
    {0x20B9, "\\$"},
    {0x2124, "\\mathbb{Z}"},
    {0x211D, "\\mathbb{R}"},
    {0x2153, "\\frac{1}{3}"},
    {0x2154, "\\frac{2}{3}"},
    {0x2155, "\\frac{1}{5}"},
    {0x215B, "\\frac{1}{8}"},
    {0x2190, "\\leftarrow "},
    {0x2192, "\\to "},
    {0x2205, "\\emptyset "},
    {0x2208, "\\in "},
    {0x2211, "\\sum "},
    {0x2212, "-"},
    {0x2215, "/"},
    {0x2217, "*"},
    {0x2219, "\\cdot "},
    {0x221A, "\\surd "},
    {0x221E, "\\infty "},
    {0x2229, "\\cap "},
    {0x222A, "\\cup "},
    {0x222B, "\\int "},
    {0x2236, ":"},
    {0x2248, "\\approx "},
    {0x2260, "\\ne "},
    {0x2264, "\\le "},
    {0x2265, "\\ge "},
    {0x22C5, "\\cdot "},
    {0x2329, "\\langle "},
    {0x232A, "\\rangle "},
    {0x2A7D, "\\le "},
    {0x2A7E, "\\ge "},
    {0x3000, " "},
    {0x3001, ","},
    {0xFEFF, ""},
};

// Reads a code point, or the first byte of a broken one as U+FFFD.
uint32_t NextCodePoint(absl::string_view text, size_t& at) {
  const uint8_t first = static_cast<uint8_t>(text[at++]);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 && first < 0xF5 ? 3 : first >= 0xE0 ? 2 : first >= 0xC2 ? 1 : 0;
  if (more == 0 || first >= 0xF5 || at + more > text.size()) return 0xFFFD;
  uint32_t code = first & (0x3F >> more);
  for (int i = 0; i < more; ++i) {
    const uint8_t next = static_cast<uint8_t>(text[at + i]);
    if ((next & 0xC0) != 0x80) return 0xFFFD;
    code = code << 6 | (next & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLeast[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 0xFFFD;
  at += more;
  return code;
}

void AppendUtf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    if (code < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | code >> 12));
    } else {
      out.push_back(static_cast<char>(0xF0 | code >> 18));
      out.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    }
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

int SuperscriptDigit(uint32_t code) {
  if (code == 0xB9) return 1;
  if (code == 0xB2 || code == 0xB3) return static_cast<int>(code - 0xB0);
  return code == 0x2070 || (code >= 0x2074 && code <= 0x2079) ? static_cast<int>(code - 0x2070)
                                                              : -1;
}
int SubscriptDigit(uint32_t code) {
  return code >= 0x2080 && code <= 0x2089 ? static_cast<int>(code - 0x2080) : -1;
}

// The zeros of the scripts whose ten digits follow each other and are common in answers.
char DigitOfOtherScript(uint32_t code) {
  for (const uint32_t zero : {0x0660, 0x06F0, 0x0966, 0x09E6, 0x0E50}) {
    if (code >= zero && code < zero + 10) return static_cast<char>('0' + (code - zero));
  }
  return 0;
}

void AppendPlain(uint32_t code, std::string& out) {
  if (const char digit = DigitOfOtherScript(code); digit != 0) return out.push_back(digit);
  if (code >= 0xFF01 && code <= 0xFF5E)  // Full-width ASCII.
    return out.push_back(static_cast<char>(code - 0xFF01 + '!'));
  if (code >= 0x2000 && code <= 0x200A) return out.push_back(' ');  // Spaces of several widths.
  const auto* const found =
      std::lower_bound(std::begin(kReplacements), std::end(kReplacements), code,
                       [](const Replacement& row, uint32_t wanted) { return row.code < wanted; });
  if (found != std::end(kReplacements) && found->code == code) {
    out.append(found->text);
  } else {
    AppendUtf8(code, out);
  }
}

// Whether the letters at `at` are a command that no line of a matrix starts with by accident.
bool IsUnmistakableCommand(absl::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && absl::ascii_isalpha(text[end])) ++end;
  const absl::string_view name = text.substr(at, end - at);
  for (const absl::string_view known :
       {"boxed", "frac", "dfrac", "tfrac", "sqrt", "text", "begin",  "end",   "left", "right",
        "pi",    "cdot", "times", "le",    "leq",  "ge",   "geq",    "infty", "cup",  "pm",
        "sin",   "cos",  "tan",   "log",   "ln",   "circ", "mathrm", "quad",  "binom"}) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace

std::string PlainText(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  char script = 0;  // The open group of small digits: ^ or _.
  for (size_t at = 0; at < text.size();) {
    const uint8_t byte = static_cast<uint8_t>(text[at]);
    const uint32_t code = byte < 0x80 ? (++at, byte) : NextCodePoint(text, at);
    const int above = SuperscriptDigit(code), below = SubscriptDigit(code);
    const char wanted = above >= 0 ? '^' : below >= 0 ? '_' : 0;
    if (script != wanted) {
      if (script != 0) out.push_back('}');
      if (wanted != 0) absl::StrAppend(&out, std::string(1, wanted), "{");
      script = wanted;
    }

    if (wanted != 0) {
      out.push_back(static_cast<char>('0' + std::max(above, below)));
    } else if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else {
      AppendPlain(code, out);
    }
  }
  if (script != 0) out.push_back('}');
  return out;
}

std::string UndoubleBackslashes(absl::string_view text) {
  bool doubled = false, single = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') continue;
    const size_t begin = i;
    while (i < text.size() && text[i] == '\\') ++i;
    if (i == text.size() || !absl::ascii_isalpha(text[i])) continue;
    if (i - begin == 2 && IsUnmistakableCommand(text, i)) doubled = true;
    if (i - begin == 1) single = true;
  }
  if (!doubled) return std::string(text);
  if (!single) return absl::StrReplaceAll(text, {{"\\\\", "\\"}});

  // Some commands are doubled and some are not: halve those that are surely commands.
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "\\\\" && (i == 0 || text[i - 1] != '\\') &&
        IsUnmistakableCommand(text, i + 2))
      ++i;
    out.push_back(text[i]);
  }
  return out;
}

}  // namespace sluice::math
