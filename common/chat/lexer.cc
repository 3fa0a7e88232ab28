#include "common/chat/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/chat/limits.h"
#include "common/chat/text.h"

namespace sluice::chat {
namespace {

[[noreturn]] void Invalid(size_t at, absl::string_view what) {
  throw Failure{absl::StatusCode::kInvalidArgument, static_cast<uint32_t>(at), std::string(what)};
}

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_' || (c & 0x80) != 0; }
bool IsNamePart(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) {
      AddText(FindTag());
      if (at_ >= source_.size()) break;
      if (NextIs("{#")) {
        SkipComment();
      } else if (!LexRawBlock()) {
        LexTag();
      }
    }
    Add(Token::kEnd, at_);
    return std::move(tokens_);
  }

 private:
  bool NextIs(absl::string_view what) const { return absl::StartsWith(source_.substr(at_), what); }
  Token& Add(Token::Kind kind, size_t at, absl::string_view text = {}) {
    tokens_.push_back({.kind = kind, .text = std::string(text), .at = static_cast<uint32_t>(at)});
    return tokens_.back();
  }

  size_t FindTag() const {
    for (size_t at = source_.find('{', at_); at != absl::string_view::npos;
         at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return source_.size();
  }

  // Adds the text up to the tag at `end` (or the end of the source), without the white space that
  // the tags on both sides remove.
  void AddText(size_t end) {
    absl::string_view text = source_.substr(at_, end - at_);
    const absl::string_view tag = source_.substr(end, 3);
    const char sign = tag.size() > 2 ? tag[2] : '\0';
    const bool line_start = at_ == 0 || source_[at_ - 1] == '\n';
    if (sign == '-') {
      text = StripSpace(text, kRight);
    } else if (sign != '+' && !tag.empty() && tag[1] != '{') {
      // lstrip_blocks: white space between the start of the line and a block or comment is removed.
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_start) && StripSpace(text.substr(begin), kLeft).empty())
        text = text.substr(0, begin);
    }
    if (!text.empty()) Add(Token::kText, at_, text);
    at_ = end;
  }

  // Removes white space after a tag: all of it for `-`, one newline for trim_blocks.
  void SkipAfterTag(bool dash, bool trim_newline) {
    const absl::string_view rest = source_.substr(at_);
    if (dash) {
      at_ += rest.size() - StripSpace(rest, kLeft).size();
    } else if (trim_newline && absl::StartsWith(rest, "\n")) {
      ++at_;
    }
  }

  void SkipComment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == absl::string_view::npos) Invalid(at_, "the comment is not closed");
    const char sign = end > at_ + 2 ? source_[end - 1] : '\0';
    at_ = end + 2;
    SkipAfterTag(sign == '-', sign != '+');
  }

  // A tag `{% NAME %}` with any signs: where it ends, and the sign at its end.
  struct Bare {
    size_t end = 0;
    char sign = '\0';
  };
  bool MatchBareTag(size_t at, absl::string_view name, Bare* bare) const {
    const auto skip_space = [&] {
      at += source_.size() - at - StripSpace(source_.substr(at), kLeft).size();
    };
    if (!absl::StartsWith(source_.substr(at), "{%")) return false;
    at += 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    skip_space();
    if (!absl::StartsWith(source_.substr(at), name)) return false;
    at += name.size();
    skip_space();
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+'))
      bare->sign = source_[at++];
    if (!absl::StartsWith(source_.substr(at), "%}")) return false;
    bare->end = at + 2;
    return true;
  }

  bool LexRawBlock() {
    Bare open, close;
    if (!MatchBareTag(at_, "raw", &open)) return false;
    const size_t begin = at_;
    at_ = open.end;
    SkipAfterTag(open.sign == '-', open.sign != '+');
    for (size_t end = source_.find("{%", at_); end != absl::string_view::npos;
         end = source_.find("{%", end + 2)) {
      if (!MatchBareTag(end, "endraw", &close)) continue;
      AddText(end);
      at_ = close.end;
      SkipAfterTag(close.sign == '-', close.sign != '+');
      return true;
    }
    Invalid(begin, "the raw block is not closed; wanted {% endraw %}");
  }

  void LexTag() {
    const size_t begin = at_;
    const bool block = source_[at_ + 1] == '%';
    Add(block ? Token::kBlockBegin : Token::kPrintBegin, at_);
    at_ += 2;
    if (NextIs("-") || NextIs("+")) ++at_;
    const absl::string_view close = block ? "%}" : "}}";
    brackets_.clear();
    while (true) {
      // White space inside a tag has no meaning.
      at_ += source_.size() - at_ - StripSpace(source_.substr(at_), kLeft).size();
      if (at_ >= source_.size())
        Invalid(begin, absl::StrCat("the tag is not closed; wanted ", close));
      const char sign = NextIs("-") || (block && NextIs("+")) ? source_[at_] : '\0';
      // Inside brackets, `}}` is not the end of the tag.
      if (brackets_.empty() &&
          absl::StartsWith(source_.substr(at_ + (sign != '\0' ? 1 : 0)), close)) {
        Add(block ? Token::kBlockEnd : Token::kPrintEnd, at_);
        at_ += close.size() + (sign != '\0' ? 1 : 0);
        SkipAfterTag(sign == '-', block && sign != '+');
        return;
      }
      LexToken();
    }
  }

  void LexToken() {
    const char c = source_[at_];
    const size_t begin = at_;
    if (c == '\'' || c == '"') return LexString(c);
    if (absl::ascii_isdigit(c)) return LexNumber();
    if (IsNameStart(c)) {
      while (at_ < source_.size() && IsNamePart(source_[at_])) ++at_;
      Add(Token::kName, begin, source_.substr(begin, at_ - begin));
      return;
    }

    for (const absl::string_view op :
         {"//", "==", "!=", "<=", ">=", "**", "+", "-", "*", "/", "%", "~", "<",
          ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ":", ".", "|"}) {
      if (!NextIs(op)) continue;
      at_ += op.size();
      Add(Token::kOperator, begin, op);
      return TrackBracket(op, begin);
    }
    Invalid(at_, absl::StrCat("unexpected character ", source_.substr(at_, 1)));
  }

  void TrackBracket(absl::string_view op, size_t at) {
    constexpr absl::string_view kOpen = "([{", kClose = ")]}";
    if (op.size() != 1) return;
    if (const size_t open = kOpen.find(op[0]); open != absl::string_view::npos) {
      if (brackets_.size() >= kMaxDepth)
        throw Failure{absl::StatusCode::kResourceExhausted, static_cast<uint32_t>(at),
                      absl::StrCat("brackets are nested deeper than ", kMaxDepth)};
      brackets_.push_back(kClose[open]);
    }
    if (kClose.find(op[0]) == absl::string_view::npos) return;
    if (brackets_.empty()) Invalid(at, absl::StrCat("unexpected ", op));
    if (brackets_.back() != op[0])
      Invalid(at, absl::StrCat("unexpected ", op, ", wanted ", std::string(1, brackets_.back())));
    brackets_.pop_back();
  }

  void LexString(char quote) {
    Token& token = Add(Token::kString, at_);
    for (++at_; at_ < source_.size() && source_[at_] != quote;) {
      if (source_[at_] == '\\') {
        LexEscape(&token.text);
      } else {
        token.text.push_back(source_[at_++]);
      }
    }
    if (at_ >= source_.size()) Invalid(token.at, "the string is not closed");
    ++at_;
  }

  // Python's escapes. A backslash before another character stands for itself.
  void LexEscape(std::string* out) {
    constexpr absl::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const size_t begin = at_++;
    if (at_ >= source_.size()) return;  // LexString() reports that the string is not closed.
    const char c = source_[at_++];
    if (c == '\n') return;
    if (const size_t i = kNames.find(c); i != absl::string_view::npos) {
      out->push_back(kValues[i]);
    } else if (c >= '0' && c <= '7') {
      uint32_t code = c - '0';
      for (int i = 1; i < 3 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7';
           ++i)
        code = code * 8 + (source_[at_++] - '0');
      AppendUtf8(code, out);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      AppendUtf8(ReadHexEscape(c == 'x' ? 2 : c == 'u' ? 4 : 8, begin), out);
    } else if (c == 'N') {
      throw Failure{absl::StatusCode::kUnimplemented, static_cast<uint32_t>(begin),
                    "the escape \\N is not supported"};
    } else {
      out->push_back('\\');
      --at_;
    }
  }

  uint32_t ReadHexEscape(int digits, size_t begin) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (at_ >= source_.size() || !absl::ascii_isxdigit(source_[at_]))
        Invalid(begin, absl::StrCat("the escape ", source_.substr(begin, 2), " needs ", digits,
                                    " hex digits"));
      const char c = absl::ascii_tolower(source_[at_]);
      code = code * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      Invalid(begin, absl::StrCat("the escape ", source_.substr(begin, at_ - begin),
                                  " is not a character"));
    return code;
  }

  void ReadDigits(std::string* out, bool hex = false) {
    const auto digit = [&](size_t at) {
      return at < source_.size() &&
             (hex ? absl::ascii_isxdigit(source_[at]) : absl::ascii_isdigit(source_[at]));
    };
    while (digit(at_) || (at_ < source_.size() && source_[at_] == '_' && digit(at_ + 1))) {
      if (source_[at_] != '_') out->push_back(source_[at_]);
      ++at_;
    }
  }

  void LexNumber() {
    Token& token = Add(Token::kInteger, at_);
    const char base = at_ + 1 < source_.size() ? absl::ascii_tolower(source_[at_ + 1]) : '\0';
    if (source_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      token.text = {'0', base};
      at_ += 2;
      // Hex digits are taken with any base; the parser refuses those that the base lacks.
      return ReadDigits(&token.text, true);
    }

    ReadDigits(&token.text);
    const auto digit_at = [&](size_t at) {
      return at < source_.size() && absl::ascii_isdigit(source_[at]);
    };
    if (NextIs(".") && digit_at(at_ + 1)) {
      token.kind = Token::kFloat;
      token.text.push_back(source_[at_++]);
      ReadDigits(&token.text);
    }

    if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
      const bool sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-');
      if (!digit_at(at_ + (sign ? 2 : 1))) return;
      token.kind = Token::kFloat;
      absl::StrAppend(&token.text, source_.substr(at_, sign ? 2 : 1));
      at_ += sign ? 2 : 1;
      ReadDigits(&token.text);
    }
  }

  const absl::string_view source_;
  size_t at_ = 0;
  std::string brackets_;  // Closing brackets that the tag still needs, outermost first.
  std::vector<Token> tokens_;
};

}  // namespace

std::string NormalizeSource(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (absl::EndsWith(out, "\n")) out.pop_back();
  return out;
}

std::vector<Token> Lex(absl::string_view source) { return Lexer(source).Run(); }

std::string PlaceOf(absl::string_view source, uint32_t at) {
  const absl::string_view before = source.substr(0, at);
  const size_t newline = before.rfind('\n');
  const absl::string_view line =
      newline == absl::string_view::npos ? before : before.substr(newline + 1);
  return absl::StrCat(1 + std::count(before.begin(), before.end(), '\n'), ":",
                      1 + CountCodePoints(line));
}

}  // namespace sluice::chat
