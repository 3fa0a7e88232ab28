#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// How a comma between digits is read if both are possible.
enum class Comma {
  kThousands,  // 1,234 is one number, and 1,5 are two.
  kSeparator,  // 1,234 are two numbers.
  kDecimal,    // 1,5 is one and a half.
};

struct Token {
  enum class Type { kNumber, kSymbol, kFunction, kText, kOperator, kCommand, kEnd };
  Type type = Type::kEnd;
  // The name of a symbol, function or command; the digits of a number; the words of a text. For
  // operators the character, or "<=", ">=", "!=", "in", "~", "->", "+-", "-+", "cup", "cap",
  // "setminus", "and", "deg", "\\" (a new row), "\{" and "\}" (of a set).
  std::string text = {};
  bool space = false;    // White space is in front of it.
  mpq_class value = {};  // Of a number.
  Written written = {};
  std::string raw = {};  // The argument in braces of text, begin, end, vec, overline, ..
};

// Splits an answer (PlainText) into tokens, of which the last is kEnd. Returns nullopt if a part of
// it is nothing that formulas consist of, or if it is over the budget.
std::optional<std::vector<Token>> Tokenize(absl::string_view text, Comma comma, Budget& budget);

}  // namespace sluice::math
