#include "common/verifiers/math/lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/verifiers/math/commands.h"
#include "common/verifiers/math/numeral.h"
#include "common/verifiers/math/units.h"

namespace sluice::math {
namespace {

using Type = Token::Type;

class Lexer {
 public:
  Lexer(absl::string_view text, Comma comma, Budget& budget, int depth)
      : text_(text), budget_(budget), depth_(depth) {
    const auto commas = std::count(text.begin(), text.end(), ',');
    only_comma_ = commas == 1;
    // A writer who puts spaces behind the commas of a list means thousands by the others.
    spaced_ = text.find(", ") != absl::string_view::npos;
    comma_ = comma;
  }

  bool Run() {
    while (at_ < text_.size()) {
      if (!budget_.Spend(2) || !Next()) return false;
    }
    return true;
  }
  std::vector<Token>& tokens() { return tokens_; }

 private:
  bool Next() {
    const char c = text_[at_];
    if (absl::ascii_isspace(c)) {
      space_ = true;
      ++at_;
      return true;
    }
    if (absl::ascii_isdigit(c) ||
        (c == '.' && at_ + 1 < text_.size() && absl::ascii_isdigit(text_[at_ + 1])))
      return ReadNumber();
    if (c == '\\') return ReadCommand();
    if (absl::ascii_isalpha(c)) return ReadLetters();
    if (static_cast<uint8_t>(c) >= 0x80) return ReadForeignWord();
    return ReadOperator();
  }

  Token& Add(Type type, absl::string_view text) {
    tokens_.push_back({.type = type, .text = std::string(text), .space = space_});
    space_ = false;
    if (type == Type::kOperator) {
      if (text == "(" || text == "[" || text == "\\{") ++brackets_;
      if (text == ")" || text == "]" || text == "\\}") --brackets_;
    }
    return tokens_.back();
  }

  bool ReadNumber() {
    NumeralStyle style{.comma = comma_, .only_comma = only_comma_ && brackets_ == 0};
    if (brackets_ > 0 && !spaced_) style.comma = Comma::kSeparator;
    const bool space = space_;
    // 1 000 is one number, but 2^6 300 is not.
    std::optional<Token> token = ReadNumeral(text_, style, at_, budget_);
    if (!token) return false;
    token->space = space;
    space_ = false;
    tokens_.push_back(*std::move(token));
    return true;
  }

  bool ReadOperator() {
    const absl::string_view rest = text_.substr(at_);
    for (const auto& [written, name] : {std::pair<absl::string_view, absl::string_view>{"<=", "<="},
                                        {">=", ">="},
                                        {"!=", "!="},
                                        {"==", "="},
                                        {"=<", "<="},
                                        {"**", "^"},
                                        {"+/-", "+-"},
                                        {"+-", "+-"},
                                        {"->", "->"}}) {
      if (!absl::StartsWith(rest, written)) continue;
      at_ += written.size();
      Add(Type::kOperator, name);
      return true;
    }
    const char c = text_[at_++];
    if (c == '$') return true;
    if (c == '#' || c == '"' || c == '`' || c == '@' || c == '?' || c == 0x7F ||
        absl::ascii_iscntrl(c))
      return false;
    if (c == '~') {
      space_ = true;
      return true;
    }
    Add(Type::kOperator, absl::string_view(&c, 1));
    return true;
  }

  // A run of characters that no formula has, such as the Chinese word for a unit.
  bool ReadForeignWord() {
    const size_t begin = at_;
    while (at_ < text_.size() && static_cast<uint8_t>(text_[at_]) >= 0x80) ++at_;
    AddWords(text_.substr(begin, at_ - begin));
    return true;
  }

