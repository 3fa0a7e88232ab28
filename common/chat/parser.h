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
  Token Take() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  Token Expect(Token::Kind kind, absl::string_view text, absl::string_view wanted);
  void ExpectOp(absl::string_view op) { Expect(Token::kOperator, op, op); }
  [[noreturn]] void Invalid(const Token& token, absl::string_view what) const;
  [[noreturn]] void Unsupported(const Token& token, absl::string_view what) const;

  // Nodes.
  ExpressionPtr New(Expression::Kind kind, const Token& at) const;
  void Adopt(Expression* parent, ExpressionPtr child) const;  // Adds the child as the next operand.
  Symbol SymbolOf(const std::string& name);

  // Expressions, from the lowest precedence to the highest.
  ExpressionPtr Whole();
  // Parses one expression, or a tuple `a, b`. With `conditional`, a part may be `x if y else z`.
  ExpressionPtr TupleOr(bool conditional);
  ExpressionPtr Or();
  ExpressionPtr And();
  ExpressionPtr Not();
  ExpressionPtr Compare();
  ExpressionPtr Sum();
  ExpressionPtr Concat();
  ExpressionPtr Product();
  ExpressionPtr Power();
  ExpressionPtr Filtered();  // With filters and tests.
  ExpressionPtr Unary();
  ExpressionPtr Primary();
  ExpressionPtr Postfix(ExpressionPtr value);
  ExpressionPtr Filters(ExpressionPtr value);
  ExpressionPtr Chain(ExpressionPtr (Parser::*operand)(), absl::Span<const absl::string_view> names,
                      absl::Span<const Operator> operators);
  ExpressionPtr Logic(Expression::Kind kind, absl::string_view word,
                      ExpressionPtr (Parser::*operand)());
  ExpressionPtr Attribute(ExpressionPtr value);
  ExpressionPtr Subscript(ExpressionPtr value);
  ExpressionPtr CallOf(ExpressionPtr callee);
  ExpressionPtr Filter(ExpressionPtr value);  // After `|`, or after the word `filter`.
  ExpressionPtr Test(ExpressionPtr value);    // After `is`.
  ExpressionPtr Parenthesized();
  ExpressionPtr ListLiteral();
  ExpressionPtr DictLiteral();
  ExpressionPtr NumberLiteral();
  ExpressionPtr StringLiteral();
  void Arguments(Expression* call);  // After `(`, through `)`.

  // Statements.

  // Parses statements up to a tag that begins with one of `ends`, and takes that word.
  Body ParseBody(absl::Span<const absl::string_view> ends);
  std::unique_ptr<Body> BodyTo(absl::string_view end);
  Statement ParseStatement(const Token& word);
  Statement For(const Token& at);
  Statement If(const Token& at);
  Statement Set(const Token& at);
  Statement MacroStatement(const Token& at);
  Statement CallBlock(const Token& at);
  Statement With(const Token& at);
  Target ParseTarget(bool attributes);
  Target OneTarget(bool attributes);
  void Parameters(Macro* macro);
  std::unique_ptr<Body> MacroBody(Macro* macro, absl::string_view end);
  void EndTag() { Expect(Token::kBlockEnd, {}, "%}"); }

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
