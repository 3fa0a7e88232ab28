#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/chat/parser.h"

namespace sluice::chat {
namespace {

// Sets a variable, and restores it when the scope ends.
template <typename T>
class Restore {
 public:
  Restore(T* what, T value) : what_(what), old_(*what) { *what = value; }
  ~Restore() { *what_ = old_; }

 private:
  T* const what_;
  const T old_;
};

}  // namespace

Program Parser::Run() {
  program_.loop = SymbolOf("loop");
  program_.caller = SymbolOf("caller");
  program_.varargs = SymbolOf("varargs");
  program_.kwargs = SymbolOf("kwargs");
  program_.body = ParseBody({});
  for (const Function& function : Globals()) {
    if (const auto named = symbols_.find(std::string(function.name)); named != symbols_.end())
      program_.globals.emplace_back(named->second, &function);
  }
  return std::move(program_);
}

Body Parser::ParseBody(absl::Span<const absl::string_view> ends) {
  const Level level(this);
  Body body;
  while (true) {
    const Token token = TakeToken();
    switch (token.kind) {
      case Token::kText: {
        Statement text{.kind = Statement::kText, .at = token.at};
        text.text = token.text;
        body.push_back(std::move(text));
        break;
      }
      case Token::kPrintBegin: {
        Statement print{.kind = Statement::kPrint, .at = Peek().at};
        print.expression = ParseExpressionOrTuple(true);
        Expect(Token::kPrintEnd, {}, "}}");
        body.push_back(std::move(print));
        break;
      }
      case Token::kBlockBegin: {
        const Token word = Expect(Token::kName, {}, "the name of a statement");
        // The caller handles the tag that ends the body.
        if (absl::c_linear_search(ends, word.text)) {
          end_ = word.text;
          return body;
        }
        body.push_back(ParseStatement(word));
        break;
      }
      default:
        if (ends.empty() && token.kind == Token::kEnd) return body;
        Invalid(token, absl::StrCat("expected {% ", absl::StrJoin(ends, " or "),
                                    " %}, found the end of the template"));
    }
  }
}

std::unique_ptr<Body> Parser::ParseBodyUntil(absl::string_view end) {
  auto body = std::make_unique<Body>(ParseBody({end}));
  ExpectTagEnd();
  return body;
}

Statement Parser::ParseStatement(const Token& word) {
  static constexpr absl::string_view kStray[] = {"else",    "elif",          "endif",   "endfor",
                                                 "endset",  "endmacro",      "endcall", "endfilter",
                                                 "endwith", "endgeneration", "endraw"};
  const std::string& name = word.text;
  if (name == "for") return ParseFor(word);
  if (name == "if") return ParseIf(word);
  if (name == "set") return ParseSet(word);
  if (name == "macro") return ParseMacro(word);
  if (name == "call") return ParseCallBlock(word);
  if (name == "with") return ParseWith(word);

  Statement statement{.at = word.at};
  if (name == "break" || name == "continue") {
    statement.kind = name == "break" ? Statement::kBreak : Statement::kContinue;
    if (loops_ == 0) Invalid(word, absl::StrCat(name, " stands outside of a loop"));
    ExpectTagEnd();
  } else if (name == "generation") {
    if (captures_ > 0)
      Unsupported(word, "a generation block within a macro, call, set or filter block");
    statement.kind = Statement::kGeneration;
    ExpectTagEnd();
    // A break cannot leave the block, because its end must be recorded.
    const Restore<int> loops(&loops_, 0);
    statement.body = ParseBodyUntil("endgeneration");
  } else if (name == "filter") {
    statement.kind = Statement::kFilterBlock;
    statement.expression = ParseFilters(ParseFilter(nullptr));
    ExpectTagEnd();
    const Restore<int> captures(&captures_, captures_ + 1);
    statement.body = ParseBodyUntil("endfilter");
  } else if (absl::c_linear_search(kStray, name)) {
    Invalid(word, absl::StrCat("\"", name, "\" has no statement to end"));
  } else {
    Unsupported(word, absl::StrCat("the statement \"", name, "\""));
  }
  return statement;
}

Statement Parser::ParseFor(const Token& at) {
  Statement loop{.kind = Statement::kFor, .at = at.at};
  loop.target = ParseTarget(false);
  Expect(Token::kName, "in", "in");
  loop.expression = ParseExpressionOrTuple(false);
  if (Accept(Token::kName, "if")) loop.condition = ParseExpression();
  if (IsName("recursive")) Unsupported(Peek(), "a recursive for");
  ExpectTagEnd();
  {
    const Restore<int> loops(&loops_, loops_ + 1);
    const Restore<bool> uses(&uses_loop_, false);
    loop.body = std::make_unique<Body>(ParseBody({"else", "endfor"}));
    loop.uses_loop = uses_loop_;
  }
  ExpectTagEnd();
  if (end_ == "else") loop.otherwise = ParseBodyUntil("endfor");
  return loop;
}

Statement Parser::ParseIf(const Token& at) {
  Statement choice{.kind = Statement::kIf, .at = at.at};
  end_ = "if";
  while (end_ != "endif") {
    ExpressionPtr condition = end_ == "else" ? nullptr : ParseExpressionOrTuple(true);
    ExpectTagEnd();
    Body body = condition == nullptr ? ParseBody({"endif"}) : ParseBody({"elif", "else", "endif"});
    choice.branches.emplace_back(std::move(condition), std::move(body));
  }
  ExpectTagEnd();
  return choice;
}

Statement Parser::ParseSet(const Token& at) {
  Statement set{.kind = Statement::kSet, .at = at.at};
  set.target = ParseTarget(true);
  if (Accept(Token::kOperator, "=")) {
    set.expression = ParseExpressionOrTuple(true);
    ExpectTagEnd();
    return set;
  }
  set.kind = Statement::kSetBlock;
  if (Accept(Token::kOperator, "|")) set.expression = ParseFilters(ParseFilter(nullptr));
  ExpectTagEnd();
  const Restore<int> captures(&captures_, captures_ + 1);
  set.body = ParseBodyUntil("endset");
  return set;
}

Statement Parser::ParseMacro(const Token& at) {
  Statement statement{.kind = Statement::kMacro, .at = at.at};
  statement.macro = std::make_unique<Macro>();
  statement.macro->at = at.at;
  statement.macro->name = Expect(Token::kName, {}, "the name of the macro").text;
  statement.target.symbol = SymbolOf(statement.macro->name);
  ExpectOp("(");
  ParseParameters(statement.macro.get());
  statement.macro->body = ParseMacroBody(statement.macro.get(), "endmacro");
  return statement;
}

Statement Parser::ParseCallBlock(const Token& at) {
  Statement statement{.kind = Statement::kCall, .at = at.at};
  statement.macro = std::make_unique<Macro>();
  statement.macro->name = "caller";
  statement.macro->at = at.at;
  if (Accept(Token::kOperator, "(")) ParseParameters(statement.macro.get());
  statement.expression = ParsePostfix(ParsePrimary());
  if (statement.expression->kind != Expression::kCall)
    Invalid(at, "call needs a call of a macro, as in {% call box(1) %}");
  // The body belongs to the macro around it: if it names `caller` or `loop`, these are the ones of
  // that macro.
  statement.macro->body = ParseMacroBody(statement.macro.get(), "endcall");
  return statement;
}

Statement Parser::ParseWith(const Token& at) {
  Statement with{.kind = Statement::kWith, .at = at.at};
  while (!Is(Token::kBlockEnd)) {
    if (!with.bindings.empty()) ExpectOp(",");
    Target target = ParseOneTarget(false);
    ExpectOp("=");
    with.bindings.emplace_back(std::move(target), ParseExpression());
  }
  ExpectTagEnd();
  with.body = ParseBodyUntil("endwith");
  return with;
}

Target Parser::ParseTarget(bool attributes) {
  Target first = ParseOneTarget(attributes);
  if (!IsOp(",")) return first;
  Target tuple{.kind = Target::kTuple, .at = first.at};
  tuple.parts.push_back(std::move(first));
  while (Accept(Token::kOperator, ",")) {
    if (!Is(Token::kName) && !IsOp("(")) break;
    if (IsName("in")) break;
    tuple.parts.push_back(ParseOneTarget(attributes));
  }
  return tuple;
}

Target Parser::ParseOneTarget(bool attributes) {
  const Level level(this);
  if (Accept(Token::kOperator, "(")) {
    Target inner = ParseTarget(attributes);
    ExpectOp(")");
    return inner;
  }

  static constexpr absl::string_view kConstants[] = {"true",  "True", "false",
                                                     "False", "none", "None"};
  const Token name = Expect(Token::kName, {}, "a name to assign to");
  if (absl::c_linear_search(kConstants, name.text))
    Invalid(name, absl::StrCat("cannot assign to ", name.text));
  Target target{.symbol = SymbolOf(name.text), .at = name.at};
  if (attributes && Accept(Token::kOperator, ".")) {
    target.kind = Target::kAttribute;
    target.attribute = Expect(Token::kName, {}, "a name behind .").text;
  }
  return target;
}

void Parser::ParseParameters(Macro* macro) {
  while (!Accept(Token::kOperator, ")")) {
    const Token name = Expect(Token::kName, {}, "the name of a parameter");
    Macro::Parameter parameter{.symbol = SymbolOf(name.text), .name = name.text};
    if (Accept(Token::kOperator, "=")) {
      parameter.otherwise = ParseExpression();
    } else if (!macro->parameters.empty() && macro->parameters.back().otherwise != nullptr) {
      Invalid(name, absl::StrCat("the parameter ", name.text,
                                 " has no default, but the one before it has"));
    }
    macro->parameters.push_back(std::move(parameter));
    if (!IsOp(")")) ExpectOp(",");
  }
}

std::unique_ptr<Body> Parser::ParseMacroBody(Macro* macro, absl::string_view end) {
  ExpectTagEnd();
  const bool own = end == "endmacro";
  const Restore<Macro*> innermost(&macro_, own ? macro : macro_);
  const Restore<int> loops(&loops_, 0);
  const Restore<int> captures(&captures_, captures_ + 1);
  const int outer_height = height_;
  height_ = depth_;
  auto body = ParseBodyUntil(end);
  // A default value may have more levels than the body.
  macro->height = static_cast<uint16_t>(height_ - depth_ + 1);
  for (const Macro::Parameter& parameter : macro->parameters) {
    if (parameter.otherwise != nullptr)
      macro->height = std::max<uint16_t>(macro->height, parameter.otherwise->height);
  }
  height_ = std::max(outer_height, height_);
  return body;
}

}  // namespace sluice::chat
