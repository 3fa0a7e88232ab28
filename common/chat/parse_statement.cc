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
    const Token token = Take();
    switch (token.kind) {
      case Token::kText: {
        Statement text{.kind = Statement::kText, .at = token.at};
        text.text = token.text;
        body.push_back(std::move(text));
        break;
      }
      case Token::kPrintBegin: {
        Statement print{.kind = Statement::kPrint, .at = Peek().at};
        print.expression = TupleOr(true);
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

std::unique_ptr<Body> Parser::BodyTo(absl::string_view end) {
  auto body = std::make_unique<Body>(ParseBody({end}));
  EndTag();
  return body;
}

Statement Parser::ParseStatement(const Token& word) {
  static constexpr absl::string_view kStray[] = {"else",    "elif",          "endif",   "endfor",
                                                 "endset",  "endmacro",      "endcall", "endfilter",
                                                 "endwith", "endgeneration", "endraw"};
  const std::string& name = word.text;
  if (name == "for") return For(word);
  if (name == "if") return If(word);
  if (name == "set") return Set(word);
  if (name == "macro") return MacroStatement(word);
  if (name == "call") return CallBlock(word);
  if (name == "with") return With(word);
  Statement statement{.at = word.at};
  if (name == "break" || name == "continue") {
    statement.kind = name == "break" ? Statement::kBreak : Statement::kContinue;
    if (loops_ == 0) Invalid(word, absl::StrCat(name, " stands outside of a loop"));
    EndTag();
  } else if (name == "generation") {
    if (captures_ > 0)
      Unsupported(word, "a generation block within a macro, call, set or filter block");
    statement.kind = Statement::kGeneration;
    EndTag();
    // A break cannot leave the block, because its end must be recorded.
    const Restore<int> loops(&loops_, 0);
    statement.body = BodyTo("endgeneration");
  } else if (name == "filter") {
    statement.kind = Statement::kFilterBlock;
    statement.expression = Filters(Filter(nullptr));
    EndTag();
    const Restore<int> captures(&captures_, captures_ + 1);
    statement.body = BodyTo("endfilter");
  } else if (absl::c_linear_search(kStray, name)) {
    Invalid(word, absl::StrCat("\"", name, "\" has no statement to end"));
  } else {
    Unsupported(word, absl::StrCat("the statement \"", name, "\""));
  }
  return statement;
}

Statement Parser::For(const Token& at) {
  Statement loop{.kind = Statement::kFor, .at = at.at};
  loop.target = ParseTarget(false);
  Expect(Token::kName, "in", "in");
  loop.expression = TupleOr(false);
  if (Accept(Token::kName, "if")) loop.condition = Whole();
  if (IsName("recursive")) Unsupported(Peek(), "a recursive for");
  EndTag();
  {
    const Restore<int> loops(&loops_, loops_ + 1);
    const Restore<bool> uses(&uses_loop_, false);
    loop.body = std::make_unique<Body>(ParseBody({"else", "endfor"}));
    loop.uses_loop = uses_loop_;
  }
  EndTag();
  if (end_ == "else") loop.otherwise = BodyTo("endfor");
  return loop;
}

Statement Parser::If(const Token& at) {
  Statement choice{.kind = Statement::kIf, .at = at.at};
  end_ = "if";
  while (end_ != "endif") {
    ExpressionPtr condition = end_ == "else" ? nullptr : TupleOr(true);
    EndTag();
    Body body = condition == nullptr ? ParseBody({"endif"}) : ParseBody({"elif", "else", "endif"});
    choice.branches.emplace_back(std::move(condition), std::move(body));
  }
  EndTag();
  return choice;
}

Statement Parser::Set(const Token& at) {
  Statement set{.kind = Statement::kSet, .at = at.at};
  set.target = ParseTarget(true);
  if (Accept(Token::kOperator, "=")) {
    set.expression = TupleOr(true);
    EndTag();
    return set;
  }
  set.kind = Statement::kSetBlock;
  if (Accept(Token::kOperator, "|")) set.expression = Filters(Filter(nullptr));
  EndTag();
  const Restore<int> captures(&captures_, captures_ + 1);
  set.body = BodyTo("endset");
  return set;
}

Statement Parser::MacroStatement(const Token& at) {
  Statement statement{.kind = Statement::kMacro, .at = at.at};
  statement.macro = std::make_unique<Macro>();
  statement.macro->at = at.at;
  statement.macro->name = Expect(Token::kName, {}, "the name of the macro").text;
  statement.target.symbol = SymbolOf(statement.macro->name);
  ExpectOp("(");
  Parameters(statement.macro.get());
  statement.macro->body = MacroBody(statement.macro.get(), "endmacro");
  return statement;
}

Statement Parser::CallBlock(const Token& at) {
  Statement statement{.kind = Statement::kCall, .at = at.at};
  statement.macro = std::make_unique<Macro>();
  statement.macro->name = "caller";
  statement.macro->at = at.at;
  if (Accept(Token::kOperator, "(")) Parameters(statement.macro.get());
  statement.expression = Postfix(Primary());
  if (statement.expression->kind != Expression::kCall)
    Invalid(at, "call needs a call of a macro, as in {% call box(1) %}");
  // The body belongs to the macro around it: if it names `caller` or `loop`, these are the ones of
  // that macro.
  statement.macro->body = MacroBody(statement.macro.get(), "endcall");
  return statement;
}

Statement Parser::With(const Token& at) {
  Statement with{.kind = Statement::kWith, .at = at.at};
  while (!Is(Token::kBlockEnd)) {
    if (!with.bindings.empty()) ExpectOp(",");
    Target target = OneTarget(false);
    ExpectOp("=");
    with.bindings.emplace_back(std::move(target), Whole());
  }
  EndTag();
  with.body = BodyTo("endwith");
  return with;
}

Target Parser::ParseTarget(bool attributes) {
  Target first = OneTarget(attributes);
  if (!IsOp(",")) return first;
  Target tuple{.kind = Target::kTuple, .at = first.at};
  tuple.parts.push_back(std::move(first));
  while (Accept(Token::kOperator, ",")) {
    if (!Is(Token::kName) && !IsOp("(")) break;
    if (IsName("in")) break;
    tuple.parts.push_back(OneTarget(attributes));
  }
  return tuple;
}

Target Parser::OneTarget(bool attributes) {
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

void Parser::Parameters(Macro* macro) {
  while (!Accept(Token::kOperator, ")")) {
    const Token name = Expect(Token::kName, {}, "the name of a parameter");
    Macro::Parameter parameter{.symbol = SymbolOf(name.text), .name = name.text};
    if (Accept(Token::kOperator, "=")) {
      parameter.otherwise = Whole();
    } else if (!macro->parameters.empty() && macro->parameters.back().otherwise != nullptr) {
      Invalid(name, absl::StrCat("the parameter ", name.text,
                                 " has no default, but the one before it has"));
    }
    macro->parameters.push_back(std::move(parameter));
    if (!IsOp(")")) ExpectOp(",");
  }
}

std::unique_ptr<Body> Parser::MacroBody(Macro* macro, absl::string_view end) {
  EndTag();
  const bool own = end == "endmacro";
  const Restore<Macro*> innermost(&macro_, own ? macro : macro_);
  const Restore<int> loops(&loops_, 0);
  const Restore<int> captures(&captures_, captures_ + 1);
  const int outer_height = height_;
  height_ = depth_;
  auto body = BodyTo(end);
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
