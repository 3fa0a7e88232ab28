#include "common/chat/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::chat {
namespace {

constexpr size_t kMaxSymbols = 65000;  // A Symbol has 16 bits.

constexpr absl::string_view kOperatorNames[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

// Describes a token for a message.
std::string ShowToken(const Token& token) {
  switch (token.kind) {
    case Token::kEnd: return "the end of the template";
    case Token::kText: return "text";
    case Token::kBlockBegin: return "{%";
    case Token::kBlockEnd: return "%}";
    case Token::kPrintBegin: return "{{";
    case Token::kPrintEnd: return "}}";
    default: return absl::StrCat("\"", absl::string_view(token.text).substr(0, 60), "\"");
  }
}

}  // namespace

absl::string_view OperatorName(Operator op) { return kOperatorNames[static_cast<int>(op)]; }

Program Parse(std::string source) { return Parser(std::move(source)).Run(); }

Parser::Parser(std::string source) {
  program_.source = std::move(source);
  tokens_ = Lex(program_.source);
}

Parser::Level::Level(Parser* parser) : parser_(parser) {
  if (++parser->depth_ > kMaxDepth) {
    --parser->depth_;
    throw Failure{absl::StatusCode::kResourceExhausted, parser->Peek().at,
                  absl::StrCat("the template is nested deeper than ", kMaxDepth)};
  }
  parser->height_ = std::max(parser->height_, parser->depth_);
}

bool Parser::Is(Token::Kind kind, absl::string_view text, size_t ahead) const {
  const Token& token = Peek(ahead);
  return token.kind == kind && (text.empty() || token.text == text);
}

bool Parser::Accept(Token::Kind kind, absl::string_view text) {
  if (!Is(kind, text)) return false;
  TakeToken();
  return true;
}

Token Parser::Expect(Token::Kind kind, absl::string_view text, absl::string_view wanted) {
  if (!Is(kind, text))
    Invalid(Peek(), absl::StrCat("expected ", wanted, ", found ", ShowToken(Peek())));
  return TakeToken();
}

void Parser::Invalid(const Token& token, absl::string_view what) const {
  throw Failure{absl::StatusCode::kInvalidArgument, token.at, std::string(what)};
}
void Parser::Unsupported(const Token& token, absl::string_view what) const {
  throw Failure{absl::StatusCode::kUnimplemented, token.at,
                absl::StrCat(what, " is not supported")};
}

ExpressionPtr Parser::MakeExpression(Expression::Kind kind, const Token& at) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->at = at.at;
  return expression;
}

void Parser::AddOperand(Expression* parent, ExpressionPtr child) {
  if (child != nullptr) {
    if (child->height >= kMaxDepth) {
      throw Failure{absl::StatusCode::kResourceExhausted, parent->at,
                    absl::StrCat("an expression is nested deeper than ", kMaxDepth)};
    }
    parent->height = std::max<uint16_t>(parent->height, child->height + 1);
    height_ = std::max(height_, depth_ + parent->height);
  }
  parent->operands.push_back(std::move(child));
}

Symbol Parser::SymbolOf(const std::string& name) {
  const auto [it, fresh] = symbols_.emplace(name, static_cast<Symbol>(program_.symbols.size()));
  if (fresh) {
    if (program_.symbols.size() >= kMaxSymbols)
      throw Failure{absl::StatusCode::kResourceExhausted, Peek().at,
                    absl::StrCat("the template has more than ", kMaxSymbols, " names")};
    program_.symbols.push_back(name);
  }
  return it->second;
}

