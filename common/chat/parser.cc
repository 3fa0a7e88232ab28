#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/chat/ast.h"

namespace sluice::chat {
namespace {

using ExpressionPtr = std::unique_ptr<Expression>;

template <size_t N>
bool OneOf(const std::array<absl::string_view, N>& list, absl::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}
constexpr std::array<absl::string_view, 4> kFilters = {"trim", "tojson", "length", "default"};
constexpr std::array<absl::string_view, 5> kTests = {"defined", "none", "string", "mapping", "iterable"};
constexpr std::array<absl::string_view, 5> kLoop = {"index", "index0", "first", "last", "length"};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<std::vector<Node>> Run() {
    SLUICE_ASSIGN_OR_RETURN(std::vector<Node> nodes, Body());
    if (Peek().kind != Token::kEnd) return Invalid(absl::StrCat("unexpected {% ", Peek(1).text, " %}"));
    return nodes;
  }

 private:
  const Token& Peek(int ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool Is(Token::Kind kind, absl::string_view text) const { return Peek().kind == kind && Peek().text == text; }
  bool Accept(Token::Kind kind, absl::string_view text) {
    if (!Is(kind, text)) return false;
    ++at_;
    return true;
  }
  absl::Status Invalid(absl::string_view what) const { return ErrorAt(Peek(), absl::StatusCode::kInvalidArgument, what); }
  absl::Status Unsupported(const Token& at, absl::string_view what) const {
    return ErrorAt(at, absl::StatusCode::kUnimplemented, absl::StrCat(what, " is not supported by this build"));
  }
  absl::Status Expect(Token::Kind kind, absl::string_view text) {
    if (Accept(kind, text)) return absl::OkStatus();
    return Invalid(absl::StrCat("expected \"", text, "\", found \"", Peek().text, "\""));
  }
  absl::Status ExpectEnd(Token::Kind kind) {
    if (Peek().kind != kind) return Invalid(absl::StrCat("unexpected \"", Peek().text, "\" before the tag's end"));
    ++at_;
    return absl::OkStatus();
  }
  bool AtBlock(absl::string_view name) const { return Peek().kind == Token::kBlockBegin && Peek(1).kind == Token::kName && Peek(1).text == name; }

  struct Depth {
    explicit Depth(int* depth) : depth_(depth) { ++*depth_; }
    ~Depth() { --*depth_; }
    int* depth_;
  };

  // Nodes up to a block that is not theirs (endif, else, .., or the end).
  absl::StatusOr<std::vector<Node>> Body() {
    const Depth depth(&depth_);
    if (depth_ > kMaxDepth) return Invalid(absl::StrCat("nested deeper than ", kMaxDepth));
    std::vector<Node> nodes;
    while (Peek().kind != Token::kEnd) {
      if (Peek().kind == Token::kText) {
        Node node{.kind = Node::kText, .at = Take()};
        node.text = node.at.text;
        nodes.push_back(std::move(node));
      } else if (Peek().kind == Token::kPrintBegin) {
        Node node{.kind = Node::kPrint, .at = Take()};
        SLUICE_ASSIGN_OR_RETURN(node.expression, Whole());
        SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kPrintEnd));
        nodes.push_back(std::move(node));
      } else if (AtBlock("if")) {
        SLUICE_ASSIGN_OR_RETURN(Node node, If());
        nodes.push_back(std::move(node));
      } else if (AtBlock("for")) {
        SLUICE_ASSIGN_OR_RETURN(Node node, For());
        nodes.push_back(std::move(node));
      } else if (AtBlock("set")) {
        SLUICE_ASSIGN_OR_RETURN(Node node, Set());
        nodes.push_back(std::move(node));
      } else if (AtBlock("elif") || AtBlock("else") || AtBlock("endif") || AtBlock("endfor")) {
        return nodes;
      } else {
        return Unsupported(Peek(1), absl::StrCat("the statement \"", Peek(1).text, "\""));
      }
    }
    return nodes;
  }

