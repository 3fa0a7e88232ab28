#include "common/chat/lexer.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::chat {
namespace {

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {
    // Jinja drops one newline at the end of a template.
    if (absl::EndsWith(source_, "\n")) source_.remove_suffix(1);
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      SLUICE_RETURN_IF_ERROR(Text());
      if (at_ >= source_.size()) break;
      if (Looking("{#")) {
        SLUICE_RETURN_IF_ERROR(Comment());
      } else {
        SLUICE_RETURN_IF_ERROR(Tag());
      }
    }
    tokens_.push_back(Here(Token::kEnd));
    return std::move(tokens_);
  }

 private:
  bool Looking(absl::string_view what) const { return absl::StartsWith(source_.substr(at_), what); }
  // A token at the place reached. Places are asked for in order, so lines are counted once.
  Token Here(Token::Kind kind) {
    for (; counted_ < at_; ++counted_) {
      if (source_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    }
    return {.kind = kind, .line = line_, .column = static_cast<int>(at_ - line_start_ + 1)};
  }

  // Text up to the next tag. `trim_next_` was left by the tag before it; the tag after it may take white space too.
  absl::Status Text() {
    size_t end = at_;
    while (end < source_.size() && !absl::StartsWith(source_.substr(end), "{{") && !absl::StartsWith(source_.substr(end), "{%") &&
           !absl::StartsWith(source_.substr(end), "{#")) {
      ++end;
    }
    Token token = Here(Token::kText);
    absl::string_view text = source_.substr(at_, end - at_);
    if (trim_next_ == kAll) {
      text = absl::StripLeadingAsciiWhitespace(text);
    } else if (trim_next_ == kNewline && absl::StartsWith(text, "\n")) {
      text.remove_prefix(1);
    }
    if (end < source_.size()) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : '\0';
      if (sign == '-') {
        text = absl::StripTrailingAsciiWhitespace(text);
      } else if (sign != '+' && source_[end + 1] != '{') {
        // lstrip_blocks: blanks between the start of the line and a block or comment go.
        const size_t last = text.find_last_not_of(" \t");
        const bool line_start = last == absl::string_view::npos ? (text.size() == end - at_ && (at_ == 0 || source_[at_ - 1] == '\n')) || trim_next_ != kNothing : text[last] == '\n';
        if (line_start) text = text.substr(0, last == absl::string_view::npos ? 0 : last + 1);
      }
    }
    trim_next_ = kNothing;
    at_ = end;
    if (!text.empty()) {
      token.text = std::string(text);
      tokens_.push_back(std::move(token));
    }
    return absl::OkStatus();
  }

  absl::Status Comment() {
    const Token open = Here(Token::kText);
    const size_t end = source_.find("#}", at_ + 2);
    if (end == absl::string_view::npos) return ErrorAt(open, absl::StatusCode::kInvalidArgument, "the comment is not closed");
    trim_next_ = source_[end - 1] == '-' ? kAll : kNewline;
    at_ = end + 2;
    return absl::OkStatus();
  }

  absl::Status Tag() {
    const bool block = source_[at_ + 1] == '%';
    const Token open = Here(block ? Token::kBlockBegin : Token::kPrintBegin);
    tokens_.push_back(open);
    at_ += 2;
    if (Looking("-") || Looking("+")) ++at_;
    const absl::string_view close = block ? "%}" : "}}";
    int braces = 0;  // A dict literal's } is no end of a print tag.
    while (true) {
      while (at_ < source_.size() && absl::ascii_isspace(source_[at_])) ++at_;
      if (at_ >= source_.size()) return ErrorAt(open, absl::StatusCode::kInvalidArgument, "the tag is not closed");
      if (braces == 0 && ((Looking("-") && absl::StartsWith(source_.substr(at_ + 1), close)) || Looking(close))) {
        const bool dash = Looking("-");
        tokens_.push_back(Here(block ? Token::kBlockEnd : Token::kPrintEnd));
        at_ += close.size() + (dash ? 1 : 0);
        trim_next_ = dash ? kAll : block ? kNewline : kNothing;
        return absl::OkStatus();
      }
      SLUICE_RETURN_IF_ERROR(Lexeme());
      if (tokens_.back().text == "{" && tokens_.back().kind == Token::kOperator) ++braces;
      if (tokens_.back().text == "}" && tokens_.back().kind == Token::kOperator) --braces;
    }
  }

  absl::Status Lexeme() {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return String(c);
    if (absl::ascii_isdigit(c)) return Number();
    if (absl::ascii_isalpha(c) || c == '_') {
      Token token = Here(Token::kName);
      while (at_ < source_.size() && (absl::ascii_isalnum(source_[at_]) || source_[at_] == '_')) token.text.push_back(source_[at_++]);
      tokens_.push_back(std::move(token));
      return absl::OkStatus();
    }
    Token token = Here(Token::kOperator);
    for (const absl::string_view op : {"//", "==", "!=", "<=", ">=", "**", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|"}) {
      if (!Looking(op)) continue;
      token.text = std::string(op);
      at_ += op.size();
      tokens_.push_back(std::move(token));
      return absl::OkStatus();
    }
    return ErrorAt(token, absl::StatusCode::kInvalidArgument, absl::StrCat("unexpected character '", std::string(1, c), "'"));
  }

  absl::Status String(char quote) {
    Token token = Here(Token::kString);
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] != '\\' || at_ + 1 >= source_.size()) {
        token.text.push_back(source_[at_]);
        continue;
      }
      const char escaped = source_[++at_];
      switch (escaped) {
        case 'n': token.text.push_back('\n'); break;
        case 't': token.text.push_back('\t'); break;
        case 'r': token.text.push_back('\r'); break;
        case '\\':
        case '\'':
        case '"': token.text.push_back(escaped); break;
        default: return ErrorAt(token, absl::StatusCode::kUnimplemented, absl::StrCat("the escape \\", std::string(1, escaped), " is not supported by this build"));
      }
    }
    if (at_ >= source_.size()) return ErrorAt(token, absl::StatusCode::kInvalidArgument, "the string is not closed");
    ++at_;
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status Number() {
    Token token = Here(Token::kInteger);
    while (at_ < source_.size() && absl::ascii_isdigit(source_[at_])) token.text.push_back(source_[at_++]);
    if (at_ + 1 < source_.size() && source_[at_] == '.' && absl::ascii_isdigit(source_[at_ + 1])) {
      token.kind = Token::kFloat;
      do token.text.push_back(source_[at_++]);
      while (at_ < source_.size() && absl::ascii_isdigit(source_[at_]));
    }
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::string_view source_;
  size_t at_ = 0;
  size_t counted_ = 0, line_start_ = 0;  // Lines are counted up to counted_.
  int line_ = 1;
  enum { kNothing, kNewline, kAll } trim_next_ = kNothing;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAt(const Token& at, absl::StatusCode code, absl::string_view what) {
  return absl::Status(code, absl::StrCat("template:", at.line, ":", at.column, ": ", what));
}

absl::StatusOr<std::vector<Token>> Lex(absl::string_view source) { return Lexer(source).Run(); }

}  // namespace sluice::chat
