#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/chat/function.h"
#include "common/chat/value.h"

namespace sluice::chat {

// Names are numbers here: Program::symbols gives their texts.
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
    kAnd,
    kOr,  // operands[0] and operands[1] and ..
    kIf,  // operands[1] if operands[0] else operands[2]; null: undefined
    // operands[0] | function(operands[1..], keywords..); operands[0] null: of a filter block
    kFilter,
    kTest,  // operands[0] is function(operands[1..]); negated: is not
    kCall,  // operands[0](operands[1..], keywords..)
  } kind;
  bool negated = false;
  bool plain_in_dicts = false;  // kAttribute: Python's dict has nothing of that name.
  Symbol symbol = 0;
  uint16_t height = 1;
  uint32_t at = 0;  // Byte of the source: the operator, or the first byte.
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  const Function* function = nullptr;
  // kAttribute: what the name is on each type that has methods.
  const Function* methods[kTypes] = {};
  Builtin builtins[kTypes] = {};
  std::string text;
  Value value;
};

// Where an assignment goes: a name, an attribute of a namespace, or several targets.
struct Target {
  enum Kind : uint8_t { kName, kAttribute, kTuple } kind = kName;
  Symbol symbol = 0;
  uint32_t at = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct Statement;
using Body = std::vector<Statement>;

// The body of a macro, or of a call block (its `caller`).
struct Macro {
  struct Parameter {
    Symbol symbol;
    std::string name;
    ExpressionPtr otherwise;  // Null: undefined.
  };
  std::string name;
  uint32_t at = 0;
  std::vector<Parameter> parameters;
  std::unique_ptr<Body> body;
  uint16_t height = 1;  // Levels of statements and expressions within.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;  // Named in the body.
};

struct Statement {
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
  std::string source;  // Normalized.
  Body body;
  std::vector<std::string> symbols;
  Symbol loop = 0, caller = 0, varargs = 0, kwargs = 0;
  std::vector<std::pair<Symbol, const Function*>> globals;  // Those that it names.
};

// `source`: as NormalizeSource leaves it. Throws Failure: does not parse, is nested deeper than
// kMaxDepth, or uses a construct that is not built.
Program Parse(std::string source);

}  // namespace sluice::chat
