#include "common/verifiers/math/parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/verifiers/math/functions.h"
#include "common/verifiers/math/rational.h"

namespace sluice::math {
namespace {

using Type = Token::Type;

constexpr int kMaxSigns = 8;  // Behind one value. They nest in the formula, but not in the parser.

// A recursive descent over the tokens. Every function returns null on failure, and then the whole
// answer cannot be read.
class Parser {
 public:
  Parser(std::vector<Token> tokens, Budget& budget) : tokens_(std::move(tokens)), budget_(budget) {}

  Expr Run() {
    // A point at the end belongs to the sentence.
    while (tokens_.size() > 1 &&
           (IsOp(tokens_[tokens_.size() - 2], ".") || IsOp(tokens_[tokens_.size() - 2], "\\\\")))
      tokens_.erase(tokens_.end() - 2);
    Expr answer = ParseLists();
    return answer != nullptr && Peek().type == Type::kEnd ? answer : nullptr;
  }

 private:
  // Counts the nesting of the functions that call themselves.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Nesting() { --parser_.depth_; }
    bool TooDeep() const {
      return (parser_.depth_ > Budget::kDepth && !parser_.budget_.GiveUp()) ||
             !parser_.budget_.Spend(4);
    }

   private:
    Parser& parser_;
  };

  static bool IsOp(const Token& token, absl::string_view op) {
    return token.type == Type::kOperator && token.text == op;
  }
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool PeekOp(absl::string_view op) const { return IsOp(Peek(), op); }
  bool PeekCommand(absl::string_view name) const {
    return Peek().type == Type::kCommand && Peek().text == name;
  }
  void Advance() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool TakeOp(absl::string_view op) {
    if (!PeekOp(op)) return false;
    Advance();
    return true;
  }

  // ---- Lists: a, b and c; d, e

  Expr ParseLists() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    std::vector<Expr> lists;
    bool inner_lists = false;
    do {
      if (Peek().type == Type::kEnd && !lists.empty()) break;
      Expr list = ParseCommas();
      if (list == nullptr) return nullptr;
      inner_lists |= Is(list, Kind::kList);
      lists.push_back(std::move(list));
    } while (TakeOp(";"));
    if (lists.size() == 1) return lists[0];
    // p=5, q=2; p=7, q=2 are two answers, in each of which the order counts.
    if (inner_lists) {
      for (Expr& list : lists) {
        if (Is(list, Kind::kList)) list = MakeNode(Kind::kTuple, "()", list->kids);
      }
    }
    return MakeNode(Kind::kList, "", std::move(lists));
  }

  Expr ParseCommas() {
    std::vector<Expr> items;
    for (;;) {
      Expr item = ParseRelation();
      if (item == nullptr) return nullptr;
      items.push_back(std::move(item));
      bool comma = false, more = false;
      for (;;) {  // ", and" is one separator.
        if (!comma && TakeOp(",")) {
          comma = more = true;
        } else if (TakeOp("and") || (comma && TakeOp("&"))) {
          comma = more = true;
        } else {
          break;
        }
      }
      if (!more) break;
      if (Peek().type == Type::kEnd) break;  // A comma at the end.
    }
    return items.size() == 1 ? items[0] : MakeNode(Kind::kList, "", std::move(items));
  }

  // ---- Relations and sets

  // The character of Node::name for a relation, or 0.
  char RelationHere() const {
    if (Peek().type != Type::kOperator) return 0;
    const std::string& op = Peek().text;
    if (op == "=") return kEqual;
    if (op == "<") return kLess;
    if (op == ">") return kGreater;
    if (op == "<=") return kLessEqual;
    if (op == ">=") return kGreaterEqual;
    if (op == "!=") return kNotEqual;
    if (op == "in") return kElement;
    if (op == "~") return kApprox;
    return op == "->" ? kArrow : 0;
  }

  Expr ParseRelation() {
    if (PeekOp("=") || PeekOp("~")) Advance();  // The left side was outside of the formula.
    Expr first = ParseSets();
    if (first == nullptr) return nullptr;
    std::string relations;
    std::vector<Expr> sides = {first};
    while (const char relation = RelationHere()) {
      Advance();
      Expr side = ParseSets();
      if (side == nullptr) return nullptr;
      relations.push_back(relation);
      sides.push_back(std::move(side));
    }
    if (sides.size() == 1) return first;
    return MakeNode(Kind::kRelation, std::move(relations), std::move(sides));
  }