// Parses an expression, which may be `x if y else z`. After one without `else`, another `if` may
// follow; they apply from left to right.
ExpressionPtr Parser::ParseExpression() {
  const Level level(this);
  ExpressionPtr value = ParseOr();
  while (IsName("if")) {
    ExpressionPtr choice = MakeExpression(Expression::kIf, TakeToken());
    AddOperand(choice.get(), ParseOr());
    AddOperand(choice.get(), std::move(value));
    AddOperand(choice.get(), Accept(Token::kName, "else") ? ParseExpression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

ExpressionPtr Parser::ParseExpressionOrTuple(bool conditional) {
  const Token at = Peek();
  const auto one = [&] {
    if (conditional) return ParseExpression();
    const Level level(this);
    return ParseOr();
  };
  ExpressionPtr first = one();
  if (!IsOp(",")) return first;
  ExpressionPtr tuple = MakeExpression(Expression::kTuple, at);
  AddOperand(tuple.get(), std::move(first));
  while (Accept(Token::kOperator, ",")) {
    if (Is(Token::kBlockEnd) || Is(Token::kPrintEnd) || IsOp(")") || IsOp("=") ||
        IsName("recursive"))
      break;
    AddOperand(tuple.get(), one());
  }
  return tuple;
}

ExpressionPtr Parser::ParseLogic(Expression::Kind kind, absl::string_view word,
                                 ExpressionPtr (Parser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  if (!IsName(word)) return left;
  ExpressionPtr all = MakeExpression(kind, Peek());
  AddOperand(all.get(), std::move(left));
  while (Accept(Token::kName, word)) AddOperand(all.get(), (this->*operand)());
  return all;
}

ExpressionPtr Parser::ParseOr() { return ParseLogic(Expression::kOr, "or", &Parser::ParseAnd); }
ExpressionPtr Parser::ParseAnd() { return ParseLogic(Expression::kAnd, "and", &Parser::ParseNot); }

ExpressionPtr Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Level level(this);
  ExpressionPtr expression = MakeExpression(Expression::kNot, TakeToken());
  AddOperand(expression.get(), ParseNot());
  return expression;
}

ExpressionPtr Parser::ParseCompare() {
  // Comparisons can be chained: a < b < c.
  ExpressionPtr left = ParseSum();
  ExpressionPtr compare;
  while (true) {
    const Token at = Peek();
    // The names of kEqual to kGreaterEqual, which are numbers 7 to 12 of enum Operator.
    const auto* const found =
        std::find(std::begin(kOperatorNames) + 7, std::begin(kOperatorNames) + 13, at.text);
    Operator op;
    if (at.kind == Token::kOperator && found != std::begin(kOperatorNames) + 13) {
      op = static_cast<Operator>(found - std::begin(kOperatorNames));
    } else if (IsName("in")) {
      op = Operator::kIn;
    } else if (IsName("not") && Is(Token::kName, "in", 1)) {
      TakeToken();
      op = Operator::kNotIn;
    } else {
      return compare != nullptr ? std::move(compare) : std::move(left);
    }
    TakeToken();
    if (compare == nullptr) {
      compare = MakeExpression(Expression::kCompare, at);
      AddOperand(compare.get(), std::move(left));
    }
    compare->operators.push_back(op);
    AddOperand(compare.get(), ParseSum());
  }
}

// Parses operators of one precedence, which apply from left to right.
ExpressionPtr Parser::ParseChain(ExpressionPtr (Parser::*operand)(),
                                 absl::Span<const absl::string_view> names,
                                 absl::Span<const Operator> operators) {
  ExpressionPtr left = (this->*operand)();
  ExpressionPtr chain;
  while (Is(Token::kOperator)) {
    const auto found = absl::c_find(names, Peek().text);
    if (found == names.end()) break;
    const Token at = TakeToken();
    if (chain == nullptr) {
      chain = MakeExpression(Expression::kChain, at);
      AddOperand(chain.get(), std::move(left));
    }
    chain->operators.push_back(operators[found - names.begin()]);
    AddOperand(chain.get(), (this->*operand)());
  }
  return chain != nullptr ? std::move(chain) : std::move(left);
}

ExpressionPtr Parser::ParseSum() {
  return ParseChain(&Parser::ParseConcat, {"+", "-"}, {Operator::kAdd, Operator::kSubtract});
}
ExpressionPtr Parser::ParseProduct() {
  return ParseChain(
      &Parser::ParsePower, {"*", "/", "//", "%"},
      {Operator::kMultiply, Operator::kDivide, Operator::kFloorDivide, Operator::kModulo});
}
// As in Jinja, and unlike Python, `**` applies from left to right, and -2 ** 2 is 4.
ExpressionPtr Parser::ParsePower() {
  static constexpr absl::string_view kNames[] = {"**"};
  static constexpr Operator kOperators[] = {Operator::kPower};
  return ParseChain(&Parser::ParseFiltered, kNames, kOperators);
}

ExpressionPtr Parser::ParseConcat() {
  ExpressionPtr left = ParseProduct();
  if (!IsOp("~")) return left;
  ExpressionPtr concat = MakeExpression(Expression::kConcat, Peek());
  AddOperand(concat.get(), std::move(left));
  while (Accept(Token::kOperator, "~")) AddOperand(concat.get(), ParseProduct());
  return concat;
}

ExpressionPtr Parser::ParseFiltered() { return ParseFilters(ParseUnary()); }

ExpressionPtr Parser::ParseUnary() {
  ExpressionPtr value;
  if (IsOp("-") || IsOp("+")) {
    const Level level(this);
    const Expression::Kind kind = IsOp("-") ? Expression::kNegate : Expression::kPlus;
    value = MakeExpression(kind, TakeToken());
    AddOperand(value.get(), ParseUnary());
  } else {
    value = ParsePrimary();
  }
  return ParsePostfix(std::move(value));
}

ExpressionPtr Parser::ParsePostfix(ExpressionPtr value) {
  while (true) {
    if (IsOp(".")) {
      value = ParseAttribute(std::move(value));
    } else if (IsOp("[")) {
      value = ParseSubscript(std::move(value));
    } else if (IsOp("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::ParseFilters(ExpressionPtr value) {
  while (true) {
    if (Accept(Token::kOperator, "|")) {
      value = ParseFilter(std::move(value));
    } else if (IsName("is")) {
      value = ParseTest(std::move(value));
    } else if (IsOp("(")) {
      // As in Jinja, the result of a filter or a test may be called.
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::ParseAttribute(ExpressionPtr value) {
  const Token at = TakeToken();
  if (Is(Token::kInteger)) {  // x.0 means x[0].
    ExpressionPtr subscript = MakeExpression(Expression::kSubscript, at);
    AddOperand(subscript.get(), std::move(value));
    AddOperand(subscript.get(), ParseNumber());
    return subscript;
  }

  ExpressionPtr attribute = MakeExpression(Expression::kAttribute, at);
  attribute->text = Expect(Token::kName, {}, "a name behind .").text;
  for (int type = 0; type < kTypes; ++type) {
    attribute->methods[type] = FindMethod(static_cast<Type>(type), attribute->text);
    attribute->builtins[type] = PythonBuiltin(static_cast<Type>(type), attribute->text);
  }

  const auto dict = static_cast<int>(Type::kDict);
  attribute->plain_in_dicts =
      attribute->methods[dict] == nullptr && attribute->builtins[dict] == Builtin::kAbsent;
  AddOperand(attribute.get(), std::move(value));
  return attribute;
}

ExpressionPtr Parser::ParseSubscript(ExpressionPtr value) {
  const Token at = TakeToken();
  ExpressionPtr subscript = MakeExpression(Expression::kSubscript, at);
  AddOperand(subscript.get(), std::move(value));
  if (!IsOp(":")) AddOperand(subscript.get(), ParseExpression());
  if (IsOp(",")) Unsupported(Peek(), "a subscript of several parts");
  if (IsOp(":")) {
    subscript->kind = Expression::kSlice;
    if (subscript->operands.size() < 2) subscript->operands.push_back(nullptr);
    for (int i = 0; i < 2; ++i) {
      const bool given = Accept(Token::kOperator, ":") && !IsOp(":") && !IsOp("]");
      AddOperand(subscript.get(), given ? ParseExpression() : nullptr);
    }
  }
  ExpectOp("]");
  return subscript;
}

ExpressionPtr Parser::ParseCall(ExpressionPtr callee) {
  ExpressionPtr call = MakeExpression(Expression::kCall, TakeToken());
  call->at = callee->at;
  AddOperand(call.get(), std::move(callee));
  ParseArguments(call.get());
  return call;
}

void Parser::ParseArguments(Expression* call) {
  while (!Accept(Token::kOperator, ")")) {
    if (IsOp("*") || IsOp("**"))
      Unsupported(Peek(), absl::StrCat("the argument ", Peek().text, "values"));
    if (Is(Token::kName) && Is(Token::kOperator, "=", 1)) {
      std::string name = TakeToken().text;
      TakeToken();
      const auto same = [&](const auto& keyword) { return keyword.first == name; };
      if (absl::c_any_of(call->keywords, same))
        Invalid(Peek(), absl::StrCat("the argument ", name, " is given twice"));
      ExpressionPtr value = ParseExpression();
      call->height = std::max<uint16_t>(call->height, value->height + 1);
      call->keywords.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call->keywords.empty())
        Invalid(Peek(), "an argument without a name follows one with a name");
      AddOperand(call, ParseExpression());
    }
    if (!IsOp(")")) ExpectOp(",");
  }
}

ExpressionPtr Parser::ParseFilter(ExpressionPtr value) {
  const Token name = Expect(Token::kName, {}, "the name of a filter");
  ExpressionPtr filter = MakeExpression(Expression::kFilter, name);
  filter->function = FindFilter(name.text);
  if (filter->function == nullptr)
    Unsupported(name, absl::StrCat("the filter \"", name.text, "\""));
  AddOperand(filter.get(), std::move(value));
  if (Accept(Token::kOperator, "(")) ParseArguments(filter.get());
  return filter;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr value) {
  ExpressionPtr test = MakeExpression(Expression::kTest, TakeToken());
  test->negated = Accept(Token::kName, "not");
  const Token name = Expect(Token::kName, {}, "the name of a test");
  test->function = FindTest(name.text);
  if (test->function == nullptr) Unsupported(name, absl::StrCat("the test \"", name.text, "\""));
  AddOperand(test.get(), std::move(value));
  if (Accept(Token::kOperator, "(")) {
    ParseArguments(test.get());
    return test;
  }

  // `x is divisibleby 3`: one argument without parentheses.
  const bool value_begins =
      Is(Token::kString) || Is(Token::kInteger) || Is(Token::kFloat) || IsOp("[") || IsOp("{") ||
      (Is(Token::kName) && !IsName("else") && !IsName("or") && !IsName("and"));
  if (!value_begins) return test;
  if (IsName("is")) Invalid(Peek(), "a test follows a test; put the first in parentheses");
  AddOperand(test.get(), ParsePostfix(ParsePrimary()));
  return test;
}

ExpressionPtr Parser::ParsePrimary() {
  const Token& token = Peek();
  switch (token.kind) {
    case Token::kString: return ParseString();
    case Token::kInteger:
    case Token::kFloat: return ParseNumber();
    case Token::kName: {
      ExpressionPtr name = MakeExpression(Expression::kLiteral, token);
      name->text = TakeToken().text;
      if (name->text == "true" || name->text == "True") {
        name->value = Value::Bool(true);
      } else if (name->text == "false" || name->text == "False") {
        name->value = Value::Bool(false);
      } else if (name->text == "none" || name->text == "None") {
        name->value = Value::None();
      } else {
        name->kind = Expression::kName;
        name->symbol = SymbolOf(name->text);
        uses_loop_ |= name->symbol == program_.loop;
        if (macro_ != nullptr) {
          macro_->takes_caller |= name->symbol == program_.caller;
          macro_->takes_varargs |= name->symbol == program_.varargs;
          macro_->takes_kwargs |= name->symbol == program_.kwargs;
        }
      }
      return name;
    }
    case Token::kOperator:
      if (token.text == "(") return ParseParenthesized();
      if (token.text == "[") return ParseList();
      if (token.text == "{") return ParseDict();
      break;
    default: break;
  }
  Invalid(token, absl::StrCat("expected a value, found ", ShowToken(token)));
}

ExpressionPtr Parser::ParseString() {
  ExpressionPtr literal = MakeExpression(Expression::kLiteral, Peek());
  while (Is(Token::kString)) literal->text += TakeToken().text;  // 'a' 'b' means 'ab'.
  literal->value = Value::Borrow(literal->text);
  return literal;
}

ExpressionPtr Parser::ParseNumber() {
  const Token token = TakeToken();
  ExpressionPtr literal = MakeExpression(Expression::kLiteral, token);
  if (token.kind == Token::kFloat) {
    literal->value = Value::Float(std::strtod(token.text.c_str(), nullptr));
    return literal;
  }

  const bool prefixed = token.text.size() > 1 && token.text[0] == '0' && token.text[1] > '9';
  const int base = !prefixed ? 10 : token.text[1] == 'x' ? 16 : token.text[1] == 'o' ? 8 : 2;
  const char* const end = token.text.data() + token.text.size();
  int64_t integer = 0;
  const auto [stop, error] =
      std::from_chars(token.text.data() + (prefixed ? 2 : 0), end, integer, base);
  if (error == std::errc::result_out_of_range)
    Invalid(token, absl::StrCat("the integer ", ShowToken(token), " is beyond 64 bits"));
  if (error != std::errc() || stop != end)
    Invalid(token, absl::StrCat(ShowToken(token), " is not an integer"));
  literal->value = Value::Int(integer);
  return literal;
}

ExpressionPtr Parser::ParseParenthesized() {
  const Token open = TakeToken();
  if (Accept(Token::kOperator, ")")) return MakeExpression(Expression::kTuple, open);
  ExpressionPtr inner = ParseExpressionOrTuple(true);
  ExpectOp(")");
  return inner;
}

ExpressionPtr Parser::ParseList() {
  ExpressionPtr list = MakeExpression(Expression::kList, TakeToken());
  while (!Accept(Token::kOperator, "]")) {
    AddOperand(list.get(), ParseExpression());
    if (!IsOp("]")) ExpectOp(",");
  }
  return list;
}

ExpressionPtr Parser::ParseDict() {
  ExpressionPtr dict = MakeExpression(Expression::kDict, TakeToken());
  while (!Accept(Token::kOperator, "}")) {
    AddOperand(dict.get(), ParseExpression());
    ExpectOp(":");
    AddOperand(dict.get(), ParseExpression());
    if (!IsOp("}")) ExpectOp(",");
  }
  return dict;
}

}  // namespace sluice::chat
