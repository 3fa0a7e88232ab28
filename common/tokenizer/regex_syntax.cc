#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/char_class.h"
#include "common/tokenizer/regex.h"

namespace sluice {
namespace {

// The insides of character classes. Oniguruma's word characters are Alphabetic, M, Nd and Pc.
constexpr char kSpace[] = R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A})"
                          R"(\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
std::string WordClass() {
  return absl::StrCat(R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})",
                      CharTable::Get().Ranges(kLetterMask | kMarkMask));
}

struct Category {
  const char* name;
  CharMask mask;
};
// The categories that CharTable distinguishes. PCRE2's own ones are of an older Unicode version, so
// newer characters are added.
constexpr Category kCategories[] = {{"L", kLetterMask},
                                    {"Lu", MaskOf(CharClass::kLu)},
                                    {"Ll", kLowerMask},
                                    {"Lt", MaskOf(CharClass::kLt)},
                                    {"Lm", MaskOf(CharClass::kLm)},
                                    {"Lo", MaskOf(CharClass::kLo)},
                                    {"M", kMarkMask},
                                    {"N", kNumberMask},
                                    {"P", kPunctuationMask},
                                    {"S", kSymbolMask},
                                    {"Letter", kLetterMask},
                                    {"Mark", kMarkMask},
                                    {"Number", kNumberMask},
                                    {"Punctuation", kPunctuationMask},
                                    {"Symbol", kSymbolMask}};

// Reads a pattern and writes the translation.
class Translation {
 public:
  explicit Translation(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) SLUICE_RETURN_IF_ERROR(TranslateNext());
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("at byte ", at_, ": ", what, " is not supported"));
  }
  bool NextIs(absl::string_view text) const { return absl::StartsWith(in_.substr(at_), text); }

  absl::Status TranslateNext() {
    const char c = in_[at_];
    if (c == '\\') return TranslateEscape();
    if (in_class_) return TranslateInClass(c);
    if (c == '[') {
      in_class_ = true;
      out_ += in_[at_++];
      if (NextIs("^")) out_ += in_[at_++];
      if (NextIs("]")) return Unsupported("a class that begins with ]");
      return absl::OkStatus();
    }

    if (NextIs("}+")) return Unsupported("{n,m}+ (a repeated repetition)");
    if (NextIs("(?")) return CopyGroup();
    if (NextIs("(*")) return Unsupported("(*..)");
    out_ += in_[at_++];
    return absl::OkStatus();
  }

  // Copies `(?` and what follows, if the group means the same in both engines.
  absl::Status CopyGroup() {
    for (const char* const same :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"}) {
      if (!NextIs(same)) continue;
      absl::StrAppend(&out_, same);
      at_ += absl::string_view(same).size();
      return absl::OkStatus();
    }
    return Unsupported(absl::StrCat("the group ", in_.substr(at_, 4)));
  }

  absl::Status TranslateInClass(char c) {
    if (c == '[') return Unsupported(NextIs("[:") ? "a POSIX class" : "a class within a class");
    if (NextIs("&&")) return Unsupported("&& in a class");
    if (c == ']') in_class_ = false;
    out_ += in_[at_++];
    return absl::OkStatus();
  }

  void AppendClass(absl::string_view inside, bool negated) {
    absl::StrAppend(&out_, in_class_ ? "" : negated ? "[^" : "[", inside, in_class_ ? "" : "]");
  }

  absl::Status TranslateEscape() {
    if (at_ + 1 >= in_.size()) return absl::InvalidArgumentError("the pattern ends in a backslash");
    const char c = in_[at_ + 1];
    const bool negated = absl::ascii_isupper(c);
    if (in_class_ && negated && absl::StrContains("SWHDP", c))
      return Unsupported(absl::StrCat("\\", std::string(1, c), " in a class"));
    if (c == 'p' || c == 'P') return TranslateProperty(negated);
    if (c == 'u' || c == 'x') return TranslateCodePoint();
    const std::string word = absl::StrContains("wWbB", c) ? WordClass() : "";
    if (absl::ascii_tolower(c) == 's') {
      AppendClass(kSpace, negated);
    } else if (absl::ascii_tolower(c) == 'w') {
      AppendClass(word, negated);
    } else if (absl::ascii_tolower(c) == 'h') {
      AppendClass("0-9A-Fa-f", negated);
    } else if (absl::ascii_tolower(c) == 'b' && !in_class_) {
      // \b is a place between a word character and something else. It is written out as four
      // lookarounds, with the reference library's word characters.
      const char* const one = negated ? "=" : "!";
      const char* const other = negated ? "!" : "=";
      absl::StrAppend(&out_, "(?:(?<=[", word, "])(?", one, "[", word, "])|(?<![", word, "])(?",
                      other, "[", word, "]))");
    } else if (c == 'v') {
      out_ += R"(\x{0B})";
    } else if (!absl::ascii_isalnum(c) || absl::StrContains("dDrntfaeAz", c)) {
      absl::StrAppend(&out_, in_.substr(at_, 1));
      // PCRE2 accepts no backslash before non-ASCII characters.
      if ((static_cast<uint8_t>(c) & 0x80) != 0) out_.pop_back();
      out_ += c;
    } else {
      return Unsupported(absl::StrCat("\\", std::string(1, c)));
    }
    at_ += 2;
    return absl::OkStatus();
  }

  // Translates \p{Name}, \P{Name} and \p{^Name}.
  absl::Status TranslateProperty(bool negated) {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == absl::string_view::npos)
      return Unsupported("\\p without {name}");
    absl::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    if (absl::StartsWith(name, "^")) {
      negated = !negated;
      name.remove_prefix(1);
    }

    if (negated && in_class_) return Unsupported("a negated property in a class");
    // PCRE2 has properties of its own, such as Xan, which Oniguruma does not know.
    if (name.empty() || name[0] == 'X' ||
        !absl::c_all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; })) {
      return Unsupported(absl::StrCat("the property ", name));
    }

    std::string inside = absl::StrCat("\\p{", name, "}");
    for (const Category& category : kCategories) {
      if (category.name != name) continue;
      // PCRE2 lacks the long names. Each begins with its short name: Letter is L.
      inside = absl::StrCat("\\p{", name.substr(0, name.size() > 2 ? 1 : 2), "}",
                            CharTable::Get().Ranges(category.mask));
    }
    AppendClass(inside, negated);
    at_ = close + 1;
    return absl::OkStatus();
  }

  // Translates \uHHHH, \xHH and \x{H..}.
  absl::Status TranslateCodePoint() {
    const bool braced = NextIs("\\x{");
    const size_t begin = at_ + (braced ? 3 : 2), limit = braced ? 6 : NextIs("\\u") ? 4 : 2;
    size_t end = begin;
    while (end < in_.size() && end - begin < limit && absl::ascii_isxdigit(in_[end])) ++end;
    const bool whole =
        braced ? end > begin && end < in_.size() && in_[end] == '}' : end - begin == limit;
    if (!whole)
      return absl::InvalidArgumentError(
          absl::StrCat("at byte ", at_, ": want \\x{H..}, \\xHH or \\uHHHH"));
    if (limit == 2 && in_[begin] >= '8')
      return Unsupported("\\x80 and above (a byte, not a character)");
    absl::StrAppend(&out_, "\\x{", in_.substr(begin, end - begin), "}");
    at_ = end + (braced ? 1 : 0);
    return absl::OkStatus();
  }

  const absl::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern) {
  return Translation(pattern).Run();
}

}  // namespace sluice