  Expr ParseSets() {
    Expr first = ParseSum();
    if (first == nullptr) return nullptr;
    std::string name;
    std::vector<Expr> sets = {first};
    while (PeekOp("cup") || PeekOp("cap") || PeekOp("setminus")) {
      if (!name.empty() && name != Peek().text) return nullptr;
      name = Peek().text;
      Advance();
      Expr set = ParseSum();
      if (set == nullptr) return nullptr;
      sets.push_back(std::move(set));
    }
    return sets.size() == 1 ? first : MakeNode(Kind::kUnion, std::move(name), std::move(sets));
  }

  // ---- Arithmetic

  Expr ParseSum() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    std::vector<Expr> terms;
    for (;;) {
      const bool first = terms.empty();
      const bool plus = PeekOp("+"), minus = PeekOp("-");
      const bool both = PeekOp("+-") || PeekOp("-+");
      if (!first && !plus && !minus && !both) break;
      const std::string sign = Peek().text;
      if (plus || minus || both) Advance();
      Expr term = ParseTerm();
      if (term == nullptr) return nullptr;
      if (minus) term = MakeNegation(std::move(term));
      if (both) term = MakeNode(Kind::kPlusMinus, sign, {std::move(term)});
      terms.push_back(std::move(term));
    }
    return terms.size() == 1 ? terms[0] : AddNodes(std::move(terms), budget_);
  }

  // Whether a factor starts here that is multiplied without a sign.
  bool FactorFollows(const Expr& previous) const {
    const Token& token = Peek();
    switch (token.type) {
      case Type::kNumber: return !Is(previous, Kind::kNumber);
      case Type::kSymbol:
      case Type::kFunction: return true;
      case Type::kCommand: return token.text != "end";
      case Type::kOperator:
        return token.text == "(" || token.text == "[" || token.text == "{" ||
               (token.text == "|" && bars_ == 0);
      default: return false;
    }
  }

  Expr ParseTerm() {
    std::vector<Expr> over, under;
    std::string unit;
    Expr last = ParseFactor();
    if (last == nullptr) return nullptr;
    over.push_back(last);
    for (;;) {
      if (TakeOp("*")) {
        last = ParseFactor();
        if (last != nullptr) over.push_back(last);
      } else if (TakeOp("/")) {
        if (Peek().type == Type::kText) {  // km/h
          --at_;
          if (!TakeUnit(last, unit)) return nullptr;
          continue;
        }
        last = ParseFactor();
        if (last != nullptr) under.push_back(last);
      } else if (PeekOp(":") && Peek(1).type != Type::kEnd) {
        return ParseRatio(MakeTerm(std::move(over), std::move(under), unit));
      } else if (TakeOp("mod")) {
        last = ParseFactor();
        if (last == nullptr) return nullptr;
        Expr term = MakeTerm(std::move(over), std::move(under), unit);
        if (term == nullptr) return nullptr;
        return MakeNode(Kind::kFunction, "mod", {std::move(term), std::move(last)});
      } else if (Peek().type == Type::kText) {
        if (!TakeUnit(last, unit)) return nullptr;
        continue;
      } else if (FactorFollows(last)) {
        // Nothing is multiplied with words: 5 feet 6 inches.
        if (Is(last, Kind::kText) || !unit.empty()) return nullptr;
        last = ParseFactor();
        if (last != nullptr) over.push_back(last);
      } else {
        break;
      }
      if (last == nullptr) return nullptr;
    }
    return MakeTerm(std::move(over), std::move(under), unit);
  }

  Expr MakeTerm(std::vector<Expr> over, std::vector<Expr> under, const std::string& unit) {
    Expr term = over.size() == 1 ? over[0] : MultiplyNodes(std::move(over), budget_);
    if (term != nullptr && !under.empty()) {
      Expr bottom = under.size() == 1 ? under[0] : MultiplyNodes(std::move(under), budget_);
      if (bottom == nullptr) return nullptr;
      term = MakeNode(Kind::kDivide, "", {std::move(term), std::move(bottom)});
    }
    if (term == nullptr || unit.empty()) return term;
    return MakeNode(Kind::kUnit, unit, {std::move(term)});
  }

  Expr ParseRatio(Expr first) {
    std::vector<Expr> parts = {std::move(first)};
    while (parts.back() != nullptr && TakeOp(":")) {
      Expr factor = ParseFactor();
      if (factor == nullptr) return nullptr;
      parts.push_back(std::move(factor));
    }
    if (parts[0] == nullptr) return nullptr;
    Expr ratio = MakeNode(Kind::kRatio, "", std::move(parts));
    std::string unit;
    if (Peek().type != Type::kText) return ratio;
    return TakeUnit(ratio, unit) ? MakeNode(Kind::kUnit, unit, {std::move(ratio)}) : nullptr;
  }

  // Whether words behind a value make it another answer: 5 or more.
  static bool ChangesMeaning(absl::string_view words) {
    for (const absl::string_view word : absl::StrSplit(words, ' ')) {
      for (const absl::string_view known : {"not", "or", "and", "more", "less", "than", "least",
                                            "most", "above", "below", "wrong", "except", "maybe"}) {
        if (word == known) return true;
      }
    }
    return false;
  }

  // Takes the words behind a value, with their exponents, as its unit.
  bool TakeUnit(const Expr& value, std::string& words) {
    if (Is(value, Kind::kText)) return false;
    for (;;) {
      if (Peek().type == Type::kText) {
        if (ChangesMeaning(Peek().text)) return false;
        absl::StrAppend(&words, words.empty() ? "" : " ", Peek().text);
        Advance();
      } else if ((PeekOp("*") || PeekOp("/")) && Peek(1).type == Type::kText) {
        absl::StrAppend(&words, words.empty() ? "" : " ", Peek().text);
        Advance();
      } else if (!words.empty() && TakeOp("^")) {
        const bool braces = TakeOp("{");
        const bool minus = TakeOp("-");
        if (Peek().type != Type::kNumber) return false;
        absl::StrAppend(&words, "^", minus ? "-" : "", Peek().text);
        Advance();
        if (braces && !TakeOp("}")) return false;
      } else {
        return true;
      }
    }
  }

  Expr ParseFactor() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    if (TakeOp("+")) return ParseFactor();
    if (TakeOp("-")) {
      Expr factor = ParseFactor();
      return factor == nullptr ? nullptr : MakeNegation(std::move(factor));
    }
    if (PeekOp("+-") || PeekOp("-+")) {
      const std::string sign = Peek().text;
      Advance();
      Expr factor = ParseFactor();
      return factor == nullptr ? nullptr : MakeNode(Kind::kPlusMinus, sign, {std::move(factor)});
    }
    return ParsePostfix();
  }

  // A value with exponents and the signs that stand behind it.
  Expr ParsePostfix() {
    const bool function = Peek().type == Type::kFunction;
    Expr value = ParsePrimary();
    for (int signs = 0; value != nullptr; ++signs) {
      if (signs >= kMaxSigns) {
        budget_.GiveUp();
        return nullptr;
      }
      if (PeekOp("^") && PeekExponentDegree()) {
        value = MakeNode(Kind::kUnit, "deg", {std::move(value)});
      } else if (TakeOp("deg")) {
        value = MakeNode(Kind::kUnit, "deg", {std::move(value)});
      } else if (TakeOp("^")) {
        Expr exponent = ParseExponent();
        if (exponent == nullptr) return nullptr;
        if (IsSymbol(exponent, "'")) {
          value = AppendPrime(value);
        } else {
          value = MakeNode(Kind::kPower, "", {std::move(value), std::move(exponent)});
        }
      } else if (TakeOp("!")) {
        value = MakeNode(Kind::kFunction, "factorial", {std::move(value)});
      } else if (PeekOp("%") && !function) {
        Advance();
        value = MakeNode(Kind::kPercent, "", {std::move(value)});
      } else if (TakeOp("'")) {
        value = AppendPrime(value);
      } else {
        break;
      }
    }
    return value;
  }

  static Expr AppendPrime(const Expr& value) {
    return Is(value, Kind::kSymbol) ? MakeSymbol(absl::StrCat(value->name, "'")) : nullptr;
  }

  // Takes ^\circ or ^{\circ}.
  bool PeekExponentDegree() {
    if (IsOp(Peek(1), "deg")) {
      at_ += 2;
      return true;
    }
    if (IsOp(Peek(1), "{") && IsOp(Peek(2), "deg") && IsOp(Peek(3), "}")) {
      at_ += 4;
      return true;
    }
    return false;
  }

  Expr ParseExponent() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    if (TakeOp("'")) return MakeSymbol("'");
    if (TakeOp("-")) {
      Expr exponent = ParseExponent();
      return exponent == nullptr ? nullptr : MakeNegation(std::move(exponent));
    }
    TakeOp("+");
    Expr exponent = ParsePrimary();
    if (exponent == nullptr || !TakeOp("^")) return exponent;
    Expr next = ParseExponent();
    if (next == nullptr) return nullptr;
    return MakeNode(Kind::kPower, "", {std::move(exponent), std::move(next)});
  }

  // ---- Values

  Expr ParsePrimary() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    const Token& token = Peek();
    switch (token.type) {
      case Type::kNumber: return ParseNumber();
      case Type::kSymbol: return ParseSymbol();
      case Type::kFunction: return ParseFunction();
      case Type::kText: return ParseText();
      case Type::kCommand: return ParseCommand();
      case Type::kOperator:
        if (token.text == "(" || token.text == "[" || token.text == "\\{") return ParseGroup();
        if (token.text == "{") return ParseBraces();
        if (token.text == "|" && bars_ == 0) return ParseAbsolute();
        if (token.text == ".") {  // \left. and a stray point.
          Advance();
          return ParsePrimary();
        }
        return nullptr;
      default: return nullptr;
    }
  }

  Expr ParseText() {
    std::string words;
    while (Peek().type == Type::kText) {
      absl::StrAppend(&words, words.empty() ? "" : " ", Peek().text);
      Advance();
    }
    return MakeNode(Kind::kText, std::move(words), {});
  }

  Expr ParseNumber() {
    const Token token = Peek();
    Advance();
    Expr number = MakeNumber(token.value, token.written);
    if (PeekOp("_")) return ParseBase(token);
    if (token.written.point || token.value.get_den() != 1) return number;
    // Mixed numbers: 1 1/2 and 1\frac12.
    if (Peek().type == Type::kNumber && Peek().space && IsOp(Peek(1), "/") &&
        Peek(2).type == Type::kNumber && !Peek().written.point && !Peek(2).written.point &&
        Peek(2).value > Peek().value) {
      const mpq_class part = Peek().value / Peek(2).value;
      at_ += 3;
      return MakeNumber(token.value + part);
    }
    if (PeekCommand("frac")) {
      Expr fraction = ParseCommand();
      if (fraction == nullptr) return nullptr;
      const Expr &top = fraction->kids[0], &bottom = fraction->kids[1];
      const bool proper = Is(top, Kind::kNumber) && Is(bottom, Kind::kNumber) &&
                          !top->written.point && !bottom->written.point && top->value > 0 &&
                          bottom->value > top->value && !PeekOp("^");
      if (proper) return MakeNumber(token.value + top->value / bottom->value);
      if (TakeOp("^")) {
        Expr exponent = ParseExponent();
        if (exponent == nullptr) return nullptr;
        fraction = MakeNode(Kind::kPower, "", {std::move(fraction), std::move(exponent)});
      }
      return MultiplyNodes({std::move(number), std::move(fraction)}, budget_);
    }
    return number;
  }

  // 101_2: digits in base 2.
  Expr ParseBase(const Token& digits) {
    Advance();
    const bool braces = TakeOp("{");
    if (Peek().type != Type::kNumber || Peek().value.get_den() != 1) return nullptr;
    const mpq_class base = Peek().value;
    Advance();
    if (braces && !TakeOp("}")) return nullptr;
    if (base < 2 || base > 36 || digits.written.point || digits.text.empty()) return nullptr;
    mpz_class value;
    const int radix = static_cast<int>(base.get_num().get_si());
    if (mpz_set_str(value.get_mpz_t(), digits.text.c_str(), radix) != 0) return nullptr;
    return MakeNumber(mpq_class(value));
  }

  Expr ParseSymbol() {
    std::string name = Peek().text;
    Advance();
    if (PeekOp("_")) {
      Advance();
      if (!AppendSubscript(name)) return nullptr;
    }
    constexpr absl::string_view kFunctionLetters = "fghFGHPW";
    const bool bracket = PeekOp("(") && !Peek().space;
    if (name.size() == 1 && absl::StrContains(kFunctionLetters, name) && bracket) {
      Expr argument = ParseGroup();
      if (argument == nullptr) return nullptr;
      return MakeNode(Kind::kOpaque, std::move(name), {std::move(argument)});
    }
    return MakeSymbol(std::move(name));
  }

  // Appends _{..} to a name, as it is written.
  bool AppendSubscript(std::string& name) {
    name.push_back('_');
    if (!TakeOp("{")) {
      if (Peek().type == Type::kEnd) return false;
      name += Peek().text;
      Advance();
      return true;
    }
    for (int open = 1; Peek().type != Type::kEnd; Advance()) {
      open += PeekOp("{") ? 1 : PeekOp("}") ? -1 : 0;
      if (open == 0) {
        Advance();
        return true;
      }
      name += Peek().text;
    }
    return false;
  }

  Expr ParseAbsolute() {
    Advance();
    ++bars_;
    Expr inside = ParseSum();
    --bars_;
    if (inside == nullptr || !TakeOp("|")) return nullptr;
    return MakeNode(Kind::kFunction, "abs", {std::move(inside)});
  }

  // (a), (a, b), [a, b) or {a, b}.
  Expr ParseGroup() {
    const std::string open = Peek().text;
    Advance();
    const int bars = std::exchange(bars_, 0);
    if (open == "\\{" && TakeOp("\\}")) return MakeNode(Kind::kSet, "", {});
    Expr inside = ParseLists();
    bars_ = bars;
    if (inside == nullptr) return nullptr;
    const std::string close = Peek().type == Type::kOperator ? Peek().text : "";
    if (close != ")" && close != "]" && close != "\\}") return nullptr;
    Advance();
    if ((open == "\\{") != (close == "\\}")) return nullptr;
    if (open == "\\{") {
      const bool list = Is(inside, Kind::kList);
      return MakeNode(Kind::kSet, "", list ? inside->kids : std::vector<Expr>{inside});
    }
    if (Is(inside, Kind::kList))
      return MakeNode(Kind::kTuple, absl::StrCat(open, close), inside->kids);
    return (open == "(") == (close == ")") ? inside : nullptr;
  }

  // {..} of LaTeX, which only groups.
  Expr ParseBraces() {
    Advance();
    const int bars = std::exchange(bars_, 0);
    Expr inside = ParseLists();
    bars_ = bars;
    return inside != nullptr && TakeOp("}") ? inside : nullptr;
  }

  // The argument of \frac and the like: {..}, or one digit, letter or command.
  Expr ParseArgument() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    if (PeekOp("{")) return ParseBraces();
    Token& token = tokens_[at_];
    if (token.type != Type::kNumber || token.text.size() <= 1) return ParsePrimary();
    if (token.written.point) return nullptr;
    // \frac12 has the arguments 1 and 2.
    const std::string rest = token.text.substr(1);
    Expr digit = MakeNumber(mpq_class(token.text[0] - '0'), {.significant = 1});
    token.text = rest;
    token.value = mpq_class(mpz_class(rest, 10));
    token.written.significant = static_cast<int>(rest.size());
    token.space = false;
    return digit;
  }

  Expr ParseFunction() {
    std::string name = Peek().text;
    Advance();
    Expr base, exponent;
    for (int i = 0; i < 2; ++i) {
      if (base == nullptr && TakeOp("_")) {
        base = ParseArgument();
        if (base == nullptr) return nullptr;
      } else if (exponent == nullptr && PeekOp("^")) {
        Advance();
        exponent = ParseExponent();
        if (exponent == nullptr) return nullptr;
      }
    }
    Expr argument = ParseFunctionArgument();
    if (argument == nullptr) return nullptr;
    return MakeFunction(std::move(name), std::move(base), std::move(exponent), std::move(argument));
  }

  // In \sin 2x + 1 the argument is 2x; in \sin(x)y it is x.
  Expr ParseFunctionArgument() {
    const Nesting nesting(*this);
    if (nesting.TooDeep()) return nullptr;
    if (PeekOp("(") || PeekOp("[")) return ParseGroup();
    const bool minus = TakeOp("-");
    std::vector<Expr> factors;
    do {
      Expr factor = ParsePostfix();
      if (factor == nullptr) return nullptr;
      factors.push_back(std::move(factor));
    } while (FactorFollows(factors.back()) && Peek().type != Type::kFunction && !PeekOp("(") &&
             !PeekOp("["));
    Expr product = factors.size() == 1 ? factors[0] : MultiplyNodes(std::move(factors), budget_);
    return product != nullptr && minus ? MakeNegation(std::move(product)) : product;
  }

  Expr ParseCommand() {
    const Token token = Peek();
    Advance();
    if (token.text == "emptyset") return MakeNode(Kind::kSet, "", {});
    if (token.text == "begin") return ParseEnvironment(token.raw);
    if (token.text == "lfloor" || token.text == "lceil") {
      Expr inside = ParseSum();
      const bool floor = token.text == "lfloor";
      if (inside == nullptr || !TakeOp(floor ? "rfloor" : "rceil")) return nullptr;
      return MakeNode(Kind::kFunction, floor ? "floor" : "ceil", {std::move(inside)});
    }
    if (token.text == "surd") {
      Expr inside = ParsePrimary();
      if (inside == nullptr) return nullptr;
      return MakeNode(Kind::kFunction, "root", {MakeNumber(2), std::move(inside)});
    }
    if (token.text == "sqrt") return ParseRoot();
    if (token.text == "frac" || token.text == "binom") {
      Expr top = ParseArgument();
      Expr bottom = top == nullptr ? nullptr : ParseArgument();
      if (bottom == nullptr) return nullptr;
      const bool frac = token.text == "frac";
      return MakeNode(frac ? Kind::kDivide : Kind::kFunction, frac ? "" : "binom",
                      {std::move(top), std::move(bottom)});
    }
    if (token.text == "end") return nullptr;
    return ParseOpaque(token.text);
  }

  Expr ParseRoot() {
    Expr index = MakeNumber(2);
    if (TakeOp("[")) {
      index = ParseSum();
      if (index == nullptr || !TakeOp("]")) return nullptr;
    }
    Expr inside = ParseArgument();
    if (inside == nullptr) return nullptr;
    return MakeNode(Kind::kFunction, "root", {std::move(index), std::move(inside)});
  }

  // \sum, \int, \lim and \prod: limits and body are compared, nothing is computed.
  Expr ParseOpaque(const std::string& name) {
    std::vector<Expr> parts;
    while (PeekOp("_") || PeekOp("^")) {
      const bool below = PeekOp("_");
      Advance();
      Expr limit = PeekOp("{") ? ParseBraces() : ParseExponent();
      if (limit == nullptr || parts.size() > 4) return nullptr;
      parts.push_back(MakeNode(Kind::kOpaque, below ? "below" : "above", {std::move(limit)}));
    }
    Expr body = ParseTerm();
    if (body == nullptr) return nullptr;
    parts.push_back(std::move(body));
    return MakeNode(Kind::kOpaque, name, std::move(parts));
  }

  // ---- Matrices and systems of equations

  Expr ParseEnvironment(const std::string& name) {
    const bool cases = name == "cases" || name == "aligned" || name == "align*";
    const bool matrix = name == "pmatrix" || name == "bmatrix" || name == "matrix" ||
                        name == "Bmatrix" || name == "smallmatrix" || name == "array";
    if (!cases && !matrix) return nullptr;
    if (name == "array" && PeekOp("{")) {  // The alignment of the columns.
      while (Peek().type != Type::kEnd && !PeekOp("}")) Advance();
      if (!TakeOp("}")) return nullptr;
    }

    std::vector<Expr> cells;
    size_t columns = 0, in_row = 0;
    while (!PeekCommand("end")) {
      Expr cell = cases ? ParseCommas() : ParseRelation();
      if (cell == nullptr || cells.size() >= 256) return nullptr;
      cells.push_back(std::move(cell));
      ++in_row;
      if (TakeOp("&") && !PeekCommand("end")) continue;
      if (columns == 0) columns = in_row;
      if (in_row != columns) return nullptr;
      in_row = 0;
      if (!TakeOp("\\\\") && !PeekCommand("end")) return nullptr;
    }
    if (Peek().raw != name || cells.empty()) return nullptr;
    Advance();
    if (cases) return columns == 1 ? MakeNode(Kind::kList, "", std::move(cells)) : nullptr;
    auto made = std::make_shared<Node>();
    made->kind = Kind::kMatrix;
    made->kids = std::move(cells);
    made->columns = columns;
    return made;
  }

  std::vector<Token> tokens_;
  Budget& budget_;
  size_t at_ = 0;
  int depth_ = 0;
  int bars_ = 0;  // Open |..|, which cannot be nested.
};

}  // namespace

Expr ParseAnswer(absl::string_view text, Comma comma, Budget& budget) {
  std::optional<std::vector<Token>> tokens = Tokenize(text, comma, budget);
  if (!tokens) return nullptr;
  return Parser(*std::move(tokens), budget).Run();
}

}  // namespace sluice::math