  absl::StatusOr<Node> If() {
    Node node{.kind = Node::kIf, .at = Take()};
    ++at_;
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr condition, Whole());
    while (true) {
      SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
      SLUICE_ASSIGN_OR_RETURN(std::vector<Node> body, Body());
      node.branches.emplace_back(std::move(condition), std::move(body));
      if (Peek().kind != Token::kBlockBegin) return Invalid("the if is not closed");
      const bool was_else = node.branches.back().first == nullptr;
      if (!was_else && AtBlock("elif")) {
        at_ += 2;
        SLUICE_ASSIGN_OR_RETURN(condition, Whole());
      } else if (!was_else && AtBlock("else")) {
        at_ += 2;
        condition = nullptr;
      } else if (AtBlock("endif")) {
        at_ += 2;
        SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
        return node;
      } else {
        return Invalid(absl::StrCat("unexpected {% ", Peek(1).text, " %} inside an if"));
      }
    }
  }

  absl::StatusOr<Node> For() {
    Node node{.kind = Node::kFor, .at = Take()};
    ++at_;
    if (Peek().kind != Token::kName) return Invalid("expected a name behind for");
    node.text = Take().text;
    if (Is(Token::kOperator, ",")) return Unsupported(Peek(), "for with several names");
    SLUICE_RETURN_IF_ERROR(Expect(Token::kName, "in"));
    SLUICE_ASSIGN_OR_RETURN(node.expression, Or());
    if (Is(Token::kName, "if") || Is(Token::kName, "recursive")) return Unsupported(Peek(), absl::StrCat("for with ", Peek().text));
    SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
    SLUICE_ASSIGN_OR_RETURN(std::vector<Node> body, Body());
    node.branches.emplace_back(nullptr, std::move(body));
    if (AtBlock("else")) {
      at_ += 2;
      SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
      SLUICE_ASSIGN_OR_RETURN(std::vector<Node> otherwise, Body());
      node.branches.emplace_back(nullptr, std::move(otherwise));
    }
    if (!AtBlock("endfor")) return Invalid("the for is not closed");
    at_ += 2;
    SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
    return node;
  }

  absl::StatusOr<Node> Set() {
    Node node{.kind = Node::kSet, .at = Take()};
    ++at_;
    if (Peek().kind != Token::kName) return Invalid("expected a name behind set");
    node.text = Take().text;
    if (!Is(Token::kOperator, "=")) return Unsupported(Peek(), "this form of set");
    ++at_;
    SLUICE_ASSIGN_OR_RETURN(node.expression, Whole());
    SLUICE_RETURN_IF_ERROR(ExpectEnd(Token::kBlockEnd));
    return node;
  }

  ExpressionPtr New(Expression::Kind kind, const Token& at, std::string name = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->at = at;
    expression->name = std::move(name);
    return expression;
  }
  ExpressionPtr Binary(const Token& at, std::string op, ExpressionPtr left, ExpressionPtr right) const {
    ExpressionPtr expression = New(Expression::kBinary, at, std::move(op));
    expression->operands.push_back(std::move(left));
    expression->operands.push_back(std::move(right));
    return expression;
  }

  // a if b else c
  absl::StatusOr<ExpressionPtr> Whole() {
    const Depth depth(&depth_);
    if (depth_ > kMaxDepth) return Invalid(absl::StrCat("nested deeper than ", kMaxDepth));
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr value, Or());
    if (!Is(Token::kName, "if")) return value;
    ExpressionPtr expression = New(Expression::kIf, Take());
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr condition, Or());
    expression->operands.push_back(std::move(condition));
    expression->operands.push_back(std::move(value));
    if (Accept(Token::kName, "else")) {
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr otherwise, Whole());
      expression->operands.push_back(std::move(otherwise));
    }
    return expression;
  }

  absl::StatusOr<ExpressionPtr> Or() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr left, And());
    while (Is(Token::kName, "or")) {
      const Token at = Take();
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr right, And());
      left = Binary(at, "or", std::move(left), std::move(right));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> And() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr left, Not());
    while (Is(Token::kName, "and")) {
      const Token at = Take();
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr right, Not());
      left = Binary(at, "and", std::move(left), std::move(right));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> Not() {
    if (!Is(Token::kName, "not")) return Compare();
    const Depth depth(&depth_);
    if (depth_ > kMaxDepth) return Invalid(absl::StrCat("nested deeper than ", kMaxDepth));
    ExpressionPtr expression = New(Expression::kUnary, Take(), "not");
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr operand, Not());
    expression->operands.push_back(std::move(operand));
    return expression;
  }
  absl::StatusOr<ExpressionPtr> Compare() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr left, Sum());
    static constexpr std::array<absl::string_view, 6> kOps = {"==", "!=", "<", "<=", ">", ">="};
    for (int comparisons = 0;; ++comparisons) {
      const Token at = Peek();
      std::string op;
      if (at.kind == Token::kOperator && OneOf(kOps, at.text)) {
        op = Take().text;
      } else if (Accept(Token::kName, "in")) {
        op = "in";
      } else if (Is(Token::kName, "not") && Peek(1).kind == Token::kName && Peek(1).text == "in") {
        at_ += 2;
        op = "not in";
      } else {
        return left;
      }
      if (comparisons > 0) return Unsupported(at, "a chain of comparisons");
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr right, Sum());
      left = Binary(at, op, std::move(left), std::move(right));
    }
  }
  absl::StatusOr<ExpressionPtr> Sum() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr left, Product());
    while (Is(Token::kOperator, "+") || Is(Token::kOperator, "-") || Is(Token::kOperator, "~")) {
      const Token at = Take();
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr right, Product());
      left = Binary(at, at.text, std::move(left), std::move(right));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> Product() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr left, Unary());
    if (Is(Token::kOperator, "**")) return Unsupported(Peek(), "the operator **");
    while (Is(Token::kOperator, "*") || Is(Token::kOperator, "/") || Is(Token::kOperator, "//") || Is(Token::kOperator, "%")) {
      const Token at = Take();
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr right, Unary());
      left = Binary(at, at.text, std::move(left), std::move(right));
    }
    return left;
  }
  absl::StatusOr<ExpressionPtr> Unary() {
    if (!Is(Token::kOperator, "-")) return Postfix();
    ExpressionPtr expression = New(Expression::kUnary, Take(), "-");
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr operand, Postfix());
    expression->operands.push_back(std::move(operand));
    return expression;
  }

  absl::Status Arguments(Expression* call) {
    while (!Accept(Token::kOperator, ")")) {
      if (Peek().kind == Token::kName && Peek(1).kind == Token::kOperator && Peek(1).text == "=") return Unsupported(Peek(), "a keyword argument");
      SLUICE_ASSIGN_OR_RETURN(ExpressionPtr argument, Whole());
      call->operands.push_back(std::move(argument));
      if (!Accept(Token::kOperator, ",") && !Is(Token::kOperator, ")")) return Invalid("expected , or ) in the arguments");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> Postfix() {
    SLUICE_ASSIGN_OR_RETURN(ExpressionPtr value, Primary());
    while (true) {
      const Token at = Peek();
      if (Accept(Token::kOperator, ".")) {
        if (Peek().kind != Token::kName) return Invalid("expected a name behind .");
        ExpressionPtr attribute = New(Expression::kAttribute, at, Take().text);
        attribute->operands.push_back(std::move(value));
        if (Is(Token::kOperator, "(")) return Unsupported(at, absl::StrCat("the method ", attribute->name, "()"));
        const Expression& owner = *attribute->operands[0];
        if (owner.kind == Expression::kName && owner.name == "loop" && !OneOf(kLoop, attribute->name)) return Unsupported(at, absl::StrCat("loop.", attribute->name));
        value = std::move(attribute);
      } else if (Accept(Token::kOperator, "[")) {
        if (Is(Token::kOperator, ":")) return Unsupported(Peek(), "a slice");
        ExpressionPtr subscript = New(Expression::kSubscript, at);
        SLUICE_ASSIGN_OR_RETURN(ExpressionPtr index, Whole());
        if (Is(Token::kOperator, ":")) return Unsupported(Peek(), "a slice");
        SLUICE_RETURN_IF_ERROR(Expect(Token::kOperator, "]"));
        subscript->operands.push_back(std::move(value));
        subscript->operands.push_back(std::move(index));
        value = std::move(subscript);
      } else if (Accept(Token::kOperator, "|")) {
        ExpressionPtr filter = New(Expression::kFilter, at, Take().text);
        if (!OneOf(kFilters, filter->name)) return Unsupported(at, absl::StrCat("the filter \"", filter->name, "\""));
        filter->operands.push_back(std::move(value));
        if (Accept(Token::kOperator, "(")) SLUICE_RETURN_IF_ERROR(Arguments(filter.get()));
        const size_t most = filter->name == "default" ? 2 : 1;
        if (filter->operands.size() > most) return Unsupported(at, absl::StrCat("the filter \"", filter->name, "\" with arguments"));
        if (filter->name == "default" && filter->operands.size() < 2) return Unsupported(at, "default without a value");
        value = std::move(filter);
      } else if (Accept(Token::kName, "is")) {
        ExpressionPtr test = New(Expression::kTest, at);
        test->negated = Accept(Token::kName, "not");
        test->name = Take().text;
        if (!OneOf(kTests, test->name)) return Unsupported(at, absl::StrCat("the test \"", test->name, "\""));
        test->operands.push_back(std::move(value));
        value = std::move(test);
      } else {
        return value;
      }
    }
  }

  absl::StatusOr<ExpressionPtr> Primary() {
    const Token token = Take();
    switch (token.kind) {
      case Token::kString: {
        ExpressionPtr literal = New(Expression::kLiteral, token);
        literal->value = token.text;
        return literal;
      }
      case Token::kInteger:
      case Token::kFloat: {
        ExpressionPtr literal = New(Expression::kLiteral, token);
        int64_t integer = 0;
        double real = 0;
        if (token.kind == Token::kInteger && absl::SimpleAtoi(token.text, &integer)) {
          literal->value = integer;
        } else if (token.kind == Token::kFloat && absl::SimpleAtod(token.text, &real)) {
          literal->value = real;
        } else {
          return ErrorAt(token, absl::StatusCode::kInvalidArgument, absl::StrCat(token.text, " is out of range"));
        }
        return literal;
      }
      case Token::kName: return Name(token);
      case Token::kOperator:
        if (token.text == "(") {
          if (Is(Token::kOperator, ")")) return Unsupported(token, "a tuple");
          SLUICE_ASSIGN_OR_RETURN(ExpressionPtr inner, Whole());
          if (Is(Token::kOperator, ",")) return Unsupported(token, "a tuple");
          SLUICE_RETURN_IF_ERROR(Expect(Token::kOperator, ")"));
          return inner;
        }
        if (token.text == "[") {
          ExpressionPtr list = New(Expression::kList, token);
          while (!Accept(Token::kOperator, "]")) {
            SLUICE_ASSIGN_OR_RETURN(ExpressionPtr item, Whole());
            list->operands.push_back(std::move(item));
            if (!Accept(Token::kOperator, ",") && !Is(Token::kOperator, "]")) return Invalid("expected , or ] in the list");
          }
          return list;
        }
        if (token.text == "{") return Unsupported(token, "a dict literal");
        break;
      default: break;
    }
    return ErrorAt(token, absl::StatusCode::kInvalidArgument, absl::StrCat("expected a value, found \"", token.text, "\""));
  }

  absl::StatusOr<ExpressionPtr> Name(const Token& token) {
    const auto literal = [&](Value value) {
      ExpressionPtr expression = New(Expression::kLiteral, token);
      expression->value = std::move(value);
      return expression;
    };
    if (token.text == "true" || token.text == "True") return literal(true);
    if (token.text == "false" || token.text == "False") return literal(false);
    if (token.text == "none" || token.text == "None") return literal(nullptr);
    if (!Is(Token::kOperator, "(")) return New(Expression::kName, token, token.text);
    if (token.text != "raise_exception") return Unsupported(token, absl::StrCat("the function ", token.text, "()"));
    ++at_;
    ExpressionPtr call = New(Expression::kCall, token, token.text);
    SLUICE_RETURN_IF_ERROR(Arguments(call.get()));
    if (call->operands.size() != 1) return ErrorAt(token, absl::StatusCode::kInvalidArgument, "raise_exception takes one argument");
    return call;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Node>> Parse(std::vector<Token> tokens) { return Parser(std::move(tokens)).Run(); }

}  // namespace sluice::chat