  void AddWords(absl::string_view words) {
    // One space between words, in lower case, and no mark at the end of a sentence.
    while (!words.empty() && absl::StrContains(".,;: ", words.back())) words.remove_suffix(1);
    std::vector<absl::string_view> parts =
        absl::StrSplit(words, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    if (parts.empty()) return;
    Add(Type::kText, absl::AsciiStrToLower(absl::StrJoin(parts, " ")));
  }

  bool AfterValue() const {
    if (tokens_.empty()) return false;
    const Token& last = tokens_.back();
    return last.type == Type::kNumber || last.text == ")" || last.text == "}" || last.text == "]" ||
           last.type == Type::kText || last.text == "deg";
  }

  // Whether a word here is a unit: behind a value, or after the stroke of km/h.
  bool AfterUnitPlace() const {
    const size_t count = tokens_.size();
    return AfterValue() ||
           (count >= 2 && tokens_[count - 1].text == "/" && tokens_[count - 2].type == Type::kText);
  }

  bool ReadLetters() {
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isalpha(text_[at_])) ++at_;
    absl::string_view run = text_.substr(begin, at_ - begin);
    // "or" and "and" without spaces: (1,2)or(2,1), x=1orx=2.
    for (const absl::string_view word : {"or", "and"}) {
      if (AfterValue() && !space_ && absl::StartsWith(run, word)) {
        at_ = begin + word.size();
        Add(Type::kOperator, "and");
        return true;
      }
    }

    if (run.size() == 1) {
      Add(Type::kSymbol, run);
      return true;
    }
    const std::string lower = absl::AsciiStrToLower(run);
    if (lower == "and" || lower == "or") {
      Add(Type::kOperator, "and");
    } else if (lower == "percent" || lower == "pct" || lower == "percentage") {
      Add(Type::kOperator, "%");
    } else if (IsFunctionName(lower)) {
      Add(Type::kFunction, lower);
    } else if (const absl::string_view constant = FindConstantWord(lower); !constant.empty()) {
      Add(Type::kSymbol, constant);
    } else if (run.size() >= 4 || (AfterValue() && IsUnitWord(lower))) {
      AddWords(run);
    } else {
      for (const char letter : run) Add(Type::kSymbol, absl::string_view(&letter, 1));
    }
    return true;
  }

