#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/chat/function.h"
#include "common/chat/value.h"

namespace sluice::chat {

// Names are stored as numbers; Program::symbols has their texts.
using Symbol = uint16_t;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
absl::string_view OperatorName(Operator op);

struct Expression {
  // The kinds, with the fields that each of them uses and what they mean.
  enum Kind : uint8_t {
    kLiteral,    // value
    kName,       // symbol
    kAttribute,  // operands[0].text
    kSubscript,  // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; null: left out
    kList,       // [operands..]
    kTuple,      // (operands..)
    kDict,       // {operands[0]: operands[1], ..}
    kNot,        // not operands[0]
    kNegate,     // -operands[0]
    kPlus,       // +operands[0]
    kChain,      // ((operands[0] operators[0] operands[1]) operators[1] operands[2]) ..: arithmetic
    kConcat,     // operands[0] ~ operands[1] ~ ..
    kCompare,    // operands[0] operators[0] operands[1] and operands[1] operators[1] operands[2] ..
    kAnd,        // operands[0] and operands[1] and ..
    kOr,         // operands[0] or operands[1] or ..
    kIf,         // operands[1] if operands[0] else operands[2]; operands[2] null: undefined
    // operands[0] | function(operands[1..], keywords..); operands[0] is null for
    // the first filter of a filter or set block, whose input is what the block prints.
    kFilter,
    kTest,  // operands[0] is function(operands[1..]); negated: is not
    kCall,  // operands[0](operands[1..], keywords..)
  } kind;
  bool negated = false;
  bool plain_in_dicts = false;  // kAttribute: Python's dict has no attribute of this name.
  Symbol symbol = 0;
  // Number of levels of the tree from here down.
  uint16_t height = 1;
  uint32_t at = 0;  // Byte offset in the source: of the operator, or of the first byte.
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  const Function* function = nullptr;
  // kAttribute: what the name means on each type that has methods.
  const Function* methods[kTypes] = {};
  Builtin builtins[kTypes] = {};
  std::string text;
  Value value;
};

// The target of an assignment: a name, an attribute of a namespace, or several targets.
struct Target {
  enum Kind : uint8_t { kName, kAttribute, kTuple } kind = kName;
  Symbol symbol = 0;
  uint32_t at = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct Statement;
using Body = std::vector<Statement>;

// A macro, or the body of a call block, which the called macro sees as `caller`.
struct Macro {
  struct Parameter {
    Symbol symbol;
    std::string name;
    ExpressionPtr otherwise;  // Default value; null: undefined.
  };
  std::string name;
  uint32_t at = 0;
  std::vector<Parameter> parameters;
  std::unique_ptr<Body> body;
  uint16_t height = 1;  // Levels of statements and expressions inside.
  // Whether the body uses the name `varargs`, `kwargs` or `caller`.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
};

struct Statement {
  // The kinds, with the fields that each of them uses.
  enum Kind : uint8_t {
    kText,         // text
    kPrint,        // expression
    kIf,           // branches: conditions and bodies; a null condition is the else
    kFor,          // target, expression, condition (or null), body, otherwise; uses_loop
    kSet,          // target = expression
    kSetBlock,     // target = what body prints, through expression's filters if not null
    kFilterBlock,  // what body prints, through expression's filters
    kMacro,        // target.symbol = macro
    kCall,         // expression, a call, with macro as its caller
    kWith,         // bindings, body
    kGeneration,   // body, whose output is the assistant's
    kBreak,
    kContinue,
  } kind;
  bool uses_loop = false;
  uint32_t at = 0;
  std::string text;
  Target target;
  ExpressionPtr expression, condition;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<std::pair<Target, ExpressionPtr>> bindings;
  std::unique_ptr<Body> body, otherwise;
  std::unique_ptr<Macro> macro;
};

struct Program {
  std::string source;  // As NormalizeSource() returns it.
  Body body;
  std::vector<std::string> symbols;
  Symbol loop = 0, caller = 0, varargs = 0, kwargs = 0;
  // The global functions that the template names.
  std::vector<std::pair<Symbol, const Function*>> globals;
};

// Parses a template. `source` must be the result of NormalizeSource(). Throws Failure if it does
// not parse, is nested deeper than kMaxDepth, or uses a construct that is not built.
Program Parse(std::string source);

}  // namespace sluice::chat
