#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/chat/ast.h"
#include "common/chat/lexer.h"

namespace sluice::chat {

// A recursive-descent parser with Jinja's precedences. Expressions are in parser.cc, statements in
// parse_statement.cc.
class Parser {
 public:
  explicit Parser(std::string source);
  Program Run();

 private:
  // Counts one level of nesting while it exists.
  class Level {
   public:
    explicit Level(Parser* parser);
    ~Level() { --parser_->depth_; }

   private:
    Parser* const parser_;
  };

  // Tokens.
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool Is(Token::Kind kind, absl::string_view text = {}, size_t ahead = 0) const;
  bool IsOp(absl::string_view op) const { return Is(Token::kOperator, op); }
  bool IsName(absl::string_view name) const { return Is(Token::kName, name); }
  bool Accept(Token::Kind kind, absl::string_view text = {});
  Token TakeToken() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  Token Expect(Token::Kind kind, absl::string_view text, absl::string_view wanted);
  void ExpectOp(absl::string_view op) { Expect(Token::kOperator, op, op); }
  [[noreturn]] void Invalid(const Token& token, absl::string_view what) const;
  [[noreturn]] void Unsupported(const Token& token, absl::string_view what) const;

  // Nodes.
  ExpressionPtr MakeExpression(Expression::Kind kind, const Token& at) const;
  void AddOperand(Expression* parent, ExpressionPtr child);  // Adds the child as the next operand.
  Symbol SymbolOf(const std::string& name);

  // Expressions, from the lowest precedence to the highest.
  ExpressionPtr ParseExpression();
  // Parses one expression, or a tuple `a, b`. With `conditional`, a part may be `x if y else z`.
  ExpressionPtr ParseExpressionOrTuple(bool conditional);
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseFiltered();  // With filters and tests.
  ExpressionPtr ParseUnary();
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParsePostfix(ExpressionPtr value);
  ExpressionPtr ParseFilters(ExpressionPtr value);
  ExpressionPtr ParseChain(ExpressionPtr (Parser::*operand)(),
                           absl::Span<const absl::string_view> names,
                           absl::Span<const Operator> operators);
  ExpressionPtr ParseLogic(Expression::Kind kind, absl::string_view word,
                           ExpressionPtr (Parser::*operand)());
  ExpressionPtr ParseAttribute(ExpressionPtr value);
  ExpressionPtr ParseSubscript(ExpressionPtr value);
  ExpressionPtr ParseCall(ExpressionPtr callee);
  ExpressionPtr ParseFilter(ExpressionPtr value);  // After `|`, or after the word `filter`.
  ExpressionPtr ParseTest(ExpressionPtr value);    // After `is`.
  ExpressionPtr ParseParenthesized();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParseNumber();
  ExpressionPtr ParseString();
  void ParseArguments(Expression* call);  // After `(`, through `)`.

  // Statements.

  // Parses statements up to a tag that begins with one of `ends`, and takes that word.
  Body ParseBody(absl::Span<const absl::string_view> ends);
  std::unique_ptr<Body> ParseBodyUntil(absl::string_view end);
  Statement ParseStatement(const Token& word);
  Statement ParseFor(const Token& at);
  Statement ParseIf(const Token& at);
  Statement ParseSet(const Token& at);
  Statement ParseMacro(const Token& at);
  Statement ParseCallBlock(const Token& at);
  Statement ParseWith(const Token& at);
  Target ParseTarget(bool attributes);
  Target ParseOneTarget(bool attributes);
  void ParseParameters(Macro* macro);
  std::unique_ptr<Body> ParseMacroBody(Macro* macro, absl::string_view end);
  void ExpectTagEnd() { Expect(Token::kBlockEnd, {}, "%}"); }

  Program program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::map<std::string, Symbol> symbols_;
  int depth_ = 0;
  int height_ = 0;  // Deepest level seen in the current macro.
  int loops_ = 0;   // Number of loops around the current statement, within its macro.
  // Number of macro, call, set and filter blocks around the current statement. Their output is a
  // value, not the template's output.
  int captures_ = 0;
  bool uses_loop_ = false;  // The current body names `loop`.
  Macro* macro_ = nullptr;  // The innermost macro; null outside.
  std::string end_;         // The word that ended the last body.
};

}  // namespace sluice::chat