  // Reads {..} at `at_` and returns what is inside, or the next character. False: not closed.
  bool ReadBraces(absl::string_view& inside) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size()) return false;
    if (text_[at_] != '{') {
      inside = text_.substr(at_++, 1);
      return true;
    }
    const size_t begin = ++at_;
    int open = 1;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
        continue;
      }
      open += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
      if (open == 0) {
        inside = text_.substr(begin, at_++ - begin);
        return true;
      }
    }
    return false;
  }

  bool ReadCommand() {
    const size_t begin = ++at_;
    if (at_ == text_.size()) return true;  // A lone backslash at the end.
    while (at_ < text_.size() && absl::ascii_isalpha(text_[at_])) ++at_;
    absl::string_view name = text_.substr(begin, at_ - begin);
    if (name.empty()) return ReadEscapedCharacter();
    // \quadx is \quad and x.
    for (const absl::string_view space : {"qquad", "quad"}) {
      if (absl::StartsWith(name, space)) {
        at_ = begin + space.size();
        name = space;
        break;
      }
    }

    const CommandRow row = FindCommand(name);
    switch (row.action) {
      case CommandAction::kIgnore: return true;
      case CommandAction::kSpace: space_ = true; return true;
      case CommandAction::kOperator: Add(Type::kOperator, row.text); return true;
      case CommandAction::kSymbol: Add(Type::kSymbol, row.text); return true;
      case CommandAction::kFunction: Add(Type::kFunction, row.text); return true;
      case CommandAction::kCommand: Add(Type::kCommand, row.text); return true;
      case CommandAction::kIgnoreWithArgument: {
        absl::string_view unused;
        return ReadBraces(unused);
      }
      case CommandAction::kWords: return ReadWords();
      case CommandAction::kDecorated: return ReadDecorated(row.text);
      case CommandAction::kEnvironment: {
        absl::string_view inside;
        if (!ReadBraces(inside)) return false;
        Add(Type::kCommand, row.text).raw = std::string(inside);
        return true;
      }
    }
    return false;
  }

  bool ReadEscapedCharacter() {
    const char c = text_[at_++];
    if (c == '\\') {
      Add(Type::kOperator, "\\\\");
    } else if (c == '{' || c == '}') {
      Add(Type::kOperator, c == '{' ? "\\{" : "\\}");
    } else if (c == '%') {
      Add(Type::kOperator, "%");
    } else if (c == '|') {
      Add(Type::kOperator, "|");
    } else if (c == '(' || c == ')' || c == '[' || c == ']' || c == '$' || c == '!') {
      return true;  // The edges of a formula, and a space backwards.
    } else if (c == ',' || c == ';' || c == ':' || c == ' ' || c == '\n') {
      space_ = true;
    } else {
      return false;
    }
    return true;
  }

  // \text{..}: words, or a formula in another font.
  bool ReadWords() {
    absl::string_view written;
    if (!ReadBraces(written)) return false;
    const std::string inside = absl::StrReplaceAll(written, {{"~", " "}});
    const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(inside));
    absl::string_view bare = lower;
    if (bare.size() == 3 && bare[0] == '(' && bare[2] == ')') bare = bare.substr(1, 1);
    if (bare.empty()) {
      space_ = true;
    } else if (bare == "and" || bare == "or" || bare == ", and" || bare == "," || bare == ", or") {
      Add(Type::kOperator, "and");
    } else if (bare.size() == 1 && AfterUnitPlace() && IsUnitWord(bare)) {
      AddWords(bare);
    } else if (bare.size() == 1 && absl::ascii_isalpha(bare[0])) {
      const size_t at = inside.find_first_not_of(" (");
      Add(Type::kSymbol, inside.substr(at, 1));
    } else if (bare == "percent") {
      Add(Type::kOperator, "%");
    } else if (IsFunctionName(bare)) {
      Add(Type::kFunction, bare);
    } else if (bare.find_first_of("abcdefghijklmnopqrstuvwxyz") == absl::string_view::npos) {
      return AddInner(inside);
    } else if (absl::ConsumePrefix(&bare, "and ") || absl::ConsumePrefix(&bare, "or ")) {
      Add(Type::kOperator, "and");
      return AddInner(bare);
    } else {
      AddWords(bare);
    }
    return true;
  }

  // Numbers inside \text{..} are numbers.
  bool AddInner(absl::string_view inside) {
    if (depth_ >= 4) return budget_.GiveUp();
    Lexer inner(inside, comma_, budget_, depth_ + 1);
    if (!inner.Run()) return false;
    for (Token& token : inner.tokens()) tokens_.push_back(std::move(token));
    return true;
  }

  // A letter with a hat, bar or other font is a symbol of its own; bold letters are not.
  bool ReadDecorated(absl::string_view decoration) {
    absl::string_view inside;
    if (!ReadBraces(inside)) return false;
    inside = absl::StripAsciiWhitespace(inside);
    const bool letter = inside.size() == 1 && absl::ascii_isalpha(inside[0]) && inside != "i";
    if (decoration == "bold") {
      if (letter) {
        Add(Type::kSymbol, inside);
        return true;
      }
      return AddInner(inside);
    }
    std::string name = absl::StrCat(decoration, ":");
    for (const char c : inside) {
      if (!absl::ascii_isspace(c)) name.push_back(c);
    }
    Add(Type::kSymbol, name);
    return true;
  }

  const absl::string_view text_;
  Budget& budget_;
  const int depth_;
  Comma comma_;
  bool only_comma_ = false, spaced_ = false;
  size_t at_ = 0;
  bool space_ = false;
  int brackets_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::optional<std::vector<Token>> Tokenize(absl::string_view text, Comma comma, Budget& budget) {
  if (text.size() > Budget::kAnswerBytes) {
    budget.GiveUp();
    return std::nullopt;
  }
  Lexer lexer(text, comma, budget, 0);
  if (!lexer.Run()) return std::nullopt;
  lexer.tokens().push_back({});
  return std::move(lexer.tokens());
}

}  // namespace sluice::math
