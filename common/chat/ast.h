#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/lexer.h"
#include "nlohmann/json.hpp"

namespace sluice::chat {

using Value = nlohmann::ordered_json;

struct Expression {
  enum Kind {
    kLiteral,    // value
    kName,       // name
    kAttribute,  // operands[0].name
    kSubscript,  // operands[0][operands[1]]
    kList,       // [operands..]
    kUnary,      // name: - or not
    kBinary,     // name: + - * / // % ~ == != < <= > >= in, `not in`, and, or
    kIf,         // operands[1] if operands[0] else operands[2] (absent: undefined)
    kFilter,     // operands[0] | name(operands[1..])
    kTest,       // operands[0] is name; negated: `is not`
    kCall,       // name(operands..): raise_exception
  } kind;
  Token at;
  std::string name;
  Value value;
  bool negated = false;
  std::vector<std::unique_ptr<Expression>> operands;
};

struct Node {
  enum Kind { kText, kPrint, kIf, kFor, kSet } kind;
  Token at;
  std::string text;                           // kText; kFor and kSet: the variable's name.
  std::unique_ptr<Expression> expression;     // kPrint, kSet, kFor's list.
  // kIf: one (condition, body) per if and elif; the condition of else is null. kFor: the body, then that of else.
  std::vector<std::pair<std::unique_ptr<Expression>, std::vector<Node>>> branches;
};

// Nesting beyond kMaxDepth is refused: the template is untrusted.
inline constexpr int kMaxDepth = 64;

// INVALID_ARGUMENT: does not parse. UNIMPLEMENTED: a statement, filter, test or function this build does not have.
absl::StatusOr<std::vector<Node>> Parse(std::vector<Token> tokens);

}  // namespace sluice::chat
